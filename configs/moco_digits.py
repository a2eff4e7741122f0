"""MoCo on scikit-learn's digits, no download.

    python -m cluster_jax.main --config=configs/moco_digits.py

Takes a few minutes on 2 CPU cores. No paper uses this data set, so there is no published result to
compare with. Network, augmentation and number of steps are those of `nrcc_digits`, which were tuned
on the labels of the digits. MoCo + NRCC is --config.nrcc.weight=0.5.

The queue of 768 keys, three batches, is less than half of the 1,797 images. The settings of the
paper are for ImageNet: a queue of 65,536, EMA 0.999, tau 0.2, SGD.
Deviation: BatchNorm of the target network is synchronized over devices. The paper shuffles, which
is --config.network.norm=shuffle --config.network.group=32.
"""

from cluster_jax.core.config import derived

METHOD = {"name": "moco", "temperature": 0.2, "queue": 768, "decay": 0.99, "final_decay": 1.0}
get_config = derived("nrcc_digits", method=METHOD, nrcc={"weight": 0.0, "branch": "target"})
