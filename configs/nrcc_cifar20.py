"""BYOL + NRCC on CIFAR-100 with its 20 superclasses: NRCC Tables 3 to 5.

The tables call the column CIFAR-100, but their results of other methods are those of CIFAR-20.

    python -m cluster_jax.main --config=configs/nrcc_cifar20.py --config.data.dir=DIR

DIR contains the data set, prepared by TFDS as array_record. Trains and scores on all 60,000 images.
Everything else is as in nrcc_cifar10; intended for one GPU or a TPU slice.
"""

from cluster_jax.core.config import derived

get_config = derived("nrcc_cifar100", data={"label": "coarse_label"})
