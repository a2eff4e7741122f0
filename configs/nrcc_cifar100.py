"""BYOL + NRCC on CIFAR-100: no published result is certain to use 100 classes.

    python -m cluster_jax.main --config=configs/nrcc_cifar100.py --config.data.dir=DIR

DIR contains the data set, prepared by TFDS as array_record. Trains and scores on all 60,000 images.
Everything else is as in nrcc_cifar10; intended for one GPU or a TPU slice.
"""

from cluster_jax.core.config import derived

get_config = derived("nrcc_cifar10", data={"name": "cifar100", "split": "train+test"})
