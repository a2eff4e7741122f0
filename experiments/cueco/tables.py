"""What the rows of CueCo's tables train; rows and printed numbers are in `tables.txt`."""

from experiments.registry import Variant

# MoCo v2 and SimCLR "with the same hyper-parameters"; MoCo's queue and tau are CueCo's.
MOCO = {
    "method": {
        "name": "moco",
        "temperature": 0.2,
        "queue": 16_384,
        "decay": 0.996,
        "final_decay": 1.0,
    },
    "network.predictor": None,
}
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
