"""BYOL + NRCC on STL-10: NRCC Table 3.

    python -m cluster_jax.main --config=configs/nrcc_stl10.py --config.data.dir=DIR

DIR contains the data set, prepared by TFDS as array_record. Trains and scores on the 13,000 labeled
images at 96 pixels. The stem is the standard one, as in NCC, whose setting the paper follows: it is
changed for CIFAR alone. Everything else is as in nrcc_cifar10; intended for one GPU or a TPU slice.
"""

from cluster_jax.core.config import derived

DATA, NETWORK = {"name": "stl10", "split": "train+test"}, {"stem": "imagenet"}
get_config = derived("nrcc_cifar10", data=DATA, augment={"size": 96}, network=NETWORK)
