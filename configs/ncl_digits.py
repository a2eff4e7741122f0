"""NCL on scikit-learn's digits, no download: 0 to 4 are labeled, 5 to 9 are novel.

    python -m cluster_jax.main --config=configs/ncl_digits.py

Takes little more than a minute on a CPU core: rotation prediction on all images, cross-entropy on
the labeled ones, discovery. A fifth of every digit is held out for the test; the number of novel
classes, 5, is given. The paper does not use this data set, so there is no published result to
compare with. Network and augmentation are those of `nrcc_digits`, which were tuned on the labels of
the digits. omega, tau, alpha, N and mu are the paper's, and k_1 is a fifth of half the queue as
there. The queues of 256 entries are smaller than half of the labeled and of the unlabeled images.

lambda is 0.6 instead of 0.95: at 0.95 only 0.03 % of the pairs of these features count as similar
(after stage 2, seed 0), and the novel head learns nothing; at 0.6 it is 18 %, about one in C^u.
The share needs no labels: it is `similar` in metrics.jsonl. The learning rate, the durations, the
ramp, the queues and HNG's 64 negatives were set once from the numbers of images, and not tuned.

Stages 2 and 3 train the last convolution and the dense layer, as the paper trains the last residual
block.
"""

from ml_collections import ConfigDict

from cluster_jax.core.config import derived

METHOD = {"like": "ncl_cifar10", "threshold": 0.6, "queue": 256, "neighbors": 25}
SUPERVISED = {"labeled_batch_size": 128, "duration": "60 epochs"}
SUPERVISED = ConfigDict({"method": {"name": "supervised"}, "train": SUPERVISED})
ROTATION = {"train": {"duration": "30 epochs"}}

get_config = derived(
    "nrcc_digits",
    note="Network and augmentation were tuned on the labels of the digits.",
    novel={"classes": 5, "holdout": 0.2},
    network={"projector": None, "frozen": "conv3"},
    nrcc={"weight": 0.0},
    method={**METHOD, "ramp": "20 epochs", "hng": {"count": 64}},
    optimizer={"learning_rate": 1e-3, "warmup": "2 epochs"},
    train={"batch_size": 128, "labeled_batch_size": 64, "duration": "100 epochs"},
    eval={"features": "backbone", "kmeans": {"n_clusters": 5}},
    stages={"like": "ncl_cifar10", "rotation": ROTATION, "supervised": SUPERVISED},
)
