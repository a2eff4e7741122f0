"""CueCo's tables: what the rows train, and what the paper prints (see `experiments.registry`).

Deviation on ImageNet-100: the standard stem. The paper prints its 3 x 3 stem without max pooling
for all sets, which at 224 pixels has 16 times the activations.
"""

from experiments.registry import Variant, table

NO_PREDICTOR = {"network.predictor": None}
NO_CENTROID, NO_VARIANCE = {"method.weights.centroid": 0.0}, {"method.weights.variance": 0.0}


def peer(digits: str, method: dict, **more: object) -> Variant:
    """A method with CueCo's other settings at full scale."""
    return Variant(f"{digits}_digits", "cueco_cifar10", large={"method": method, **more})


cueco = Variant("cueco_digits", "cueco_cifar10")
# MoCo v2 and SimCLR "with the same hyper-parameters"; MoCo's queue and tau are CueCo's. On the
# digits tau of Table 3 is the config's 0.2.
MOCO = {"temperature": 0.2, "queue": 16_384, "decay": 0.996, "final_decay": 1.0}
moco = peer("moco", {"name": "moco", **MOCO}, **NO_PREDICTOR)
SIMCLR = {"name": "simclr", "temperature": 0.2, "positive_in_denominator": True}
simclr = peer("nrcc", SIMCLR, **NO_PREDICTOR)
simclr = simclr.but(small={"nrcc.weight": 0.0, "method.positive_in_denominator": True})
# Table 1 quotes solo-learn, whose settings the paper does not print: CueCo's stand in.
byol = peer("byol", {"name": "byol", "decay": 0.996, "final_decay": 1.0})
simsiam = peer("simsiam", {"name": "simsiam"})
barlow = peer("barlow", {"name": "barlow", "off_diagonal": 0.005, "scale": 1.0}, **NO_PREDICTOR)

PROTOCOL = "ResNet-18, 1,000 epochs, one run; probe of 100 epochs, scored on the test images"
# fmt: off
TABLES = {
    "1": table(92, "Linear probe; the peers' figures are solo-learn's", "top-1 top-5", "CIFAR-10, CIFAR-100, ImageNet-100", [
        ("BYOL", byol, "-", 95, "92.61 99.82 70.18 91.36 80.09 94.99"),
        ("SimSiam", simsiam, "-", 97, "90.51 99.72 65.86 89.48 77.04 94.02"),
        ("MoCo-v2", moco, "-", 98, "92.94 99.79 69.54 91.49 78.20 95.50"),
        ("SimCLR", simclr, "-", 103, "90.74 99.75 65.39 88.58 77.48 93.42"),
        ("Barlow Twins", barlow, "-", 104, "89.57 99.73 69.18 91.19 78.62 94.72"),
        ("CueCo", cueco, "-", 105, "91.40 99.79 68.56 91.05 78.65 94.03"),
    ]),
    "2": table(106, "Clusters", "NMI AMI ARI ACC", "CIFAR-10, CIFAR-100", [
        ("MoCo-v2", moco, "kmeans", 109, "60.96 60.88 28.95 63.51 51.77 45.84 9.95 31.72"),
        ("SimCLR", simclr, "kmeans", 110, "69.03 68.98 53.14 74.50 50.75 44.60 11.15 32.17"),
        ("CueCo", cueco, "kmeans", 111, "69.33 69.01 53.87 75.06 52.37 46.31 11.35 33.82"),
    ]),
    "3": table(112, "Ablation of the three losses", "top-1 top-5 20-NN 100-NN NMI AMI ARI ACC", "CIFAR-100", [
        ("L1", cueco.but({**NO_CENTROID, **NO_VARIANCE}), "kmeans", 114, "67.9 90.7 66.5 66.4 50.5 44.4 8.3 31.1"),
        ("L1 + L2", cueco.but(NO_VARIANCE), "kmeans", 115, "66.9 90.6 63.9 62.4 54.6 48.6 14.9 34.5"),
        ("L1 + L3", cueco.but(NO_CENTROID), "kmeans", 116, "68.4 90.7 66.7 66.8 51.2 45.1 8.6 32.3"),
        ("L1 + L2 + L3", cueco, "kmeans", 117, "68.5 91.0 66.8 67.0 52.3 46.3 11.3 33.8"),
    ]),
}
