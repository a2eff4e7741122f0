"""Kernel-InfoNCE on features of images: the simple sum of a Laplacian and a Gaussian kernel.

    python -m cluster_jax.main --config=configs/kernel_infonce_features.py --config.data.dir=x.npz

See `simclr_features` for the data, the views and the head; the method is that of
`kernel_infonce_digits`.
"""

from cluster_jax.core.config import derived

get_config = derived("simclr_features", method={"like": "kernel_infonce_digits"})
