"""NCL on CIFAR-100: NCL Table 4 (ACC 0.866 on the 20 novel classes, their number given).

    python -m cluster_jax.main --config=configs/ncl_cifar100.py --config.data.dir=DIR

As `ncl_cifar10`, with the first 80 classes labeled, omega 50 with a ramp of 150 epochs, and k_1 =
|M| / C^u / 2 = 51, where the paper's queue gives 50.
"""

from cluster_jax.core.config import derived

METHOD = {"n_classes": 20, "ramp": "150 epochs", "consistency_weight": 50.0, "neighbors": 51}
DATA, NOVEL, EVAL = {"name": "cifar100"}, {"classes": 80}, {"kmeans": {"n_clusters": 20}}
get_config = derived("ncl_cifar10", data=DATA, novel=NOVEL, method=METHOD, eval=EVAL)
