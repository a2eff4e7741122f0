"""NCC on CIFAR-10: NCC Table 2 (ACC 0.943, number of clusters given).

    python -m cluster_jax.main --config=configs/ncc_cifar10.py --config.data.dir=DIR

DIR contains the data set, prepared by TFDS as array_record. Intended for one GPU or a TPU slice.

From the paper: ResNet-34 with CIFAR stem, 1000 epochs of all 60,000 images, batch 256, SGD with
rate 0.05 x batch / 256 and ten times that for the predictor, 50 epochs of warm-up without clusters,
cosine, tau 0.5, lambda 0.1, sigma 0.001, an E-step every epoch, EMA 0.996, SimCLR's crop, jitter,
gray and flip without blur; the feature extractor, whose rows are clustered, is the backbone with
the projector (Appendix C), and are clustered by k-means, spherical as in the E-step. From SimCLR:
crops of at least 0.08 of the area, jitter of strength 0.5, as on CIFAR-10 there. From NCC's
official code: weight decay 5e-4, a predictor that starts from N(0, 0.01^2): behind its BatchNorm,
ten times the rate then acts on much smaller weights.
Deviations, each with the value of the paper:
  - network.norm, BatchNorm of both networks over all devices: none is synchronized, and the target
    network shuffles, on four GPUs (Appendix C): "shuffle" with network.group=64.
  - method.n_init, the best of five runs of k-means in the E-step: the number is not printed.
  - method.warm_start, one of these runs starts from the last centers, so that an E-step never
    lowers its sum: k-means++ alone, --config.method.warm_start=False.
  - Biases and BatchNorm do not decay; the official configurations exempt them for ImageNet only.
"""

from cluster_jax.core.config import derived

METHOD = {"name": "ncc", "n_clusters": 10, "weight": 0.1, "temperature": 0.5, "sigma": 0.001}
METHOD |= {"warmup": "50 epochs", "update_every": "1 epoch", "n_init": 5, "warm_start": True}
METHOD |= {"part": "whole", "decay": 0.996, "final_decay": 0.996}

get_config = derived(
    "nrcc_cifar10",
    data={"split": "train+test"},
    augment={"crop": {"scale": (0.08, 1.0)}, "jitter": {"saturation": 0.4}},
    method=METHOD,
    nrcc={"weight": 0.0},
    eval={"features": "projection", "kmeans": {"metric": "spherical"}},
)
