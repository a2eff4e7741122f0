"""Kernel-InfoNCE on features of images: the simple sum of a Laplacian and a Gaussian kernel.

    python -m cluster_jax.main --config=configs/kernel_infonce_features.py --config.data.dir=x.npz

See `simclr_features` for the data, the views and the head; the method is that of
`kernel_infonce_digits`.
"""

from cluster_jax.core.config import derived, load_config


def get_config():
    """The config."""
    return derived("simclr_features", method=load_config("kernel_infonce_digits").method)
