"""CueCo on ImageNet-100: CueCo Table 1 (linear probe 78.65 % top-1).

    python -m cluster_jax.main --config=configs/cueco_imagenet100.py --config.data.dir=DIR

The data are as in `nrcc_imagenet`, of which 100 classes are taken: those of solo-learn (da Costa et
al., 2022), from which Table 1 takes the results of other methods. SCAN's ImageNet-100, that of
NCC's Table A2, has 12 of them.
Intended for a TPU slice of 16 chips, or one host with several GPUs.

From the paper: 400 epochs; all else as in `cueco_cifar10`.
Guesses: the classes (the paper does not list its own); the size and strengths of crop, jitter and
blur as in `nrcc_imagenet`, with BYOL's probabilities of blur and solarization; 100 clusters, the
number of classes; batch 1024 with the rate scaled by it.
Deviations: network.stem, "imagenet": the paper prints a 3x3 first convolution without max pooling,
"cifar", which on 224 pixels takes sixteen times the operations. Random crops are from the central
square of 256 pixels, as in `nrcc_imagenet`; and that of `cueco_cifar10`.
"""

from cluster_jax.core.config import derived

# Numbers of the classes, in the order of their WordNet IDs.
CLASSES = (
    15, 45, 54, 57, 64, 74, 90, 99, 119, 120, 122, 131, 137, 151, 155, 157, 158, 166, 167, 169,
    176, 180, 209, 211, 222, 228, 234, 236, 242, 246, 267, 268, 272, 275, 277, 281, 299, 305, 313,
    317, 331, 342, 368, 374, 407, 421, 431, 449, 452, 455, 479, 494, 498, 503, 508, 544, 560, 570,
    592, 593, 599, 606, 608, 619, 620, 653, 659, 662, 665, 667, 674, 682, 703, 708, 717, 724, 748,
    758, 765, 766, 772, 775, 796, 798, 830, 854, 857, 858, 872, 876, 882, 904, 908, 936, 938, 953,
    959, 960, 993, 994,
)  # fmt: skip

AUGMENT = {"like": "nrcc_imagenet", "crop": {"scale": (0.08, 1.0)}}
# BYOL's: view b is rarely blurred.
AUGMENT |= {"blur": {"like": "cueco_cifar10", "kernel": 23}, "solarize": {"like": "cueco_cifar10"}}

get_config = derived(
    "cueco_cifar10",
    data={"like": "nrcc_imagenet", "classes": CLASSES},
    augment=AUGMENT,
    novel={"test_split": "validation"},
    network={"stem": "imagenet"},
    method={"n_clusters": 100},
    train={"batch_size": 1024, "duration": "400 epochs"},
)
