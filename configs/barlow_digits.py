"""Barlow Twins on scikit-learn's digits, no download.

    python -m cluster_jax.main --config=configs/barlow_digits.py

Takes a few minutes on 2 CPU cores. No paper uses this data set, so there is no published result to
compare with. Network, augmentation and number of steps are those of `nrcc_digits`, which were tuned
on the labels of the digits. Barlow Twins + NRCC (NRCC Table 9) is --config.nrcc.weight=0.5.

From the paper: lambda 0.005. Its projector (three layers of 8192) and LARS are for ImageNet.
"""

from cluster_jax.core.config import derived

METHOD = {"name": "barlow", "off_diagonal": 0.005, "scale": 1.0}
get_config = derived("nrcc_digits", method=METHOD, nrcc={"weight": 0.0})
