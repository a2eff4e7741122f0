"""CueCo on features of images; the number of clusters is given.

    python -m cluster_jax.main --config=configs/cueco_features.py --config.data.dir=x.npz
        --config.method.clusters=10

See `simclr_features` for the data, the views and the head; the method is that of `cueco_digits`.
The queue of 768 keys wants at least 1,536 rows.
"""

from ml_collections import ConfigDict

from cluster_jax.core.config import load_config


def get_config():
    """The config."""
    config = load_config("simclr_features")
    config.network.predictor = ConfigDict({"hidden": 512, "init_std": None})
    config.method = load_config("cueco_digits").method
    config.nrcc.branch = "target"
    return config
