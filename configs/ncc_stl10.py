"""NCC on STL-10: NCC Table 2 (ACC 0.867).

    python -m cluster_jax.main --config=configs/ncc_stl10.py --config.data.dir=DIR

DIR contains the data set, prepared by TFDS as array_record. Trains and scores on the 13,000 labeled
images at 96 pixels. The stem is the standard one: the paper changes it for CIFAR alone. Everything
else is as in ncc_cifar10; intended for one GPU or a TPU slice.
Guess: the strength of the jitter, SimCLR's for CIFAR-10.
"""

from cluster_jax.core.config import derived

AUGMENT, NETWORK = {"size": 96}, {"stem": "imagenet"}
get_config = derived("ncc_cifar10", data={"name": "stl10"}, augment=AUGMENT, network=NETWORK)
