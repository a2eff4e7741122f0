"""What the rows of NCC's tables train; rows and printed numbers are in `tables.txt`."""

from collections.abc import Mapping
from typing import Any

from experiments.registry import Variant

RESNET18 = {"network.name": "resnet18"}  # of all but Tables 2, A1 and ImageNet's
BYOL = {"method": {"name": "byol", "decay": 0.996, "final_decay": 0.996}}
SIMSIAM = {"method": {"name": "simsiam"}}
# The paper prints no setting of its MoCo v2: a guess.
MOCO: dict[str, Any] = {
    "method": {
        "name": "moco",
        "temperature": 0.2,
        "queue": 4096,
        "decay": 0.99,
        "final_decay": 0.99,
    },
    "network.predictor": None,
}
# CC's settings, also those of NCC's code for it; NCC's footnote: CC's own images are larger.
CC = {
    "method": {"name": "cc", "clusters": 10, "temperature": 0.5, "cluster_temperature": 1.0},
    "network.projector": {"hidden": 512, "out": 128},
    "network.predictor": None,
    "optimizer.name": "adamw",
    "optimizer.learning_rate": 3e-4,
    "optimizer.base_batch_size": None,
    "optimizer.weight_decay": 0.0,
    "optimizer.predictor_lr_multiplier": 1.0,
    "optimizer.warmup": "0 steps",
    "optimizer.lr_decay_every": "1000 epochs",  # a constant rate
}  # fmt: skip
LARGE_IMAGES = {"data.image_size": 224, "augment.size": 224, "network.stem": "imagenet"}
# MoCo's, with the numbers of prototypes of NCC's code; n_init as in PCL's code.
PCL = {
    **MOCO,
    "method": {
        **MOCO["method"], "name": "pcl", "prototypes": (250, 500, 1000), "warmup": "50 epochs",
        "update_every": "1 epoch", "n_init": 5,
    },
}  # fmt: skip


def _other(config: str, large: Mapping[str, Any], depth: Mapping[str, Any] = RESNET18) -> Variant:
    return Variant(config, "ncc_cifar10", large={**large, **depth})


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
    "moco": _other("moco_digits", MOCO),
    "simsiam": _other("simsiam_digits", SIMSIAM),
    "byol": _other("byol_digits", BYOL),
    "byol34": _other("byol_digits", BYOL, {}),
    "cc": _other("cc_digits", CC),
    "cc34": _other("cc_digits", CC, LARGE_IMAGES),
    "pcl": _other("pcl_digits", PCL),
    "pcl34": _other("pcl_digits", PCL, {}),
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
