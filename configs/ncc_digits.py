"""NCC on scikit-learn's digits, no download.

    python -m cluster_jax.main --config=configs/ncc_digits.py

A few minutes on 2 CPU cores. It reproduces no table: no paper uses this set. Network, augmentation
and number of steps are those of `nrcc_digits`, tuned on the labels of this set. The number of
clusters, 10, is given to the E-step, as the paper gives it. The moving average starts at 0.9 as in
`byol_digits`. NCC + NRCC is --config.nrcc.weight=0.5.
"""

from ml_collections import ConfigDict

from cluster_jax.core.config import load_config


def get_config():
    """The config."""
    config = load_config("nrcc_digits")
    config.network.predictor = ConfigDict({"hidden": 256})
    config.method = load_config("ncc_cifar10").method
    config.method.update(warmup="300 steps", update_every="5 epochs", decay=0.9, final_decay=1.0)
    config.nrcc.weight = 0.0
    config.nrcc.branch = "target"
    return config
