"""NCC's tables: what the rows train, and what the paper prints (see `experiments.registry`).

The digits have no counterpart of subsets of ImageNet and of other backbones. All but Tables 2, A1
and ImageNet's have a ResNet-18.
"""

from experiments.registry import Variant, curve, swept, table

R18, R50 = {"network.name": "resnet18"}, {"network.name": "resnet50"}
NO_PREDICTOR = {"network.predictor": None}

ncc34 = Variant("ncc_digits", "ncc_cifar10")
ncc = ncc34.but(large=R18)
positives = ncc.but({"method.weight": 0.0})
byol34 = Variant("byol_digits", "ncc_cifar10").but(
    large={"method": {"name": "byol", "decay": 0.996, "final_decay": 0.996}}
)
byol = byol34.but(large=R18)
simsiam = Variant("simsiam_digits", "ncc_cifar10").but(large={"method": {"name": "simsiam"}, **R18})

# MoCo v2 as in lines 429 and 431. PCL "under the fair conditions of MoCo" (line 429), which is read
# as MoCo's settings, its batch of 512 included; weight and numbers of prototypes from there, n_init
# as in PCL's code, warm-up a guess.
MOCO = {"temperature": 1.0, "queue": 4096, "decay": 0.99, "final_decay": 0.99}
PROTOTYPES = {
    "prototypes": (250, 500, 1000), "weight": 0.01, "warmup": "50 epochs",
    "update_every": "1 epoch", "n_init": 5,
}  # fmt: skip
moco34 = Variant("moco_digits", "ncc_cifar10").but(
    large={
        "method": {"name": "moco", **MOCO},
        **NO_PREDICTOR,
        "optimizer.weight_decay": 1e-4,
        "train.batch_size": 512,
    }
)
moco = moco34.but(large=R18)
pcl34 = moco34.but(digits="pcl_digits", large={"method": {"name": "pcl", **MOCO, **PROTOTYPES}})
pcl = pcl34.but(large=R18)

# CC's settings, also those of NCC's code for it; lr_decay_every: a constant rate.
cc_settings = Variant("cc_digits", "ncc_cifar10").but(
    large={
        "method": {"name": "cc", "clusters": 10, "temperature": 0.5, "cluster_temperature": 1.0},
        "network.projector": {"hidden": 512, "out": 128},
        **NO_PREDICTOR,
        "optimizer.name": "adamw",
        "optimizer.learning_rate": 3e-4,
        "optimizer.base_batch_size": None,
        "optimizer.weight_decay": 0.0,
        "optimizer.predictor_lr_multiplier": 1.0,
        "optimizer.warmup": "0 steps",
        "optimizer.lr_decay_every": "1000 epochs",
    }
)
cc = cc_settings.but(large=R18)
# NCC's footnote: CC's own images are larger.
cc34 = cc_settings.but(
    large={"data.image_size": 224, "augment.size": 224, "network.stem": "imagenet"}
)

# "Adding their losses without changing other settings" (line 431): what CC and PCL add to their
# contrast of images, by their settings; ProtoNCE has the weight of line 429.
byol_cc = byol.but({"term": {"name": "cc", "clusters": 10, "cluster_temperature": 1.0}})
SMALL_PROTOTYPES = {
    "prototypes": (35, 70, 140), "weight": 0.01, "warmup": "150 steps",
    "update_every": "5 epochs", "n_init": 5,
}  # fmt: skip
byol_pcl = byol.but(
    small={"term": {"name": "pcl", "temperature": 0.2, **SMALL_PROTOTYPES}},
    large={"term": {"name": "pcl", "temperature": 1.0, **PROTOTYPES}},
)
# ProtoCL on the projections in place of the cluster head (line 234): CC's contrast of images is
# SimCLR's; warm-up, runs of k-means and weight are NCC's.
SIMCLR = {"method": {"name": "simclr", "temperature": 0.5, "positive_in_denominator": True}}
PROTOCL = {
    "name": "ncc", "clusters": 10, "weight": 0.1, "temperature": 0.5, "n_init": 5,
    "warm_start": True, "part": "whole",
}  # fmt: skip
cc_protocl = cc.but(
    small={**SIMCLR, "term": {**PROTOCL, "warmup": "300 steps", "update_every": "5 epochs"}},
    large={**SIMCLR, "term": {**PROTOCL, "warmup": "50 epochs", "update_every": "1 epoch"}},
)

# Quoted from PCL's paper, which NCC does not repeat: settings of PCL's code for MoCo v2 and PCL v2,
# but for the cosine of the rate and n_init of one.
MOCO_IMAGENET = {"temperature": 0.2, "queue": 65_536, "decay": 0.999, "final_decay": 0.999}
moco_imagenet = Variant("", "ncc_imagenet").but(
    large={
        "method": {"name": "moco", **MOCO_IMAGENET},
        **NO_PREDICTOR,
        "network.projector": {"hidden": 2048, "out": 128},
        "optimizer.learning_rate": 0.03,
        "train.batch_size": 256,
        "eval.features": "backbone",
    }
)
PCL_IMAGENET = {
    "prototypes": (25_000, 50_000, 100_000), "weight": 1.0, "warmup": "20 epochs",
    "update_every": "1 epoch", "n_init": 1,
}  # fmt: skip
pcl_imagenet = moco_imagenet.but(large={"method": {"name": "pcl", **MOCO_IMAGENET, **PCL_IMAGENET}})
imagenet = Variant("ncc_digits", "ncc_imagenet")

# Table A5, where the network of the digits has one size, and Table A2, with 224 pixels as a guess.
moco50, byol50, ncc50 = (of.but(digits="", large=R50) for of in (moco34, byol34, ncc34))
subset = ncc34.but(digits="")
# N_min/N_max = 0.1, of the training images (line 629).
TRAIN, TAIL = {"data.split": "train"}, {"data.tail": 10.0}
# What is left out of the digits' augmentation, and of the paper's.
LEFT_OUT = {
    "": ({}, {}),
    " - crop": ({"augment.affine.shift": 0.0}, {"augment.crop": None}),
    " - jitter": ({"augment.noise": 0.0}, {"augment.jitter.probability": 0.0}),
    " - grayscale": ({"augment.affine.shear": 0.0}, {"augment.grayscale": 0.0}),
}

PROTOCOL = "ResNet-18 (Tables 2 and A1: ResNet-34), 1,000 epochs of training and test images, k given, 3 runs"
# fmt: off
TABLES = {
    "2": table(162, "Five sets", "NMI ACC ARI", "CIFAR-10, CIFAR-20, STL-10, ImageNet-10 at 96, ImageNet-Dogs at 96", [
        ("CC, 224 pixels", cc34, "kmeans", 151, "70.5 79.0 63.7 43.1 42.9 26.6 76.4 85.0 72.6 85.9 89.3 82.2 44.5 42.9 27.4"),
        ("PCL", pcl34, "kmeans", 156, "80.2 87.4 76.6 52.8 52.6 36.3 71.8 41.0 67.0 84.1 90.7 82.2 44.0 41.2 29.9"),
        ("BYOL", byol34, "kmeans", 157, "81.7 89.4 79.0 55.9 56.9 39.3 71.3 82.5 65.7 86.6 93.9 87.2 63.5 69.4 54.8"),
        ("NCC", ncc34, "kmeans", 159, "88.6 94.3 88.4 60.6 61.4 45.1 75.8 86.7 73.7 89.6 95.6 90.6 69.2 74.5 62.7"),
    ]),
    "3": table(180, "ImageNet-1k, ResNet-50, 200 epochs", "AMI", "ImageNet-1k", [
        ("MoCo", moco_imagenet, "kmeans", 184, "28.5"),
        ("PCL", pcl_imagenet, "kmeans", 185, "41.0"),
        ("NCC", imagenet, "kmeans", 186, "52.5"),
    ], "ResNet-50, 200 epochs, k given, one run"),
    "4": table(202, "Ablation: positive sampling (PS), ProtoCL and its parts", "NMI ACC ARI", "CIFAR-10, CIFAR-20", [
        ("MoCo v2", moco, "kmeans", 207, "76.9±0.2 84.9±0.3 72.4±0.5 49.2±0.1 48.0±0.2 32.1±0.0"),
        ("SimSiam", simsiam, "kmeans", 208, "78.8±0.9 86.5±0.8 74.9±1.3 46.6±0.8 47.3±1.1 28.8±1.2"),
        ("CC", cc, "kmeans", 209, "66.1±0.3 74.6±0.3 58.3±0.4 46.4±0.3 45.0±0.1 29.5±0.2"),
        ("CC + ProtoCL", cc_protocl, "kmeans", 210, "74.3±0.4 83.4±0.5 69.6±1.0 48.3±0.2 49.1±0.2 32.2±0.4"),
        ("PCL", pcl, "kmeans", 211, "77.6±0.1 85.5±0.1 73.4±0.0 50.0±0.3 48.6±0.7 32.7±0.4"),
        ("BYOL", byol, "kmeans", 212, "79.4±1.7 87.8±1.7 76.6±2.8 55.5±0.6 53.9±1.6 37.6±0.9"),
        ("BYOL + CC", byol_cc, "kmeans", 213, "76.6±3.1 86.3±2.7 73.8±4.7 51.0±2.0 48.9±3.0 33.3±2.9"),
        ("BYOL + PCL", byol_pcl, "kmeans", 214, "74.4±2.3 85.3±0.9 71.4±1.4 49.7±0.7 46.9±0.7 27.8±1.5"),
        ("BYOL + PS", positives, "kmeans", 215, "79.4±0.9 87.9±0.5 76.4±1.1 57.0±0.0 55.0±0.6 39.8±1.1"),
        ("BYOL + ProtoCL", ncc.but({"method.sigma": 0.0}), "kmeans", 216, "83.4±1.2 90.3±0.9 81.1±1.7 56.6±0.4 55.1±0.5 40.7±1.0"),
        ("NCC, alignment only", ncc.but({"method.part": "alignment"}), "kmeans", 217, "79.6±0.7 87.8±1.5 76.5±2.1 56.7±0.3 56.6±1.4 39.7±1.1"),
        ("NCC, uniformity only", ncc.but({"method.part": "uniformity"}), "kmeans", 218, "85.3±0.2 92.1±0.1 84.4±0.3 57.2±0.3 57.3±0.6 41.7±0.5"),
        ("NCC", ncc, "kmeans", 219, "85.1±0.5 91.6±0.4 83.5±0.7 58.2±0.3 57.8±0.2 42.3±0.3"),
    ]),
    "A1": table(595, "Test images in training or not", "NMI ACC ARI", "CIFAR-10, CIFAR-20", [
        ("training and test images", ncc34, "kmeans", 599, "88.6±1.0 94.3±0.6 88.4±1.1 60.6±0.3 61.4±1.1 45.1±0.1"),
        ("without test images", ncc34.but(large=TRAIN), "kmeans", 599, "88.3±0.2 94.2±0.2 88.1±0.3 61.2±0.9 61.5±0.9 45.9±0.5"),
    ]),
    "A1-sizes": table(595, "Image size", "NMI ACC ARI", "ImageNet-10 at 96, ImageNet-10, ImageNet-Dogs at 96, ImageNet-Dogs", [
        ("NCC", subset, "kmeans", 601, "89.6±0.2 95.6±0.0 90.6±0.1 90.8±0.4 96.2±0.1 91.8±0.3 69.2±0.3 74.5±0.1 62.7±0.1 73.7±0.2 77.5±0.1 67.5±0.1"),
    ]),
    "A2": table(603, "Subsets of ImageNet, ResNet-50, 300 epochs, scored on the validation images (ours: on the training images)", "NMI ARI", "ImageNet-50, ImageNet-100, ImageNet-200", [
        ("NCC", subset.but(large={**R50, "train.duration": "300 epochs"}), "kmeans", 610, "82.8 69.1 83.5 63.5 80.6 53.8"),
    ], "ResNet-50, 300 epochs of the training images, k given"),
    "A3": table(612, "Tiny-ImageNet, ResNet-18, 96 pixels; CC: ResNet-34, 224 pixels", "NMI ACC ARI", "TinyImageNet at 96", [
        ("CC", cc34.but(digits=""), "kmeans", 625, "34.0 14.0 7.1"),
        ("NCC", subset.but(large=R18), "kmeans", 627, "40.5 25.6 14.3"),
    ]),
    "A4": table(629, "Long tails, N_min/N_max = 0.1", "NMI ACC ARI", "CIFAR-10-LT, CIFAR-20-LT", [
        ("MoCo v2", moco.but(TAIL, large=TRAIN), "kmeans", 633, "46.7±0.1 33.4±0.3 27.7±0.0 31.2±0.3 28.2±0.2 16.1±0.3"),
        ("BYOL", byol.but(TAIL, large=TRAIN), "kmeans", 634, "51.6±1.0 41.3±0.4 30.8±0.4 41.9±0.4 34.6±0.5 22.3±1.0"),
        ("NCC", ncc.but(TAIL, large=TRAIN), "kmeans", 635, "55.3±0.4 43.9±0.1 36.3±0.3 44.6±0.2 39.0±0.7 27.3±0.2"),
        ("NCC without ProtoCL", positives.but(TAIL, large=TRAIN), "kmeans", 636, "53.1±0.7 42.7±0.4 31.6±0.8 43.4±0.8 35.1±0.6 24.0±0.1"),
    ]),
    "A5": table(638, "Backbones", "NMI ACC ARI", "CIFAR-10, CIFAR-20", [
        ("MoCo, ResNet-18", moco, "kmeans", 641, "76.9±0.2 84.9±0.3 72.4±0.5 49.2±0.1 48.0±0.2 32.1±0.0"),
        ("BYOL, ResNet-18", byol, "kmeans", 641, "79.4±1.7 87.8±1.7 76.6±2.8 55.5±0.6 53.9±1.6 37.6±0.9"),
        ("NCC, ResNet-18", ncc, "kmeans", 641, "85.1±0.5 91.6±0.4 83.5±0.7 58.2±0.3 57.8±0.2 42.3±0.3"),
        ("MoCo, ResNet-34", moco34, "kmeans", 642, "79.4±0.0 86.9±0.0 75.6±0.0 51.3±0.0 49.2±0.6 34.3±0.3"),
        ("BYOL, ResNet-34", byol34, "kmeans", 642, "81.7±1.0 89.4±0.6 79.0±1.0 55.9±0.3 56.9±1.8 39.3±0.2"),
        ("NCC, ResNet-34", ncc34, "kmeans", 642, "88.6±1.0 94.3±0.6 88.4±1.1 60.6±0.3 61.4±1.1 45.1±0.1"),
        ("MoCo, ResNet-50", moco50, "kmeans", 643, "79.9±0.1 87.1±0.1 76.0±0.1 53.3±0.0 52.9±0.1 36.7±0.1"),
        ("BYOL, ResNet-50", byol50, "kmeans", 643, "80.0±0.4 88.1±0.9 76.3±1.8 54.1±1.4 53.1±2.4 36.9±2.9"),
        ("NCC, ResNet-50", ncc50, "kmeans", 643, "89.4±0.5 94.7±0.4 89.1±0.7 63.2±1.0 61.3±1.2 47.1±1.4"),
    ]),
    "A5-subsets": table(638, "Backbones on subsets of ImageNet, 96 pixels", "NMI ACC ARI", "ImageNet-10 at 96, ImageNet-Dogs at 96", [
        ("MoCo, ResNet-18", moco.but(digits=""), "kmeans", 644, "83.3±0.1 90.4±0.1 81.6±0.1 38.7±0.5 36.7±0.5 23.9±0.6"),
        ("BYOL, ResNet-18", byol.but(digits=""), "kmeans", 644, "87.2±0.6 94.2±0.5 87.6±1.1 59.6±0.8 66.1±1.1 49.8±1.1"),
        ("NCC, ResNet-18", ncc.but(digits=""), "kmeans", 644, "89.3±0.4 95.4±0.1 89.7±0.8 64.4±1.3 69.6±2.2 56.1±2.3"),
        ("MoCo, ResNet-34", moco34.but(digits=""), "kmeans", 645, "84.2±0.1 90.7±0.1 82.3±0.1 41.6±1.2 39.0±1.5 26.8±1.7"),
        ("BYOL, ResNet-34", byol34.but(digits=""), "kmeans", 645, "86.6±0.2 93.9±0.1 87.2±0.2 63.5±2.2 69.4±3.0 54.8±2.9"),
        ("NCC, ResNet-34", ncc34.but(digits=""), "kmeans", 645, "89.6±0.2 95.6±0.0 90.6±0.1 69.2±0.3 74.5±0.1 62.7±0.1"),
        ("MoCo, ResNet-50", moco50, "kmeans", 646, "82.6±0.1 90.0±0.0 80.9±0.0 40.8±1.0 38.6±1.1 25.4±0.7"),
        ("BYOL, ResNet-50", byol50, "kmeans", 646, "88.7±1.8 95.2±0.9 89.7±1.9 66.2±0.2 71.9±1.2 58.1±1.2"),
        ("NCC, ResNet-50", ncc50, "kmeans", 646, "91.5±0.2 96.5±0.1 92.5±0.2 72.0±0.2 76.3±0.1 65.7±0.1"),
    ]),
    "figureA2": table(559, "Epochs r between two E-steps", "NMI ACC ARI", "CIFAR-10, CIFAR-20", [
        (f"r {r}", ncc.but({"method.update_every": f"{r} epochs"}), "kmeans") for r in (1, 2, 4, 8, 16)
    ]),
    "figureA3": table(563, "sigma of positive sampling, no ProtoCL", "NMI ACC ARI", "CIFAR-10, CIFAR-20", swept("sigma", positives, "method.sigma", (0.0, 0.0001, 0.001, 0.01, 0.1))),
    "figureA4": table(567, "Weight of ProtoCL", "NMI ACC ARI", "CIFAR-10, CIFAR-20", swept("weight", ncc, "method.weight", (0.01, 0.05, 0.1, 0.5, 1.0))),
    "figureA6": table(575, "Number of clusters K, also of k-means", "NMI", "CIFAR-10, CIFAR-20", [
        *swept("byol k", byol, "eval.kmeans.k", (10, 20, 50)),
        *((f"ncc k {k}", ncc.but({"eval.kmeans.k": k, "method.clusters": k}), "kmeans") for k in (10, 20, 50)),
    ]),
    "figureA7": table(579, "Uniformity", "NMI std", "CIFAR-10, CIFAR-20", [("byol", byol, "kmeans"), ("ncc", ncc, "kmeans")]),
    "figureA7-curves": table(579, "Uniformity and balance over the training", "NMI std N_min/N_max", "CIFAR-10, CIFAR-20", curve("BYOL", byol, 46_800) + curve("NCC", ncc, 46_800)),
    "figureA8": table(589, "Size of the projection", "NMI ACC ARI", "CIFAR-10, CIFAR-20", [
        *swept("byol out", byol, "network.projector.out", (64, 128, 256, 512)),
        *swept("ncc out", ncc, "network.projector.out", (64, 128, 256, 512)),
    ]),
    "figureA9": table(593, "Augmentation left out (on the digits shift, noise, and shear in place of crop, jitter, and grayscale)", "NMI ACC ARI", "CIFAR-10, CIFAR-20", [
        (f"{name}{what}", base.but(small=small, large=large), "kmeans")
        for name, base in (("byol", byol), ("ncc", ncc)) for what, (small, large) in LEFT_OUT.items()
    ]),
}
