"""CueCo's tables: rows, runs, and printed numbers."""

from experiments.registry import Variant, parse

# MoCo v2 and SimCLR "with the same hyper-parameters"; MoCo's queue and tau are CueCo's.
MOCO = {
    "method": {"name": "moco", "temperature": 0.2, "queue": 16_384, "decay": 0.996, "final_decay": 1.0},
    "network.predictor": None,
}  # fmt: skip
SIMCLR = {
    "method": {"name": "simclr", "temperature": 0.2, "positive_in_denominator": True},
    "network.predictor": None,
}
# tau of Table 3 is the config's 0.2.
SIMCLR_DIGITS = {"nrcc.weight": 0.0, "method.positive_in_denominator": True}


def _terms(**weights: float) -> Variant:
    changes = {f"method.weights.{term}": weight for term, weight in weights.items()}
    return Variant("cueco_digits", "cueco_cifar10", changes)


VARIANTS = {
    "moco": Variant("moco_digits", "cueco_cifar10", large=MOCO),
    "simclr": Variant("nrcc_digits", "cueco_cifar10", small=SIMCLR_DIGITS, large=SIMCLR),
    "byol": Variant("byol_digits"),
    "simsiam": Variant("simsiam_digits"),
    "barlow": Variant("barlow_digits"),
    "cueco": _terms(),
    "1": _terms(centroid=0.0, variance=0.0),
    "12": _terms(variance=0.0),
    "13": _terms(centroid=0.0),
}
PROTOCOL = "ResNet-18, 1,000 epochs, one run; probe of 100 epochs, scored on the test images"
TABLES = parse(
    """
# 1 | 92 | Linear probe (ImageNet-100 and top-5 left out) | top-1 | CIFAR-10, CIFAR-100
95 | BYOL | byol | - | 92.61 70.18
97 | SimSiam | simsiam | - | 90.51 65.86
98 | MoCo-v2 | moco | - | 92.94 69.54
103 | SimCLR | simclr | - | 90.74 65.39
104 | Barlow Twins | barlow | - | 89.57 69.18
105 | CueCo | cueco | - | 91.40 68.56
# 2 | 106 | Clusters | NMI AMI ARI ACC | CIFAR-10, CIFAR-100
109 | MoCo-v2 | moco | kmeans | 60.96 60.88 28.95 63.51 51.77 45.84 9.95 31.72
110 | SimCLR | simclr | kmeans | 69.03 68.98 53.14 74.50 50.75 44.60 11.15 32.17
111 | CueCo | cueco | kmeans | 69.33 69.01 53.87 75.06 52.37 46.31 11.35 33.82
# 3 | 112 | Ablation of the three losses (top-5 left out) | top-1 20-NN 100-NN NMI AMI ARI ACC | CIFAR-100
114 | L1 | 1 | kmeans | 67.9 66.5 66.4 50.5 44.4 8.3 31.1
115 | L1 + L2 | 12 | kmeans | 66.9 63.9 62.4 54.6 48.6 14.9 34.5
116 | L1 + L3 | 13 | kmeans | 68.4 66.7 66.8 51.2 45.1 8.6 32.3
117 | L1 + L2 + L3 | cueco | kmeans | 68.5 66.8 67.0 52.3 46.3 11.3 33.8
""",
    VARIANTS,
    PROTOCOL,
)
