"""SimCLR on your own images from a pretrained network, whose last blocks it trains further.

    python -m cluster_jax.main --config=configs/simclr_images.py --config.data.dir=DIR

The blocks of EfficientNet-Lite2 up to stage5 stay as they are (network.frozen; "stem" trains all
but the first layer): 1,500 steps of 32 images, which want an accelerator. Crop and jitter are those
of the base config. `images` clusters the features of the same network as it is, in a minute.
"""

from cluster_jax.core.config import derived

NETWORK = {"name": "efficientnet_lite2", "weights": "efficientnet_lite2", "width": 32}

get_config = derived(
    "images_scratch",
    data={"like": "images"},
    augment={"size": None},  # as the network was trained
    network={**NETWORK, "frozen": "stage5"},
    optimizer={"learning_rate": 1e-4},
    train={"batch_size": 32},
    eval={"features": "backbone", "batch_size": 64},
)
