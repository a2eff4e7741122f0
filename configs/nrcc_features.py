"""SimCLR + NRCC on features of images: the sampled negative is a vector.

    python -m cluster_jax.main --config=configs/nrcc_features.py --config.data.dir=x.npz

See `simclr_features` for the data, the views and the head. SGHMC moves the features, scaled to a
root mean square of one as pixels are standardized, with the paper's constants; lambda and tau are
those of `nrcc_digits`.
"""

from cluster_jax.core.config import derived

get_config = derived("simclr_features", nrcc={"weight": 0.5})
