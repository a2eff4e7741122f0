"""Generated sets: families of clusters, and how the sets of a list follow from a seed.

Every list has all families, each set with a number of clusters, rows and columns of its own. A
method is chosen on some seeds and reported on others.
"""

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


# kind, k, n, d, sizes, spreads, error, outliers, shape
_FAMILIES = (
    # Separate clusters of equal size: few to many, in few to many columns.
    ("blobs", 2, 400, 2, 1, 1, 0, 0, 0),
    ("blobs", 3, 300, 10, 1, 1, 0, 0, 0),
    ("blobs", 5, 1000, 3, 1, 1, 0, 0, 0),
    ("blobs", 10, 2000, 64, 1, 1, 0, 0, 0),
    ("blobs", 20, 2000, 3, 1, 1, 0, 0, 0),
    ("blobs", 40, 4000, 64, 1, 1, 0, 0, 0),
    ("blobs", 100, 5000, 32, 1, 1, 0, 0, 0),
    ("blobs", 160, 6000, 128, 1, 1, 0, 0, 0),
    ("blobs", 15, 20000, 16, 1, 1, 0, 0, 0),
    ("blobs", 30, 50000, 3, 1, 1, 0, 0, 0),
    # Unequal sizes and long tails.
    ("blobs", 3, 800, 2, 20, 1, 0, 0, 0),
    ("blobs", 3, 1000, 16, 50, 1, 0, 0, 0),
    ("blobs", 8, 1500, 64, 100, 1, 0, 0, 0),
    ("blobs", 8, 2000, 3, 30, 1, 0, 0, 0),
    ("blobs", 20, 3000, 64, 30, 1, 0, 0, 0),
    ("blobs", 30, 4000, 64, 100, 1, 0, 0, 0),
    ("blobs", 80, 6000, 64, 50, 1, 0, 0, 0),
    # Unequal spreads.
    ("blobs", 4, 800, 2, 1, 6, 0, 0, 0),
    ("blobs", 8, 1500, 3, 3, 5, 0, 0, 0),
    ("blobs", 10, 2000, 64, 5, 3, 0, 0, 0),
    ("blobs", 25, 3000, 16, 3, 4, 0, 0, 0),
    # Overlap.
    ("blobs", 2, 500, 2, 1, 1, 0.03, 0, 0),
    ("blobs", 3, 900, 8, 1, 1, 0.05, 0, 0),
    ("blobs", 5, 1500, 32, 2, 1, 0.02, 0, 0),
    ("blobs", 6, 2000, 3, 1, 1, 0.03, 0, 0),
    ("blobs", 10, 3000, 100, 1, 1, 0.05, 0, 0),
    ("blobs", 12, 2000, 256, 1, 1, 0.1, 0, 0),
    ("blobs", 25, 4000, 64, 1, 1, 0.05, 0, 0),
    # Outliers.
    ("blobs", 3, 500, 2, 1, 1, 0, 0.05, 0),
    ("blobs", 5, 1500, 3, 1, 1, 0, 0.2, 0),
    ("blobs", 6, 1200, 16, 2, 1, 0, 0.1, 0),
    ("blobs", 12, 2500, 64, 1, 2, 0, 0.05, 0),
    # Long and turned clusters.
    ("ellipses", 4, 800, 2, 1, 1, 0, 0, 5),
    ("ellipses", 8, 2000, 8, 2, 1, 0, 0, 6),
    ("ellipses", 15, 3000, 32, 3, 2, 0, 0, 10),
    # Clusters within clusters; `shape` is the number of groups.
    ("hierarchy", 9, 1500, 16, 1, 1, 0, 0, 3),
    ("hierarchy", 10, 3000, 64, 1, 1, 0.01, 0, 2),
    ("hierarchy", 20, 3000, 128, 1, 1, 0, 0, 4),
    ("hierarchy", 40, 5000, 64, 2, 1, 0.01, 0, 8),
    ("hierarchy", 12, 2000, 3, 1, 1, 0, 0, 3),
    # Mixtures on the sphere.
    ("vmf", 3, 900, 384, 1, 1, 0.02, 0, 0),
    ("vmf", 5, 1500, 768, 1, 1, 0.02, 0, 0),
    ("vmf", 10, 3000, 384, 1, 1, 0.02, 0, 0),
    ("vmf", 10, 2000, 768, 1, 1, 0.1, 0, 0),
    ("vmf", 20, 4000, 384, 3, 1, 0.02, 0, 0),
    ("vmf", 30, 3000, 384, 1, 1, 0.001, 0, 0),
    ("vmf", 100, 6000, 384, 1, 1, 0.02, 0, 0),
    ("vmf", 7, 1500, 64, 10, 1, 0.02, 0, 0),
    # Other shapes.
    ("moons", 2, 600, 2, 1, 1, 0, 0, 0.05),
    ("moons", 2, 1000, 10, 1, 1, 0, 0, 0.08),
    ("rings", 2, 1000, 2, 1, 1, 0, 0, 0.04),
    ("chains", 3, 1200, 2, 1, 1, 0, 0, 0),
    ("chains", 6, 2500, 20, 1, 1, 0, 0, 0),
    # One cluster; `shape`: ratio of its axes, or the degrees of freedom of Student's t.
    ("one", 1, 500, 2, 1, 1, 0, 0, 1),
    ("one", 1, 1500, 20, 1, 1, 0, 0, 1),
    ("one", 1, 1000, 256, 1, 1, 0, 0, 3),
    ("student", 1, 1000, 8, 1, 1, 0, 0, 5),
    ("vmf_one", 1, 1500, 384, 1, 1, 0, 0, 0),
    # No structure.
    ("noise", 0, 600, 2, 1, 1, 0, 0, 0),
    ("noise", 0, 1500, 16, 1, 1, 0, 0, 0),
    ("vmf_noise", 0, 1500, 384, 1, 1, 0, 0, 0),
    # Columns of few values (`shape` levels) and repeated rows.
    ("quantized", 4, 1000, 6, 1, 1, 0, 0, 8),
    ("quantized", 4, 1200, 3, 1, 1, 0, 0, 12),
    ("quantized", 8, 2000, 20, 2, 1, 0, 0, 4),
)

# Classes of one to four modes ("styles") each, the truth being the classes; `shape` is how much
# farther apart classes are than the modes of one. Without error the modes are separate.
_STYLES = (
    ("styles", 3, 900, 2, 1, 1, 0.05, 0, 5),
    ("styles", 5, 1500, 3, 1, 1, 0.03, 0, 5),
    ("styles", 4, 1200, 8, 1, 1, 0.02, 0, 4),
    ("styles", 10, 3000, 16, 2, 1, 0, 0, 5),
    ("styles", 10, 1800, 64, 1, 1, 0, 0, 5),
    ("styles", 10, 2000, 64, 1, 1, 0.05, 0, 4),
    ("styles", 20, 4000, 64, 1, 1, 0.05, 0, 6),
    ("styles", 30, 5000, 32, 2, 1, 0, 0, 8),
    ("styles", 6, 1500, 128, 5, 1, 0.1, 0, 4),
    ("styles_cosine", 10, 1800, 128, 1, 1, 0.02, 0, 4),
    ("styles_cosine", 8, 2000, 256, 1, 1, 0.05, 0, 5),
    ("styles_cosine", 15, 3000, 128, 3, 1, 0, 0, 4),
)


def generated(seed: int) -> Iterator[Set]:
    """All families with the seeds `seed`, `seed` + 1, and so on."""
    for i, (kind, k, n, d, *numbers) in enumerate((*_FAMILIES, *_STYLES)):
        k, n, d = _varied(kind, k, n, d, numbers[4], seed + i)
        name = f"{kind}-{i:02}-k{k}-n{n}-d{d}"
        yield Set(name, kind, k, n, d, seed + i, *map(float, numbers))


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
