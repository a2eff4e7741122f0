"""NCC on scikit-learn's digits, no download.

    python -m cluster_jax.main --config=configs/ncc_digits.py

Takes a few minutes on 2 CPU cores. No paper uses this data set, so there is no published result to
compare with. Network, augmentation and number of steps are those of `nrcc_digits`, which were tuned
on the labels of the digits. The number of clusters, 10, is given to the E-step, as in the paper.
The decay of the moving average starts at 0.9 as in `byol_digits`. NCC + NRCC is
--config.nrcc.weight=0.5.
"""

from cluster_jax.core.config import derived

METHOD = {"like": "ncc_cifar10", "warmup": "300 steps", "update_every": "5 epochs"}
get_config = derived("byol_digits", method={**METHOD, "decay": 0.9, "final_decay": 1.0})
