"""What the rows of Kernel-InfoNCE's tables train; rows and numbers are in `tables.txt`."""

from typing import Any

from experiments.registry import Variant, settings

SETTINGS = settings("kernel_infonce")


def _kernels(moco: bool = False, **method: Any) -> Variant:
    changes = {f"method.{key}": value for key, value in method.items()}
    small, large = (SETTINGS["moco digits"], SETTINGS["moco"]) if moco else ({}, {})
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
