"""NCC's tables and figures: rows, runs, and printed numbers."""

from collections.abc import Mapping
from typing import Any

from experiments.registry import Variant, parse

RESNET18 = {"network.name": "resnet18"}  # of all but Tables 2, A1 and ImageNet's
BYOL = {"method": {"name": "byol", "decay": 0.996, "final_decay": 0.996}}
SIMSIAM = {"method": {"name": "simsiam"}}
# The paper prints no setting of its MoCo v2: a guess.
MOCO: dict[str, Any] = {
    "method": {"name": "moco", "temperature": 0.2, "queue": 4096, "decay": 0.99, "final_decay": 0.99},
    "network.predictor": None,
}  # fmt: skip
# CC's settings, which are also those of NCC's code for it; NCC's footnote: CC's own images are larger.
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
PROTOCOL = "ResNet-18 (Tables 2 and A1: ResNet-34), 1,000 epochs of training and test images, k given, 3 runs"
TABLES = parse(
    """
# 2 | 162 | Five sets | NMI ACC ARI | CIFAR-10, CIFAR-20, STL-10, ImageNet-10, ImageNet-Dogs
151 | CC, 224 pixels | cc34 | kmeans | 70.5 79.0 63.7 43.1 42.9 26.6 76.4 85.0 72.6 85.9 89.3 82.2 44.5 42.9 27.4
156 | PCL | pcl34 | kmeans | 80.2 87.4 76.6 52.8 52.6 36.3 71.8 41.0 67.0 84.1 90.7 82.2 44.0 41.2 29.9
157 | BYOL | byol34 | kmeans | 81.7 89.4 79.0 55.9 56.9 39.3 71.3 82.5 65.7 86.6 93.9 87.2 63.5 69.4 54.8
159 | NCC | ncc34 | kmeans | 88.6 94.3 88.4 60.6 61.4 45.1 75.8 86.7 73.7 89.6 95.6 90.6 69.2 74.5 62.7
# 3 | 180 | ImageNet-1k, ResNet-50, 200 epochs | AMI | ImageNet-1k
186 | NCC | imagenet | kmeans | 52.5
# 4 | 202 | Ablation: positive sampling (PS), ProtoCL and its parts | NMI ACC ARI | CIFAR-10, CIFAR-20
207 | MoCo v2 | moco | kmeans | 76.9±0.2 84.9±0.3 72.4±0.5 49.2±0.1 48.0±0.2 32.1±0.0
208 | SimSiam | simsiam | kmeans | 78.8±0.9 86.5±0.8 74.9±1.3 46.6±0.8 47.3±1.1 28.8±1.2
209 | CC | cc | kmeans | 66.1±0.3 74.6±0.3 58.3±0.4 46.4±0.3 45.0±0.1 29.5±0.2
210 | CC + ProtoCL | cc+ | kmeans | 74.3±0.4 83.4±0.5 69.6±1.0 48.3±0.2 49.1±0.2 32.2±0.4
211 | PCL | pcl | kmeans | 77.6±0.1 85.5±0.1 73.4±0.0 50.0±0.3 48.6±0.7 32.7±0.4
212 | BYOL | byol | kmeans | 79.4±1.7 87.8±1.7 76.6±2.8 55.5±0.6 53.9±1.6 37.6±0.9
213 | BYOL + CC | +cc | kmeans | 76.6±3.1 86.3±2.7 73.8±4.7 51.0±2.0 48.9±3.0 33.3±2.9
214 | BYOL + PCL | +pcl | kmeans | 74.4±2.3 85.3±0.9 71.4±1.4 49.7±0.7 46.9±0.7 27.8±1.5
215 | BYOL + PS | ps | kmeans | 79.4±0.9 87.9±0.5 76.4±1.1 57.0±0.0 55.0±0.6 39.8±1.1
216 | BYOL + ProtoCL | protocl | kmeans | 83.4±1.2 90.3±0.9 81.1±1.7 56.6±0.4 55.1±0.5 40.7±1.0
217 | NCC, alignment only | alignment | kmeans | 79.6±0.7 87.8±1.5 76.5±2.1 56.7±0.3 56.6±1.4 39.7±1.1
218 | NCC, uniformity only | uniformity | kmeans | 85.3±0.2 92.1±0.1 84.4±0.3 57.2±0.3 57.3±0.6 41.7±0.5
219 | NCC | ncc | kmeans | 85.1±0.5 91.6±0.4 83.5±0.7 58.2±0.3 57.8±0.2 42.3±0.3
# A1 | 595 | Test images in training or not, image size | NMI ACC ARI | CIFAR-10, CIFAR-20
599 | training and test images | ncc34 | kmeans | 88.6±1.0 94.3±0.6 88.4±1.1 60.6±0.3 61.4±1.1 45.1±0.1
599 | without test images | ncc34 train | kmeans | 88.3±0.2 94.2±0.2 88.1±0.3 61.2±0.9 61.5±0.9 45.9±0.5
601 | ImageNet-10 and -Dogs, 96 pixels | subset | kmeans | 89.6±0.2 95.6±0.0 90.6±0.1 69.2±0.3 74.5±0.1 62.7±0.1
601 | ImageNet-10 and -Dogs, 224 pixels | subset | kmeans | 90.8±0.4 96.2±0.1 91.8±0.3 73.7±0.2 77.5±0.1 67.5±0.1
# A2 | 603 | Subsets of ImageNet, ResNet-50, 300 epochs, scored on the validation images | NMI ARI | ImageNet-50, ImageNet-100, ImageNet-200
610 | NCC | subset | kmeans | 82.8 69.1 83.5 63.5 80.6 53.8
# A3 | 612 | Tiny-ImageNet, ResNet-18, 96 pixels | NMI ACC ARI | TinyImageNet
625 | CC | subset | kmeans | 34.0 14.0 7.1
627 | NCC | subset | kmeans | 40.5 25.6 14.3
# A4 | 629 | Long tails, N_min/N_max = 0.1 | NMI ACC ARI | CIFAR-10-LT, CIFAR-20-LT
633 | MoCo v2 | long tail | kmeans | 46.7±0.1 33.4±0.3 27.7±0.0 31.2±0.3 28.2±0.2 16.1±0.3
634 | BYOL | long tail | kmeans | 51.6±1.0 41.3±0.4 30.8±0.4 41.9±0.4 34.6±0.5 22.3±1.0
635 | NCC | long tail | kmeans | 55.3±0.4 43.9±0.1 36.3±0.3 44.6±0.2 39.0±0.7 27.3±0.2
636 | NCC without ProtoCL | long tail | kmeans | 53.1±0.7 42.7±0.4 31.6±0.8 43.4±0.8 35.1±0.6 24.0±0.1
# A5 | 638 | Backbones (ImageNet-10 and -Dogs left out) | NMI ACC ARI | CIFAR-10, CIFAR-20
641 | MoCo, ResNet-18 | moco | kmeans | 76.9±0.2 84.9±0.3 72.4±0.5 49.2±0.1 48.0±0.2 32.1±0.0
641 | BYOL, ResNet-18 | byol | kmeans | 79.4±1.7 87.8±1.7 76.6±2.8 55.5±0.6 53.9±1.6 37.6±0.9
641 | NCC, ResNet-18 | ncc | kmeans | 85.1±0.5 91.6±0.4 83.5±0.7 58.2±0.3 57.8±0.2 42.3±0.3
642 | BYOL, ResNet-34 | byol34 | kmeans | 81.7±1.0 89.4±0.6 79.0±1.0 55.9±0.3 56.9±1.8 39.3±0.2
642 | NCC, ResNet-34 | ncc34 | kmeans | 88.6±1.0 94.3±0.6 88.4±1.1 60.6±0.3 61.4±1.1 45.1±0.1
# figureA2 | 559 | Epochs r between two E-steps | NMI ACC ARI | CIFAR-10, CIFAR-20
* kmeans | r 1 | r 2 | r 4 | r 8 | r 16
# figureA3 | 563 | sigma of positive sampling, no ProtoCL | NMI ACC ARI | CIFAR-10, CIFAR-20
* kmeans | sigma 0 | sigma 0.0001 | sigma 0.001 | sigma 0.01 | sigma 0.1
# figureA4 | 567 | Weight of ProtoCL | NMI ACC ARI | CIFAR-10, CIFAR-20
* kmeans | weight 0.01 | weight 0.05 | weight 0.1 | weight 0.5 | weight 1
# figureA6 | 575 | Number of clusters K, also of k-means | NMI | CIFAR-10, CIFAR-20
* kmeans | byol k 10 | byol k 20 | byol k 50 | ncc k 10 | ncc k 20 | ncc k 50
# figureA7 | 579 | Uniformity | NMI std | CIFAR-10, CIFAR-20
* kmeans | byol | ncc
# figureA8 | 589 | Size of the projection | NMI ACC ARI | CIFAR-10, CIFAR-20
* kmeans | byol out 64 | byol out 128 | byol out 256 | byol out 512 | ncc out 64 | ncc out 128 | ncc out 256 | ncc out 512
# figureA9 | 593 | Augmentation left out (on the digits shift, noise, and shear in place of crop, jitter, and grayscale) | NMI ACC ARI | CIFAR-10, CIFAR-20
* kmeans | byol | byol - crop | byol - jitter | byol - grayscale | ncc | ncc - crop | ncc - jitter | ncc - grayscale
""",
    VARIANTS,
    PROTOCOL,
)
