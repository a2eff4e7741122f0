"""NCC on features of images; the number of clusters is given.

    python -m cluster_jax.main --config=configs/ncc_features.py --config.data.dir=x.npz
        --config.method.clusters=10

See `simclr_features` for the data, the views and the head; method, warm-up and moving average are
those of `ncc_digits`. Training took 103 to 159 s on one busy
CPU core for 1,500 to 10,000 rows of Lite0's features.
"""

from ml_collections import ConfigDict

from cluster_jax.core.config import load_config


def get_config():
    """The config."""
    config = load_config("simclr_features")
    config.network.predictor = ConfigDict({"hidden": 512, "init_std": None})
    config.method = load_config("ncc_digits").method
    config.nrcc.branch = "target"
    return config
