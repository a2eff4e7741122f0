r"""CueCo on features of images; the number of clusters is given.

    python -m cluster_jax.main --config=configs/cueco_features.py --config.data.dir=x.npz \
        --config.method.n_clusters=10

See `simclr_features` for the data, the views and the head; the method is that of `cueco_digits`.
The queue of 768 keys wants at least 1,536 rows.
"""

from cluster_jax.core.config import derived

get_config = derived("ncc_features", method={"like": "cueco_digits"})
