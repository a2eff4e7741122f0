"""CueCo on ImageNet-100: CueCo Table 1 (linear probe 78.65 % top-1).

    python -m cluster_jax.main --config=configs/cueco_imagenet100.py --config.data.dir=DIR

The data are as in `nrcc_imagenet`, of which 100 classes are taken.
Intended for a TPU slice of 16 chips, or one host with several GPUs.

From the paper: 400 epochs; all else as in `cueco_cifar10`.
Guesses: the size and strengths of crop, jitter and blur as in `nrcc_imagenet`, with BYOL's
probabilities of blur and solarization; 100 clusters, the number of classes; batch 1024 with the
rate scaled by it. The paper prints a 3x3 first convolution without max pooling; on 224 pixels
that takes sixteen times the operations, and the stem here is that of ImageNet
(--config.network.stem=cifar is the printed one).
"""

from cluster_jax.core.config import derived

# Numbers of the classes, in the order of their WordNet IDs.
CLASSES = (
    15, 20, 37, 65, 67, 68, 71, 99, 101, 137, 143, 146, 158, 164, 179, 182, 185, 192, 197, 199,
    205, 213, 223, 230, 231, 232, 236, 251, 272, 279, 280, 286, 288, 295, 322, 330, 338, 370, 376,
    409, 412, 444, 462, 463, 508, 515, 518, 525, 543, 546, 549, 553, 578, 589, 596, 599, 615, 621,
    639, 640, 646, 650, 658, 678, 682, 683, 687, 715, 716, 726, 727, 737, 742, 748, 757, 788, 794,
    797, 821, 824, 830, 832, 846, 856, 860, 863, 871, 880, 881, 886, 897, 906, 908, 913, 924, 927,
    931, 935, 954, 984,
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
