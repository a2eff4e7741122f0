"""Peaks of accelerators by their vendor's data sheets: dense bfloat16 FLOP/s and bytes/s."""

from typing import NamedTuple


class Chip(NamedTuple):
    """Peaks of a chip.

    Attributes:
        flops: dense bfloat16, FLOP/s; TF32, in which float32 is multiplied, has half.
        bandwidth: of its memory, bytes/s.
    """

    flops: float
    bandwidth: float


CHIPS = {"H100": Chip(989e12, 3.35e12), "H200": Chip(989e12, 4.8e12)}


def peak_flops(chip: Chip, dtype: str) -> float:
    """Dense FLOP/s in "bfloat16", or in TF32 for "float32"."""
    return chip.flops if dtype == "bfloat16" else chip.flops / 2


def find(device_kind: str) -> Chip | None:
    """The chip of a device, None if unknown."""
    return next((chip for name, chip in CHIPS.items() if name in device_kind), None)
