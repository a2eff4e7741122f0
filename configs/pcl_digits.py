"""PCL on scikit-learn's digits, no download.

    python -m cluster_jax.main --config=configs/pcl_digits.py

Takes a few minutes on 2 CPU cores. No paper uses this data set, so there is no published result to
compare with. Network, augmentation and number of steps are those of `nrcc_digits`, which were tuned
on the labels of the digits; queue, tau and decay are those of `moco_digits`. PCL + NRCC is
--config.nrcc.weight=0.5.

From the paper and its code: tau 0.2, a tenth of the training without prototypes, five starts of
k-means, and one prototype for 51, 26 and 13 images (25,000, 50,000 and 100,000 on ImageNet), which
are 35, 70 and 140 here. Clusters are updated every 5 epochs of 7 steps, as in `ncc_digits`; the
paper's epoch has 5,000 steps. Its SGD, 200 epochs and EMA 0.999 are for ImageNet.
"""

from cluster_jax.core.config import derived

METHOD = {"name": "pcl", "temperature": 0.2, "queue": 768, "decay": 0.99, "final_decay": 1.0}
METHOD |= {"n_prototypes": (35, 70, 140), "weight": 1.0, "update_every": "5 epochs"}
get_config = derived("moco_digits", method={**METHOD, "n_init": 5, "warmup": "150 steps"})
