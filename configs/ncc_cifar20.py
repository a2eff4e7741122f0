"""NCC on CIFAR-100 with its 20 superclasses: NCC Table 2 (ACC 0.614).

    python -m cluster_jax.main --config=configs/ncc_cifar20.py --config.data.dir=DIR

DIR contains the data set, prepared by TFDS as array_record. Trains and scores on all 60,000 images.
Everything else is as in ncc_cifar10; intended for one GPU or a TPU slice.

The EMA is constant, as in the paper. The authors' configurations of this set and of ImageNet-Dogs
raise it from 0.996 to 1 by a cosine, which is --config.method.final_decay=1.
"""

from cluster_jax.core.config import derived

get_config = derived("ncc_cifar100", data={"label": "coarse_label"}, method={"n_clusters": 20})
