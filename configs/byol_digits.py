"""BYOL on scikit-learn's digits, no download.

    python -m cluster_jax.main --config=configs/byol_digits.py

Takes a few minutes on 2 CPU cores. No paper uses this data set, so there is no published result to
compare with. Network, augmentation and number of steps are those of `nrcc_digits`, which were tuned
on the labels of the digits. BYOL + NRCC is --config.nrcc.weight=0.5.

The decay of the moving average starts at 0.9 instead of 0.996, which the papers use for a hundred
times as many steps. It was chosen on the labels: 0.99 is worse.
"""

from cluster_jax.core.config import derived

METHOD = {"name": "byol", "decay": 0.9, "final_decay": 1.0}
NETWORK = {"predictor": {"hidden": 256, "init_std": None}}
NRCC = {"weight": 0.0, "branch": "target"}
get_config = derived("nrcc_digits", method=METHOD, network=NETWORK, nrcc=NRCC)
