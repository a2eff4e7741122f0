"""CueCo on scikit-learn's digits, no download.

    python -m cluster_jax.main --config=configs/cueco_digits.py

Takes a few minutes on 2 CPU cores. No paper uses this data set, so there is no published result to
compare with. Network, augmentation and number of steps are those of `nrcc_digits`, which were tuned
on the labels of the digits. The number of clusters, 10, is given, as in the paper. The queue of 768
keys, three batches, is less than half of the 1,797 images; the paper's queue has 16,384 keys.
"""

from cluster_jax.core.config import derived

get_config = derived("byol_digits", method={"like": "cueco_cifar10", "queue": 768, "decay": 0.99})
