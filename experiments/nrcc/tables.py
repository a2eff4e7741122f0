"""What the rows of NRCC's tables train; rows and printed numbers are in `tables.txt`."""

from experiments.registry import Variant, settings

ALL = {"data.split": "train+test"}
SETTINGS = settings("nrcc")
WITHOUT, AUGMENT = {"nrcc.weight": 0.0}, {"nrcc.sampler": "augment"}
NRCC = {"nrcc.weight": 0.5}  # in the digits configs that have none


def _infonce(**changes: dict) -> Variant:
    return Variant("nrcc_digits", "nrcc_cifar10", large=SETTINGS["infonce"], **changes)


def _byol(**changes: dict) -> Variant:
    return Variant("byol_digits", "nrcc_cifar10", large=ALL, **changes)


def _byol_nrcc(**changes: object) -> Variant:
    return _byol(
        small=NRCC, changes={f"nrcc.{k.replace('__', '.')}": v for k, v in changes.items()}
    )


VARIANTS = {
    "infonce": _infonce(changes=WITHOUT),
    "infonce+augment": _infonce(changes=AUGMENT),
    "infonce+nrcc": _infonce(),
    "byol": _byol(changes=WITHOUT),
    "byol+augment": _byol(changes=AUGMENT, small=NRCC),
    "byol+nrcc": _byol(small=NRCC),
    "simsiam": Variant("simsiam_digits", "nrcc_cifar10", WITHOUT, large=SETTINGS["simsiam"]),
    "simsiam+nrcc": Variant("simsiam_digits", "nrcc_cifar10", {}, NRCC, SETTINGS["simsiam"]),
    "barlow": Variant("barlow_digits", "nrcc_cifar10", WITHOUT, large=SETTINGS["barlow"]),
    "barlow+nrcc": Variant("barlow_digits", "nrcc_cifar10", {}, NRCC, SETTINGS["barlow"]),
    "hmc": _byol_nrcc(sampler="hmc"),
    "hmc 3": _byol_nrcc(sampler="hmc", hmc__iterations=3),
    "mc": _byol_nrcc(sampler="monte_carlo"),
    "mc 13": _byol_nrcc(sampler="monte_carlo", monte_carlo__iterations=13),
    "noise": _byol_nrcc(sampler="noise"),
    "normalized": _byol(changes=SETTINGS["normalized"], small=NRCC),
    "online": _byol_nrcc(branch="online"),
    "target_predictor": _byol_nrcc(branch="target_predictor"),
    "imagenet": Variant("byol_digits", "nrcc_imagenet", small=NRCC),
    "long tail": Variant(missing="a long tail cannot be drawn by a config yet"),
    "dogs": Variant(missing="no run of nrcc_imagenet_dogs or nrcc_imagenet_dogs_vit yet"),
    "views": Variant(missing="distances of views in the embedding are not measured yet"),
}
