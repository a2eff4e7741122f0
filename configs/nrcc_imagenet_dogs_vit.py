"""BYOL + NRCC on ImageNet-Dogs with a ViT-Small: NRCC Table 10 (ACC 0.738).

    python -m cluster_jax.main --config=configs/nrcc_imagenet_dogs_vit.py --config.data.dir=DIR

Of Table 10 also, by --config.network.name and --config.network.width: vit_tiny_patch16, 192, and
vit_base_patch16, 768.
From the paper: a ViT-Small, everything else as with ResNet-34. Guess: patches of 16 pixels.
"""

from cluster_jax.core.config import derived

NETWORK = {"name": "vit_small_patch16", "width": 384, "stem": None}
get_config = derived("nrcc_imagenet_dogs", network=NETWORK)
