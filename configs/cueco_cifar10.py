"""CueCo on CIFAR-10: CueCo Table 2 (ACC 0.751, number of clusters given).

    python -m cluster_jax.main --config=configs/cueco_cifar10.py --config.data.dir=DIR

DIR contains the data set, prepared by TFDS as array_record. Intended for one GPU or a TPU slice.

From the paper: ResNet-18 with CIFAR stem, heads of 4096 and 256, 1000 epochs, base rate 0.3 with a
cosine to 0, momentum 0.9, weight decay 1e-4, queue of 16,384 keys, tau 0.2, weights 1, 0.1 and
0.01, 313 warm-up steps without clusters, k-means every 1000 steps, EMA 0.996 to 1, BYOL's
augmentation; a linear probe of 100 epochs, rate 3.0, batch 256, weight decay 1e-6, on the test set.
Guesses where the paper gives no value: batch 256 with the rate scaled by it, 10 clusters (the
number of classes), 0.99 for both decays of the clusters, 10 epochs of warm-up of the rate, CIFAR's
training split, the loss in both directions, heads that end without BatchNorm ("batch normalization"
is printed, not where), the start of the predictor N(0, 0.01^2), 5 runs of k-means, and the cluster
of an image as that of its key ((3) prints the query, (2), (7) and (8) have keys).
Deviation: biases and BatchNorm do not decay; the paper's weight decay names no exception.
Not comparable: the probe trains on rows scaled to a common length, so that its rate of 3.0 is not
the paper's, and on views without augmentation.
"""

from ml_collections import ConfigDict

from cluster_jax.core.config import derived

# As in BYOL: view b is rarely blurred and sometimes solarized.
BLUR = ConfigDict({"probability": (1.0, 0.1), "sigma": (0.1, 2.0), "kernel": 3})
SOLARIZE = ConfigDict({"probability": (0.0, 0.2), "threshold": 0.5})
METHOD = {"name": "cueco", "n_clusters": 10, "temperature": 0.2, "queue": 16_384}
METHOD |= {"warmup": "313 steps", "update_every": "1000 steps", "n_init": 5, "assign_by": "key"}
METHOD |= {"decay": 0.996, "final_decay": 1.0, "centroid_decay": 0.99, "variance_decay": 0.99}
METHOD |= {"weights": {"instance": 1.0, "centroid": 0.1, "variance": 0.01}}
OPTIMIZER = {"learning_rate": 0.3, "weight_decay": 1e-4, "warmup": "10 epochs"}

get_config = derived(
    "nrcc_cifar10",
    novel={"test_split": "test"},
    augment={"crop": {"scale": (0.08, 1.0)}, "blur": BLUR, "solarize": SOLARIZE},
    network={"name": "resnet18"},
    method=METHOD,
    nrcc={"weight": 0.0},
    optimizer={**OPTIMIZER, "predictor_lr_multiplier": 1.0},
    eval={"linear_probe": {"learning_rate": 3.0}},
)
