r"""NCC on features of images; the number of clusters is given.

    python -m cluster_jax.main --config=configs/ncc_features.py --config.data.dir=x.npz \
        --config.method.n_clusters=10

See `simclr_features` for the data, the views and the head; method, warm-up and moving average are
those of `ncc_digits`. Training took 103 to 159 s on one busy
CPU core for 1,500 to 10,000 rows of Lite0's features.
"""

from cluster_jax.core.config import derived

NETWORK = {"predictor": {"hidden": 512, "init_std": None}}
METHOD, NRCC = {"like": "ncc_digits"}, {"branch": "target"}
get_config = derived("simclr_features", network=NETWORK, method=METHOD, nrcc=NRCC)
