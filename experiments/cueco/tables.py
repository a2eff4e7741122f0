"""What the rows of CueCo's tables train; rows and printed numbers are in `tables.txt`."""

from experiments.registry import Variant, settings

SETTINGS = settings("cueco")


def _terms(**weights: float) -> Variant:
    changes = {f"method.weights.{term}": weight for term, weight in weights.items()}
    return Variant("cueco_digits", "cueco_cifar10", changes)


VARIANTS = {
    "moco": Variant("moco_digits", "cueco_cifar10", large=SETTINGS["moco"]),
    "simclr": Variant(
        "nrcc_digits", "cueco_cifar10", small=SETTINGS["simclr digits"], large=SETTINGS["simclr"]
    ),
    "byol": Variant("byol_digits"),
    "simsiam": Variant("simsiam_digits"),
    "barlow": Variant("barlow_digits"),
    "cueco": _terms(),
    "1": _terms(centroid=0.0, variance=0.0),
    "12": _terms(variance=0.0),
    "13": _terms(centroid=0.0),
}
