"""NCL on CIFAR-100: NCL Table 4 (ACC 0.866 on the 20 novel classes, their number given).

    python -m cluster_jax.main --config=configs/ncl_cifar100.py --config.data.dir=DIR

As `ncl_cifar10`, with the first 80 classes labelled, omega 50 with a ramp of 150 epochs, and k_1 =
|M| / C^u / 2 = 51.
"""

from cluster_jax import settings


def get_config():
    """The config."""
    config = settings.load("ncl_cifar10")
    config.data.name = "cifar100"
    config.novel.classes = 80
    config.method.update(classes=20, ramp="150 epochs", coefficient=50.0, neighbours=51)
    config.eval.kmeans.k = 20
    return config
