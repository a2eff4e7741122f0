"""NCC on ImageNet-1k: NCC Table 3 (AMI 0.525, number of clusters given).

    python -m cluster_jax.main --config=configs/ncc_imagenet.py --config.data.dir=DIR

The same command on every host of a Cloud TPU pod; data as in nrcc_imagenet. Meant for a pod slice
of 32 chips or more.

From the paper: ResNet-50, 200 epochs, base rate 0.4 for 256 images, weight decay 1e-4, blur, EMA
0.996 to 1 by a cosine (code), 1,000 clusters, tau 0.5, lambda 0.1.
Deviations: both directions of the loss where the paper has one; batch 1024 and 10 epochs of
warm-up as in nrcc_imagenet; crop and jitter as there too, where NCC has SimCLR's; the E-step runs
every 5 epochs, since it embeds all images.
"""

from cluster_jax.core.config import load_config


def get_config():
    """The config."""
    config = load_config("nrcc_imagenet")
    config.method = load_config("ncc_cifar10").method
    config.method.clusters = 1000
    config.method.warmup = "10 epochs"
    config.method.update_every = "5 epochs"
    config.method.final_decay = 1.0
    config.nrcc.weight = 0.0
    return config
