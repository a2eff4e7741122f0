"""What the rows of NCC's tables train; rows and printed numbers are in `tables.txt`."""

from collections.abc import Mapping
from typing import Any

from experiments.registry import Variant, settings

RESNET18 = {"network.name": "resnet18"}  # of all but Tables 2, A1 and ImageNet's
SETTINGS = settings("ncc")


def _other(method: str, depth: Mapping[str, Any] = RESNET18) -> Variant:
    return Variant(f"{method}_digits", "ncc_cifar10", large={**SETTINGS[method], **depth})


def _ncc(**method: Any) -> Variant:
    changes = {f"method.{key}": value for key, value in method.items()}
    return Variant("ncc_digits", "ncc_cifar10", changes, large=RESNET18)


def _clusters(variant: Variant, k: int) -> Variant:
    changes = {"eval.kmeans.k": k}
    if variant.digits == "ncc_digits":
        changes["method.clusters"] = k
    return variant._replace(changes={**variant.changes, **changes})


def _augmented(variant: Variant, small: Mapping[str, Any], large: Mapping[str, Any]) -> Variant:
    return variant._replace(small=small, large={**variant.large, **large})


VARIANTS = {
    "moco": _other("moco"),
    "simsiam": _other("simsiam"),
    "byol": _other("byol"),
    "byol34": _other("byol", {}),
    "cc": _other("cc"),
    "cc34": _other("cc", SETTINGS["large images"]),
    "pcl": _other("pcl"),
    "pcl34": _other("pcl", {}),
    "+cc": Variant(missing="BYOL + CC is not implemented"),
    "+pcl": Variant(missing="BYOL + PCL is not implemented"),
    "cc+": Variant(missing="CC + ProtoCL is not implemented"),
    "ncc": _ncc(),
    "ncc34": Variant("ncc_digits", "ncc_cifar10"),
    "ncc34 train": Variant("ncc_digits", "ncc_cifar10", large={"data.split": "train"}),
    "ps": _ncc(weight=0.0),
    "protocl": _ncc(sigma=0.0),
    "alignment": _ncc(part="alignment"),
    "uniformity": _ncc(part="uniformity"),
    "imagenet": Variant("ncc_digits", "ncc_imagenet"),
    "subset": Variant(missing="there is no config of this subset of ImageNet yet"),
    "long tail": Variant(missing="a long tail cannot be drawn by a config yet"),
}
R, SIGMA = (1, 2, 4, 8, 16), (0.0, 1e-4, 1e-3, 1e-2, 1e-1)
WEIGHT, OUT, K = (0.01, 0.05, 0.1, 0.5, 1.0), (64, 128, 256, 512), (10, 20, 50)
VARIANTS |= {f"r {r}": _ncc(update_every=f"{r} epochs") for r in R}
VARIANTS |= {f"sigma {s:g}": _ncc(sigma=s, weight=0.0) for s in SIGMA}
VARIANTS |= {f"weight {w:g}": _ncc(weight=w) for w in WEIGHT}
# What is left out of the digits' augmentation, and of the paper's.
LESS = {
    "crop": ({"augment.affine.shift": 0.0}, {"augment.crop": None}),
    "jitter": ({"augment.noise": 0.0}, {"augment.jitter.probability": 0.0}),
    "grayscale": ({"augment.affine.shear": 0.0}, {"augment.grayscale": 0.0}),
}
for _name in ("byol", "ncc"):
    VARIANTS |= {f"{_name} k {k}": _clusters(VARIANTS[_name], k) for k in K}
    for _out in OUT:
        _size = {"network.projector.out": _out}
        VARIANTS[f"{_name} out {_out}"] = VARIANTS[_name]._replace(changes=_size)
    for _less, _changes in LESS.items():
        VARIANTS[f"{_name} - {_less}"] = _augmented(VARIANTS[_name], *_changes)
