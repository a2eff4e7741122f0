"""SimSiam on scikit-learn's digits, no download.

    python -m cluster_jax.main --config=configs/simsiam_digits.py

Takes a few minutes on 2 CPU cores. No paper uses this data set, so there is no published result to
compare with. Network, augmentation and number of steps are those of `nrcc_digits`, which were tuned
on the labels of the digits. SimSiam + NRCC (NRCC Table 9) is --config.nrcc.weight=0.5.
"""

from cluster_jax.core.config import derived

get_config = derived("byol_digits", method={"name": "simsiam"}, nrcc={"branch": "online"})
