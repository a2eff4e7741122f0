"""Kernel-InfoNCE's tables: rows, runs, and printed numbers."""

from typing import Any

from experiments.registry import Variant, parse

# MoCo's form (Table 4): ResNet-18, tau 0.1, lambda 0.8; queue and decay are not printed, a guess.
MOCO_DIGITS = {"method.queue": 768, "method.decay": 0.99, "method.final_decay": 1.0}
MOCO = {
    "method.queue": 16_384,
    "method.decay": 0.99,
    "method.final_decay": 0.99,
    "network.name": "resnet18",
    "train.duration": "1000 epochs",
}


def _kernels(moco: bool = False, **method: Any) -> Variant:
    changes = {f"method.{key}": value for key, value in method.items()}
    small, large = (MOCO_DIGITS, MOCO) if moco else ({}, {})
    return Variant("kernel_infonce_digits", "kernel_infonce_cifar10", changes, small, large)


def _one(gamma: float, temperature: float, moco: bool = False) -> Variant:
    """One kernel exp(-d^gamma / temperature)."""
    single = {"gammas": (gamma,), "temperatures": (temperature,), "mixture": None, "weight": None}
    return _kernels(moco, **single)


# Temperatures gamma / 2 give equal slopes at distance 1; those of the paper are not printed.
VARIANTS = {
    "gaussian": _one(2.0, 1.0),
    "laplacian": _one(1.0, 0.5),
    "half": _one(0.5, 0.25),
    "sum": _kernels(),
    "sum of losses": _kernels(mixture="loss"),
    "concatenation": _kernels(halves=True),
    "moco": _one(2.0, 0.2, moco=True),
    "moco laplacian": _one(1.0, 0.1, moco=True),
    "moco sum": _kernels(moco=True, temperatures=(0.1, 0.2), mixture="loss", weight=0.8),
    "p 1": Variant(changes={"p": 1.0, "q": 0.0}, function="kernel_infonce.spectral"),
    "p 0.75": Variant(changes={"p": 0.75, "q": 0.2}, function="kernel_infonce.spectral"),
}
PROTOCOL = "batch 256, 3 runs, settings found by a search; probe of 100 epochs on the test images"
TABLES = parse(
    """
# 1 | 238 | Linear probe after 400 epochs of a ResNet-50 | top-1 | CIFAR-10, CIFAR-100, TinyImageNet
259 | SimCLR | gaussian | - | 90.60±0.15 66.29±0.12 37.83±0.09
268 | Laplacian | laplacian | - | 91.03±0.17 66.09±0.11 38.71±0.18
277 | gamma = 0.5 | half | - | 91.23±0.12 65.81±0.19 38.75±0.15
286 | simple sum | sum | - | 91.72±0.10 68.62±0.15 39.38±0.16
295 | concatenation sum | concatenation | - | 91.28±0.07 68.57±0.11 38.77±0.22
* - | sum of losses
# 4 | 570 | Linear probe of MoCo after 1,000 epochs of a ResNet-18 | top-1 | CIFAR-10, CIFAR-100
590 | MoCo | moco | - | 84.45±0.08 57.62±0.15
599 | Laplacian | moco laplacian | - | 88.34±0.16 59.10±0.14
608 | simple sum | moco sum | - | 87.50±0.20 59.83±0.12
# C | 619 | Appendix C: InfoNCE on the vertices of a graph, beside spectral clustering of it | ARI | 6 clusters of 100 vertices
0 | InfoNCE, p = 1, q = 0 | p 1 | infonce | -
0 | spectral clustering, p = 1, q = 0 | p 1 | spectral | -
0 | InfoNCE, p = 0.75, q = 0.2 | p 0.75 | infonce | -
0 | spectral clustering, p = 0.75, q = 0.2 | p 0.75 | spectral | -
""",
    VARIANTS,
    PROTOCOL,
)
