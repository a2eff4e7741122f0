"""Peaks of accelerators by their vendor's data sheets: dense bfloat16 FLOP/s and bytes/s."""

from typing import NamedTuple


class Chip(NamedTuple):
    """Peaks of a chip.

    Attributes:
        flops: dense bfloat16, FLOP/s.
        bandwidth: of its memory, bytes/s.
    """

    flops: float
    bandwidth: float


CHIPS = {"H100": Chip(989e12, 3.35e12), "H200": Chip(989e12, 4.8e12)}


def peak_flops(device_kind: str) -> float | None:
    """Dense bfloat16 FLOP/s of a device, also where it computes in float32; None if unknown."""
    return next((chip.flops for name, chip in CHIPS.items() if name in device_kind), None)
