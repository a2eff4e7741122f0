"""CueCo on scikit-learn's digits, no download.

    python -m cluster_jax.main --config=configs/cueco_digits.py

A few minutes on 2 CPU cores. It reproduces no table: no paper uses this set. Network, augmentation
and number of steps are those of `nrcc_digits`, tuned on the labels of this set. The number of
clusters, 10, is given, as the paper gives it. The queue of 768 keys, three batches, is less than
half of the 1,797 images; CueCo's own has 16,384.
"""

from ml_collections import ConfigDict

from cluster_jax.core.config import load_config


def get_config():
    """The config."""
    config = load_config("nrcc_digits")
    config.network.predictor = ConfigDict({"hidden": 256})
    config.method = load_config("cueco_cifar10").method
    config.method.update(queue=768, decay=0.99)
    config.nrcc.weight = 0.0
    config.nrcc.branch = "target"
    return config
