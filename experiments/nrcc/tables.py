"""NRCC's tables and figures: rows, runs, and printed numbers."""

from experiments.registry import Variant, parse

ALL = {"data.split": "train+test"}
# InfoNCE, SimSiam, and Barlow Twins in place of BYOL in the paper's configs.
INFONCE = {
    **ALL,
    "method": {"name": "simclr", "temperature": 0.1, "positive_in_denominator": False},
    "network.predictor": None,
    "nrcc.branch": "online",
}
SIMSIAM = {**ALL, "method": {"name": "simsiam"}, "nrcc.branch": "online"}
BARLOW = {**INFONCE, "method": {"name": "barlow", "off_diagonal": 0.005, "scale": 1.0}}
WITHOUT, AUGMENT = {"nrcc.weight": 0.0}, {"nrcc.sampler": "augment"}
NRCC = {"nrcc.weight": 0.5}  # in the digits configs that have none
NORMALIZED = {
    "nrcc.sghmc.normalize_gradient": True,
    "nrcc.sghmc.step_size": 0.2,
    "nrcc.sghmc.noise": 0.1,
    "nrcc.sghmc.friction": 0.9,
}


def _infonce(**changes: dict) -> Variant:
    return Variant("nrcc_digits", "nrcc_cifar10", large=INFONCE, **changes)


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
    "simsiam": Variant("simsiam_digits", "nrcc_cifar10", WITHOUT, large=SIMSIAM),
    "simsiam+nrcc": Variant("simsiam_digits", "nrcc_cifar10", {}, NRCC, SIMSIAM),
    "barlow": Variant("barlow_digits", "nrcc_cifar10", WITHOUT, large=BARLOW),
    "barlow+nrcc": Variant("barlow_digits", "nrcc_cifar10", {}, NRCC, BARLOW),
    "hmc": _byol_nrcc(sampler="hmc"),
    "hmc 3": _byol_nrcc(sampler="hmc", hmc__iterations=3),
    "mc": _byol_nrcc(sampler="monte_carlo"),
    "mc 13": _byol_nrcc(sampler="monte_carlo", monte_carlo__iterations=13),
    "noise": _byol_nrcc(sampler="noise"),
    "normalized": _byol(changes=NORMALIZED, small=NRCC),
    "online": _byol_nrcc(branch="online"),
    "target_predictor": _byol_nrcc(branch="target_predictor"),
    "imagenet": Variant("byol_digits", "nrcc_imagenet", small=NRCC),
    "long tail": Variant(missing="a long tail cannot be drawn by a config yet"),
    "dogs": Variant(missing="no run of nrcc_imagenet_dogs or nrcc_imagenet_dogs_vit yet"),
    "views": Variant(missing="distances of views in the embedding are not measured yet"),
}
PROTOCOL = "ResNet-34, 1,000 epochs of all images, batch 256, one run; k given to k-means, found by GridShift"
TABLES = parse(
    """
# 1 | 250 | Distance of views from their image, BYOL + NRCC | distance | ImageNet-10
254 | color jitter | views | - | 0.0038±0.0009
255 | grayscale | views | - | 0.0038±0.0009
256 | rotation | views | - | 0.0038±0.0019
257 | crop | views | - | 0.0011±0.0010
258 | SGHMC | views | - | 0.0112±0.0060
# 2 | 345 | Ablation on CIFAR-10 | NMI ACC ARI | CIFAR-10
350 | InfoNCE, k-means | infonce | kmeans | 77.6 77.8 71.7
351 | BYOL, k-means | byol | kmeans | 81.7 89.4 79.0
352 | InfoNCE, t-SNE, GridShift | infonce | tsne | 78.1 78.3 72.5
353 | BYOL, t-SNE, GridShift | byol | tsne | 81.9 89.5 80.1
354 | InfoNCE, UMAP, GridShift | infonce | gridshift | 78.7 78.9 74.5
355 | BYOL, UMAP, GridShift | byol | gridshift | 82.5 89.9 82.3
356 | InfoNCE + NRCC w/o SGHMC, k-means | infonce+augment | kmeans | 80.4 85.1 80.2
357 | BYOL + NRCC w/o SGHMC, k-means | byol+augment | kmeans | 84.5 90.6 84.1
358 | InfoNCE + NRCC w/o SGHMC, t-SNE, GridShift | infonce+augment | tsne | 80.7 85.9 80.5
359 | BYOL + NRCC w/o SGHMC, t-SNE, GridShift | byol+augment | tsne | 84.9 91.1 84.8
360 | InfoNCE + NRCC w/o SGHMC, UMAP, GridShift | infonce+augment | gridshift | 81.5 86.7 82.4
361 | BYOL + NRCC w/o SGHMC, UMAP, GridShift | byol+augment | gridshift | 85.1 92.2 85.1
362 | InfoNCE + NRCC, k-means | infonce+nrcc | kmeans | 86.8 92.3 85.2
363 | BYOL + NRCC, k-means | byol+nrcc | kmeans | 87.6 92.8 87.0
364 | InfoNCE + NRCC, t-SNE, GridShift | infonce+nrcc | tsne | 87.0 92.7 85.9
365 | BYOL + NRCC, t-SNE, GridShift | byol+nrcc | tsne | 88.1 93.3 87.2
366 | InfoNCE + NRCC, UMAP, GridShift | infonce+nrcc | gridshift | 87.1 93.4 86.7
367 | BYOL + NRCC, UMAP, GridShift | byol+nrcc | gridshift | 88.4 93.8 87.9
# 3 | 377 | ACC on six sets (the second is printed as CIFAR-100) | ACC | CIFAR-10, CIFAR-20, STL-10, ImageNet-10, ImageNet-Dogs, TinyImageNet
390 | SimCLR | infonce | kmeans | 77.8 42.6 71.6 90.6 34.6 14.8
392 | SimSiam | simsiam | kmeans | 85.6 - 71.6 92.1 67.4 20.3
393 | BYOL | byol | kmeans | 89.4 - 82.5 93.9 69.4 19.9
401 | InfoNCE + NRCC | infonce+nrcc | gridshift | 93.4 49.8 88.2 92.1 69.6 28.5
402 | BYOL + NRCC | byol+nrcc | gridshift | 93.8 63.9 88.2 95.9 72.6 31.4
# 4 | 409 | NMI on six sets (the second is printed as CIFAR-100) | NMI | CIFAR-10, CIFAR-20, STL-10, ImageNet-10, ImageNet-Dogs, TinyImageNet
422 | SimCLR | infonce | kmeans | 77.6 40.9 62.4 80.6 35.9 33.8
425 | SimSiam | simsiam | kmeans | 78.6 - 65.9 83.1 58.3 35.1
426 | BYOL | byol | kmeans | 81.7 - 71.3 86.6 63.5 36.5
433 | InfoNCE + NRCC | infonce+nrcc | gridshift | 87.1 61.5 80.5 84.3 64.2 43.5
434 | BYOL + NRCC | byol+nrcc | gridshift | 88.4 65.8 80.7 90.6 68.4 47.8
# 5 | 437 | ARI on six sets (the second is printed as CIFAR-100) | ARI | CIFAR-10, CIFAR-20, STL-10, ImageNet-10, ImageNet-Dogs, TinyImageNet
450 | SimCLR | infonce | kmeans | 71.7 25.8 51.6 82.1 23.8 6.7
453 | SimSiam | simsiam | kmeans | 73.6 - 57.2 83.3 50.1 9.4
454 | BYOL | byol | kmeans | 79.0 - 65.7 87.2 54.8 10.0
461 | InfoNCE + NRCC | infonce+nrcc | gridshift | 86.7 34.5 76.0 83.4 54.1 15.7
462 | BYOL + NRCC | byol+nrcc | gridshift | 87.9 49.2 76.1 90.2 59.4 17.6
# 6 | 467 | Long tails, N_min/N_max = 0.1 | NMI ACC ARI | CIFAR-10-LT, CIFAR-20-LT
472 | MoCo | long tail | kmeans | 46.7 33.4 27.7 31.2 28.2 16.1
473 | BYOL | long tail | kmeans | 51.6 41.3 30.8 41.9 34.6 22.3
474 | BYOL + NRCC | long tail | gridshift | 55.6 44.2 35.3 45.3 38.6 28.3
# 7 | 483 | Training time on four V100 GPUs | minutes | CIFAR-10
487 | BYOL | byol | - | 5h33m
487 | BYOL + NRCC | byol+nrcc | - | 8h17m
# 8 | 503 | Samplers of the third view; the numbers of iterations of the last two are not printed | ACC | CIFAR-10
508 | BYOL | byol | kmeans | 89.4
509 | SGHMC, one iteration | byol+nrcc | gridshift | 93.8
510 | HMC, one iteration | hmc | gridshift | 91.3
511 | MC, one iteration | mc | gridshift | 89.1
512 | HMC, 3 iterations | hmc 3 | gridshift | 93.6
513 | MC, 13 iterations | mc 13 | gridshift | 93.2
0 | plain noise | noise | gridshift | -
0 | SGHMC, normalized gradient | normalized | gridshift | -
# 9 | 524 | NRCC on other methods | ACC ARI NMI | CIFAR-10
528 | SimSiam | simsiam | kmeans | 85.6 73.6 78.6
531 | Barlow Twins | barlow | kmeans | 87.3 74.2 78.4
534 | SimSiam + NRCC | simsiam+nrcc | gridshift | 87.1 75.4 80.3
537 | Barlow Twins + NRCC | barlow+nrcc | gridshift | 90.4 80.3 82.7
# 10 | 549 | ImageNet-1k, ResNet-50, 200 epochs | AMI | ImageNet-1k
559 | BYOL + NRCC | imagenet | gridshift | 57.4
# 10-backbones | 549 | Backbones on ImageNet-Dogs | NMI ACC ARI | ImageNet-Dogs
563 | ResNet-34 | dogs | gridshift | 68.4 72.6 59.4
564 | ResNet-50 | dogs | gridshift | 67.6 72.2 59.3
565 | ViT-Tiny | dogs | gridshift | 66.9 72.0 58.3
566 | ViT-Small | dogs | gridshift | 68.8 73.8 60.1
567 | ViT-Base | dogs | gridshift | 68.5 72.6 59.5
# 13 | 836 | Distance of SGHMC's views after more iterations | distance | ImageNet-10
840 | 1 iteration | views | - | 0.0112±0.0060
841 | 3 iterations | views | - | 0.0092±0.0055
842 | 5 iterations | views | - | 0.0071±0.0036
843 | 7 iterations | views | - | 0.0060±0.0024
844 | 9 iterations | views | - | 0.0055±0.0021
845 | 11 iterations | views | - | 0.0053±0.0020
846 | 13 iterations | views | - | 0.0051±0.0020
# figure1 | 51 | UMAP maps (in each run's report.html) | NMI ACC ARI | CIFAR-10
0 | InfoNCE | infonce | gridshift | -
0 | BYOL | byol | gridshift | -
0 | InfoNCE + NRCC | infonce+nrcc | gridshift | -
0 | BYOL + NRCC | byol+nrcc | gridshift | -
# figure4 | 274 | Network through which SGHMC's view passes | ACC NMI 5-NN | CIFAR-10
0 | (a) online network | online | gridshift | -
0 | (b) target network with predictor | target_predictor | gridshift | -
0 | (c) target network | byol+nrcc | gridshift | -
""",
    VARIANTS,
    PROTOCOL,
)
