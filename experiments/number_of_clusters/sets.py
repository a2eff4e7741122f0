"""Generated sets: families of clusters, and how the sets of a list follow from a seed.

Every list has all families of `sets.txt`, each set with a number of clusters, rows and columns of
its own. A method is chosen on some seeds and reported on others.
"""

import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


class Set(NamedTuple):
    """A generated set.

    Attributes:
        name: unique name.
        kind: a function of `generate.py`.
        k: true number of clusters; 1 for one cluster, 0 for noise, which has no true number.
        n: rows.
        d: columns.
        seed: of everything random.
        sizes: rows of the largest cluster per row of the smallest.
        spreads: largest standard deviation per smallest.
        error: Bayes error of the mixture; 0: separate clusters.
        outliers: fraction of the rows, uniform over twice the box of the others.
        shape: what the kind varies besides, see `generate.py`.
    """

    name: str
    kind: str
    k: int
    n: int
    d: int
    seed: int
    sizes: float
    spreads: float
    error: float
    outliers: float
    shape: float

    @property
    def metric(self) -> str:
        """Distance between rows that suits the set: cosine for rows of length one."""
        is_cosine = self.kind.startswith("vmf") or self.kind.endswith("cosine")
        return "cosine" if is_cosine else "euclidean"


_TEXT = pathlib.Path(__file__).with_suffix(".txt").read_text()


def generated(seed: int) -> Iterator[Set]:
    """All families with the seeds `seed`, `seed` + 1, and so on."""
    for i, line in enumerate(line for line in _TEXT.splitlines() if not line.startswith("#")):
        kind, k, n, d, *numbers = line.split()
        counts = _varied(kind, int(k), int(n), int(d), float(numbers[4]), seed + i)
        name = "{}-{:02}-k{}-n{}-d{}".format(kind, i, *counts)
        yield Set(name, kind, *counts, seed + i, *map(float, numbers))


def _varied(kind: str, k: int, n: int, d: int, groups: float, seed: int) -> tuple[int, int, int]:
    """Another number of clusters, rows, and columns."""
    rng = np.random.default_rng(seed)
    factors = rng.uniform(0.7, 1.4, 3)
    if kind == "hierarchy":  # The same number of clusters in each group.
        k = int(groups) * max(2, round(k / groups * factors[0]))
    elif k > 2 and kind != "moons":
        k = max(2, min(200, round(k * factors[0])))
    n = 50_000 if n == 50_000 else round(n * max(0.8, factors[1]))
    if d > 3:
        d = max(4, min(768, round(d * factors[2])))
    return k, n, d
