"""CueCo on ImageNet-100: CueCo Table 1 (linear probe 78.65 % top-1).

    python -m cluster_jax.main --config=configs/cueco_imagenet100.py --config.data.dir=DIR

The data are as in `nrcc_imagenet`, of which the 100 classes of the list "imagenet_100" are taken.
Intended for a TPU slice of 16 chips, or one host with several GPUs.

From the paper: 400 epochs; all else as in `cueco_cifar10`.
Guesses: the size and strengths of crop, jitter and blur as in `nrcc_imagenet`, with BYOL's
probabilities of blur and solarization; 100 clusters, the number of classes; batch 1024 with the
rate scaled by it. The paper prints a 3x3 first convolution without max pooling; on 224 pixels
that takes sixteen times the operations, and the stem here is that of ImageNet
(--config.network.stem=cifar is the printed one).
"""

from cluster_jax.core.config import derived, load_config


def get_config():
    """The config."""
    views = load_config("cueco_cifar10").augment  # BYOL's: view b is rarely blurred
    views.blur.kernel = 23
    images = derived(
        "nrcc_imagenet",
        data={"classes": "imagenet_100"},
        augment={"crop": {"scale": (0.08, 1.0)}, "blur": views.blur, "solarize": views.solarize},
    )
    return derived(
        "cueco_cifar10",
        data=images.data,
        augment=images.augment,
        novel={"test_split": "validation"},
        network={"stem": "imagenet"},
        method={"clusters": 100},
        train={"batch_size": 1024, "duration": "400 epochs"},
    )
