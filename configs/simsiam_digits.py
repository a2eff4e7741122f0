"""SimSiam on scikit-learn's digits, no download.

    python -m cluster_jax.main --config=configs/simsiam_digits.py

A few minutes on 2 CPU cores. It reproduces no table: no paper uses this set. Network, augmentation
and number of steps are those of `nrcc_digits`, tuned on the labels of this set. SimSiam + NRCC
(NRCC Table 9) is --config.nrcc.weight=0.5.
"""

from ml_collections import ConfigDict

from cluster_jax.core.config import load_config


def get_config():
    """The config."""
    config = load_config("nrcc_digits")
    config.method = ConfigDict({"name": "simsiam"})
    config.network.predictor = ConfigDict({"hidden": 256})
    config.nrcc.weight = 0.0
    return config
