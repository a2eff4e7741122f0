"""Generated sets on which GridShift's bandwidth rule is chosen and reported.

The lists and their seeds were fixed before any rule was tried on them. Every family comes twice,
with seeds of their own: the sets of `half="choose"` may be looked at while rules are compared,
those of `half="report"` only give the figures of the rule that was chosen.

The second list (`round=2`) was added before the second search for a rule, because figures of the
first list's reporting half had been seen by then. It is harder: larger ratios of sizes and
spreads, more outliers, fewer rows per cluster, and many more single blobs and noise. The third
repeats it with new seeds and more blobs and noise of few rows, for reporting only: it was added
when a blob of 200 rows in the second list's reporting half had shown a weakness of the rule.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import make_moons

# Centers are at least this many times the sum of the two clusters' standard deviations apart.
_SEPARATION = 3.5


class Set(NamedTuple):
    """One generated set.

    `truth` is the number of clusters: k for blobs, 1 for one blob, 0 for uniform noise, 2 for
    moons. `sizes` and `spreads` are the ratios of the largest to the smallest cluster's rows and
    standard deviation, `stretch` that of a cluster's longest to its other axes, `outliers` the
    part of the rows that is spread over twice the data's box. `round` is the list it belongs to.
    """

    name: str
    half: str
    kind: str
    truth: int
    d: int
    n: int
    seed: int
    sizes: float = 1.0
    spreads: float = 1.0
    stretch: float = 1.0
    outliers: float = 0.0
    round: int = 1


# kind, k, d, n, sizes, spreads, stretch, outliers
_FAMILIES = (
    ("blobs", 2, 2, 500, 1, 1, 1, 0),
    ("blobs", 2, 3, 200, 3, 1, 1, 0),
    ("blobs", 3, 3, 1000, 1, 1, 1, 0),
    ("blobs", 3, 2, 300, 5, 1, 1, 0),
    ("blobs", 4, 3, 2000, 1, 3, 1, 0),
    ("blobs", 4, 2, 400, 1, 1, 1, 0.05),
    ("blobs", 5, 2, 2000, 1, 1, 4, 0),
    ("blobs", 5, 3, 1000, 1, 1, 1, 0.02),
    ("blobs", 6, 3, 3000, 3, 2, 2, 0.02),
    ("blobs", 7, 2, 1500, 5, 1, 1, 0),
    ("blobs", 8, 3, 4000, 3, 2, 1, 0),
    ("blobs", 10, 3, 2000, 1, 1, 1, 0),
    ("blobs", 10, 2, 2000, 1, 1, 1, 0.02),
    ("blobs", 12, 3, 3000, 1, 1, 3, 0),
    ("blobs", 15, 3, 5000, 1, 2, 1, 0.02),
    ("blobs", 20, 2, 4000, 1, 1, 1, 0),
    ("blobs", 20, 3, 2000, 3, 1, 1, 0),
    ("blobs", 30, 3, 6000, 1, 1, 1, 0),
    ("blobs", 30, 2, 3000, 1, 1, 1, 0),
    ("blobs", 50, 3, 10000, 1, 1, 1, 0),
    ("blobs", 50, 2, 5000, 1, 1, 1, 0),
    ("blob", 1, 2, 1000, 1, 1, 1, 0),
    ("blob", 1, 3, 3000, 1, 1, 3, 0),
    ("noise", 0, 2, 1000, 1, 1, 1, 0),
    ("noise", 0, 3, 3000, 1, 1, 1, 0),
    ("moons", 2, 2, 1000, 1, 1, 1, 0),
)

_HARDER = (
    ("blobs", 2, 2, 300, 10, 1, 1, 0),
    ("blobs", 2, 3, 1000, 1, 3, 1, 0.05),
    ("blobs", 2, 2, 2000, 3, 2, 3, 0.02),
    ("blobs", 3, 2, 1000, 5, 2, 1, 0.05),
    ("blobs", 3, 3, 400, 1, 1, 4, 0),
    ("blobs", 3, 2, 5000, 10, 1, 2, 0),
    ("blobs", 4, 3, 800, 5, 1, 2, 0.02),
    ("blobs", 4, 2, 3000, 1, 2, 1, 0.1),
    ("blobs", 5, 3, 2000, 3, 3, 1, 0),
    ("blobs", 5, 2, 500, 3, 1, 1, 0.05),
    ("blobs", 5, 3, 20000, 10, 1, 1, 0.01),
    ("blobs", 6, 2, 1200, 1, 1, 3, 0),
    ("blobs", 8, 2, 2400, 3, 2, 1, 0.05),
    ("blobs", 9, 3, 1800, 10, 1, 1, 0),
    ("blobs", 10, 3, 5000, 3, 2, 2, 0.05),
    ("blobs", 12, 2, 1500, 1, 1, 1, 0),
    ("blobs", 15, 2, 6000, 5, 1, 2, 0),
    ("blobs", 16, 3, 3200, 5, 1, 1, 0.02),
    ("blobs", 20, 3, 20000, 3, 1, 2, 0.01),
    ("blobs", 25, 2, 2500, 2, 1, 1, 0),
    ("blobs", 30, 3, 3000, 3, 1, 1, 0.02),
    ("blobs", 40, 3, 8000, 1, 1, 1, 0),
    ("blobs", 50, 3, 5000, 2, 1, 1, 0.01),
    ("blobs", 50, 2, 20000, 2, 1, 1, 0),
    ("blob", 1, 2, 200, 1, 1, 1, 0),
    ("blob", 1, 2, 3000, 1, 1, 4, 0),
    ("blob", 1, 3, 500, 1, 1, 1, 0),
    ("blob", 1, 3, 10000, 1, 1, 2, 0),
    ("blob", 1, 2, 2000, 1, 1, 1, 0.05),
    ("noise", 0, 2, 200, 1, 1, 1, 0),
    ("noise", 0, 2, 5000, 1, 1, 1, 0),
    ("noise", 0, 3, 500, 1, 1, 1, 0),
    ("noise", 0, 3, 20000, 1, 1, 1, 0),
    ("noise", 0, 2, 2000, 1, 1, 3, 0),
    ("moons", 2, 2, 3000, 1, 1, 1, 0),
)

_FEW_ROWS = tuple(
    (kind, truth, d, n, 1, 1, stretch, 0)
    for kind, truth in (("blob", 1), ("noise", 0))
    for d, n, stretch in ((2, 200, 1), (2, 300, 2), (3, 200, 1), (3, 400, 3), (2, 400, 1))
)

_LISTS = (
    (1, "choose", 0, _FAMILIES),
    (1, "report", 1000, _FAMILIES),
    (2, "choose", 2000, _HARDER),
    (2, "report", 3000, _HARDER),
    (3, "report", 5000, _HARDER + _FEW_ROWS),
)

SETS = tuple(
    Set(f"{kind}-{k}-{d}d-{i}", half, kind, k, d, n, first + i, *map(float, rest), round_)
    for round_, half, first, families in _LISTS
    for i, (kind, k, d, n, *rest) in enumerate(families)
)


def make(one: Set) -> tuple[NDArray, NDArray]:
    """Points float64 `[n, d]` and true clusters int64 `[n]`, -1 for outliers.

    The unit and the origin are drawn too, so that no rule can know the scale.
    """
    rng = np.random.default_rng(one.seed)
    if one.kind == "noise":
        points, truth = rng.uniform(size=(one.n, one.d)), np.zeros(one.n, np.int64)
        points[:, 0] *= one.stretch
    elif one.kind == "moons":
        points, truth = make_moons(one.n, noise=0.05, random_state=one.seed)
    else:
        points, truth = _blobs(one, rng)
    scale = 10.0 ** rng.uniform(-2, 2)
    return scale * (points + rng.uniform(-10, 10, one.d)), truth


def _blobs(one: Set, rng: np.random.Generator) -> tuple[NDArray, NDArray]:
    k, d = one.truth, one.d
    spreads = np.exp(rng.uniform(0, np.log(one.spreads), k)) if one.spreads > 1 else np.ones(k)
    novelty_threshold = spreads * one.stretch
    centers = np.empty((0, d))
    side = 2 * _SEPARATION * novelty_threshold.max() * k ** (1 / d)
    while len(centers) < k:
        # The box grows slowly while centers are refused, so that it ends up moderately full.
        center = rng.uniform(0, side, d)
        own = novelty_threshold[len(centers)]
        apart = np.linalg.norm(centers - center, axis=1)
        if (apart >= _SEPARATION * (own + novelty_threshold[: len(centers)])).all():
            centers = np.concatenate([centers, center[None]])
        else:
            side *= 1.002
    share = rng.uniform(1, one.sizes, k) if one.sizes > 1 else np.ones(k)
    n_outliers = round(one.outliers * one.n)
    truth = rng.choice(k, one.n - n_outliers, p=share / share.sum())
    noise = rng.normal(size=(len(truth), d))
    if one.stretch > 1:
        noise[:, 0] *= one.stretch
        turns = np.linalg.qr(rng.normal(size=(k, d, d)))[0]
        noise = np.einsum("nij,nj->ni", turns[truth], noise)
    points = centers[truth] + spreads[truth, None] * noise
    low, high = points.min(axis=0), points.max(axis=0)
    middle, half = (low + high) / 2, (high - low)
    outliers = rng.uniform(middle - half, middle + half, (n_outliers, d))
    return np.concatenate([points, outliers]), np.append(truth, np.full(n_outliers, -1))
