"""SimCLR on your own images from a pretrained network, whose last blocks it trains further.

    python -m cluster_jax.main --config=configs/simclr_images.py --config.data.dir=DIR

The blocks of EfficientNet-Lite2 up to stage5 stay as they are (network.frozen; "stem" trains all
but the first layer): 1,500 steps of 32 images, which want an accelerator. Crop and jitter are those
of the base config. `images` clusters the features of the same network as it is, in a minute.
"""

from ml_collections import config_dict

from cluster_jax.core.config import load_config


def get_config():
    """The config."""
    config, images = load_config("images_scratch"), load_config("images")
    config.data = images.data
    config.augment.size = config_dict.placeholder(int)  # None: as the network was trained
    config.network.name = "efficientnet_lite2"
    config.network.weights = "efficientnet_lite2"
    config.network.width = 32
    config.network.frozen = "stage5"
    config.optimizer.learning_rate = 1e-4
    config.train.batch_size = 32
    config.eval.features = "backbone"
    config.eval.batch_size = images.eval.batch_size
    return config
