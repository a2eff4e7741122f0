"""Kernel-InfoNCE on scikit-learn's digits, no download: the simple sum of two kernels.

    python -m cluster_jax.main --config=configs/kernel_infonce_digits.py

Takes a few minutes on 2 CPU cores. The paper does not use this data set, so there is no published
result to compare with. Network, augmentation and number of steps are those of `nrcc_digits`, which
were tuned on the labels of the digits.

From the paper: the kernel of section 5.2, Laplacian plus Gaussian. Its temperatures were found by a
search on labels and are not published; a Gaussian of 1.0 is SimCLR's tau of 0.5, as in
`nrcc_digits`. For a single kernel, write a config with gammas=(1.0,), temperatures=(0.5,),
mixture=None, weight=None; MoCo's form is queue=768, decay=0.99, final_decay=1.0.
"""

from typing import Any

from ml_collections.config_dict import placeholder

from cluster_jax.core.config import derived

METHOD: dict[str, Any] = {"name": "kernel_infonce"}
METHOD |= {"gammas": (1.0, 2.0), "temperatures": (0.5, 1.0)}
METHOD |= {"mixture": "kernel", "weight": 0.5, "halves": False, "queue": placeholder(int)}
METHOD |= {"decay": placeholder(float), "final_decay": placeholder(float)}
get_config = derived("nrcc_digits", method=METHOD, nrcc={"weight": 0.0})
