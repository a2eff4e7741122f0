"""Generated sets: families of clusters, and lists with clusters of other sizes and numbers.

Every list has all families of `sets.txt`, each set with a number of clusters, rows and columns of
its own, which follow from a seed. A method is chosen on some seeds and reported on others.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray
from scipy.special import softmax

from cluster_jax.core.arrays import normalize_rows

# Rows and the cluster of each; or centers and their spreads.
Rows = tuple[NDArray, NDArray]
# Rows on which the Bayes error is estimated, and steps of bisection.
_ROWS, _STEPS = 4_000, 14
# "Separate" clusters: this many times the distance at which the Bayes error is 0.5 %.
_SEPARATE, _SEPARATE_ERROR = 1.6, 0.005
_TEXT = (Path(__file__).parent / "sets.txt").read_text()


class Case(NamedTuple):
    """Rows and their true clusters.

    Attributes:
        name: unique name.
        rows: float32 `[n, d]`.
        truths: one or several right answers, int `[n]` each, negative for noise.
        metric: `"cosine"` or `"euclidean"`.
        originals: int `[n]`, the row that each row is known to be a copy of, or None.
    """

    name: str
    rows: NDArray
    truths: tuple[NDArray, ...]
    metric: str
    originals: NDArray | None = None

    def scaled(self) -> NDArray:
        """The rows, of length one if they are compared by cosine."""
        return normalize_rows(self.rows) if self.metric == "cosine" else self.rows


class Set(NamedTuple):
    """A generated set.

    Attributes:
        name: unique name.
        kind: one of `_KINDS`.
        k: true number of clusters; 1 for one cluster, 0 for noise, which has no true number.
        n: rows.
        d: columns.
        seed: of everything random.
        sizes: rows of the largest cluster per row of the smallest.
        spreads: largest standard deviation per smallest.
        error: Bayes error of the mixture; 0: separate clusters.
        outliers: fraction of the rows, uniform over twice the box of the others.
        shape: what the kind varies besides.
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


def families(seed: int) -> Iterator[Set]:
    """All families with the seeds `seed`, `seed` + 1, and so on."""
    for i, line in enumerate(line for line in _TEXT.splitlines() if not line.startswith("#")):
        kind, k, n, d, *numbers = line.split()
        counts = _varied(kind, int(k), int(n), int(d), float(numbers[4]), seed + i)
        name = "{}-{:02}-k{}-n{}-d{}-{}".format(kind, i, *counts, seed + i)
        yield Set(name, kind, *counts, seed + i, *map(float, numbers))


def _varied(kind: str, k: int, n: int, d: int, groups: float, seed: int) -> tuple[int, int, int]:
    """Another number of clusters, rows, and columns."""
    rng = default_rng(seed)
    factors = rng.uniform(0.7, 1.4, 3)
    # The same number of clusters in each group.
    if kind == "hierarchy":
        k = int(groups) * max(2, round(k / groups * factors[0]))
    elif k > 2 and kind != "moons":
        k = max(2, min(200, round(k * factors[0])))
    columns = max(4, min(768, round(d * factors[2]))) if d > 3 else d
    return k, round(n * max(0.8, factors[1])), columns


def case(spec: Set) -> Case:
    """The rows of a set in random order; outliers are noise, which is -1."""
    rng = default_rng(spec.seed)
    points, truth = _KINDS[spec.kind](spec, rng)
    if spec.outliers:
        count = round(spec.outliers * len(points))
        low, high = points.min(axis=0), points.max(axis=0)
        middle, extent = (low + high) / 2, high - low
        points[:count] = rng.uniform(middle - extent, middle + extent, (count, points.shape[1]))
        truth[:count] = -1
    order = rng.permutation(len(points))
    is_cosine = spec.kind.startswith("vmf") or spec.kind.endswith("cosine")
    metric = "cosine" if is_cosine else "euclidean"
    return Case(spec.name, points[order].astype(np.float32), (truth[order],), metric)


def _shares(spec: Set) -> NDArray:
    """Share of the rows of each cluster: a geometric series."""
    share = np.geomspace(1, spec.sizes, spec.k)
    return share / share.sum()


def _labels(spec: Set, rng: Generator) -> NDArray:
    """Cluster of each row, none of them empty."""
    counts = np.maximum(2, np.floor(_shares(spec) * spec.n)).astype(int)
    counts[-1] += spec.n - counts.sum()
    return rng.permutation(np.repeat(np.arange(spec.k), counts))


def _spreads(spec: Set, rng: Generator) -> NDArray:
    return rng.permutation(np.geomspace(1, spec.spreads, spec.k))


def _scale(error_at: Callable[[float], float], target: float) -> float:
    """The scale of the centers at which the Bayes error is the target."""
    low, high = 1e-3, 1.0
    while error_at(high) > target and high < 1e6:
        high *= 2
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if error_at(middle) > target else (low, middle)
    return high


def _gaussian_centers(spec: Set, rng: Generator, directions: NDArray) -> Rows:
    """`directions` `[k, d]` scaled to the Bayes error of spherical clusters; and their spreads."""
    spreads = _spreads(spec, rng)
    share = _shares(spec)
    labels = rng.choice(spec.k, _ROWS, p=share)
    noise = rng.normal(size=(_ROWS, spec.d)) * spreads[labels, None]
    log_weight = np.log(share) - spec.d * np.log(spreads)

    def error_at(scale: float) -> float:
        centers = directions * scale
        x = centers[labels] + noise
        squares = (x**2).sum(1)[:, None] - 2 * x @ centers.T + (centers**2).sum(1)[None, :]
        log_density = log_weight[None, :] - squares / (2 * spreads[None, :] ** 2)
        return 1 - softmax(log_density, axis=1).max(axis=1).mean()

    scale = _scale(error_at, spec.error or _SEPARATE_ERROR)
    return directions * (scale if spec.error else _SEPARATE * scale), spreads


def _blobs(spec: Set, rng: Generator) -> Rows:
    labels = _labels(spec, rng)
    # In few columns random centers would nearly coincide: the farthest of several candidates.
    directions = rng.normal(size=(1, spec.d))
    while len(directions) < spec.k:
        candidates = rng.uniform(-1.8, 1.8, size=(20, spec.d))
        gaps = np.linalg.norm(candidates[:, None] - directions[None], axis=2).min(axis=1)
        directions = np.concatenate([directions, candidates[gaps.argmax()][None]])
    centers, spreads = _gaussian_centers(spec, rng, directions)
    noise = rng.normal(size=(spec.n, spec.d)) * spreads[labels, None]
    return centers[labels] + noise, labels


def _ellipses(spec: Set, rng: Generator) -> Rows:
    """Axes of each cluster up to `shape` times its shortest, turned at random."""
    points, labels = _blobs(spec._replace(spreads=1.0), rng)
    centers = _means(points, labels)
    spreads = _spreads(spec, rng)
    noise = np.empty_like(points)
    for c in range(spec.k):
        rows = labels == c
        axes = np.geomspace(1, spec.shape, spec.d) * spreads[c]
        turn = np.linalg.qr(rng.normal(size=(spec.d, spec.d)))[0]
        noise[rows] = (rng.normal(size=(int(rows.sum()), spec.d)) * axes) @ turn
    # Lengthened by the root mean square of the axes, centers move apart by as much and a half.
    widest = np.sqrt((np.geomspace(1, spec.shape, spec.d) ** 2).mean()) * spec.spreads
    return 1.5 * widest * centers[labels] + noise, labels


def _apart(spec: Set, k: int, rng: Generator) -> NDArray:
    """The centers of k separate clusters of one size."""
    return _means(*_blobs(spec._replace(k=k, n=k * 50, error=0.0, sizes=1.0), rng))


def _means(points: NDArray, labels: NDArray) -> NDArray:
    return np.stack([points[labels == c].mean(axis=0) for c in range(labels.max() + 1)])


def _hierarchy(spec: Set, rng: Generator) -> Rows:
    """Groups of clusters: the centers of groups are 3 times farther apart than those within."""
    groups = int(spec.shape)
    directions = _apart(spec, groups, rng)
    directions /= np.sqrt((directions**2).mean())
    inner = rng.normal(size=(spec.k, spec.d))
    directions = 3 * directions[np.arange(spec.k) % groups] + inner
    centers, _ = _gaussian_centers(spec, rng, directions)
    labels = _labels(spec, rng)
    return centers[labels] + rng.normal(size=(spec.n, spec.d)), labels


def _styles(spec: Set, rng: Generator) -> Rows:
    """Classes of one to four modes, `shape` times closer than the classes nearest to each other.

    Where modes overlap (`error` of the modes), a fifth of the rows lie between two of their class.
    """
    classes = _apart(spec, spec.k, rng)
    gaps = np.linalg.norm(classes[:, None] - classes[None], axis=2)
    nearest = np.median(np.sort(gaps, axis=1)[:, 1])
    class_of = np.repeat(np.arange(spec.k), rng.integers(1, 5, spec.k))
    offsets = rng.normal(size=(len(class_of), spec.d))
    offsets *= nearest / (np.sqrt(2) * spec.shape * np.linalg.norm(offsets, axis=1)[:, None])
    modes = spec._replace(k=len(class_of), sizes=1.0)
    centers, _ = _gaussian_centers(modes, rng, classes[class_of] + offsets)
    labels = _labels(spec, rng)
    weights = rng.uniform(0.5, 1.5, len(class_of))
    pairs = np.empty((spec.n, 2), np.int64)
    for c in range(spec.k):
        own, rows = np.flatnonzero(class_of == c), labels == c
        share = weights[own] / weights[own].sum()
        pairs[rows] = rng.choice(own, (int(rows.sum()), 2), p=share)
    between = np.where(rng.uniform(size=spec.n) < 0.2, rng.uniform(size=spec.n), 0.0)
    between = (between if spec.error else np.zeros(spec.n))[:, None]
    middle = (1 - between) * centers[pairs[:, 0]] + between * centers[pairs[:, 1]]
    return middle + rng.normal(size=(spec.n, spec.d)), labels


def _vmf(spec: Set, rng: Generator) -> Rows:
    """Von Mises-Fisher mixture of random means; one cluster and noise are special cases."""
    d = spec.d
    if spec.kind == "vmf_noise":
        return _unit(rng.normal(size=(spec.n, d))), np.zeros(spec.n, np.int64)
    means = _unit(rng.normal(size=(spec.k, d)))
    if spec.k == 1:
        labels = np.zeros(spec.n, np.int64)
        return _around(means[labels], 0.5 * d, rng), labels
    share = _shares(spec)
    labels = rng.choice(spec.k, _ROWS, p=share)

    def error_at(kappa: float) -> float:
        x = _around(means[labels], kappa * d, default_rng(spec.seed))
        log_density = np.log(share)[None, :] + kappa * d * (x @ means.T)
        return 1 - softmax(log_density, axis=1).max(axis=1).mean()

    kappa = _scale(error_at, spec.error) * d
    labels = _labels(spec, rng)
    return _around(means[labels], kappa, rng), labels


def _around(means: NDArray, kappa: float, rng: Generator) -> NDArray:
    """One von Mises-Fisher draw around each of the unit rows `means` `[n, d]`.

    Wood's rejection for the cosine (1994). SciPy's `rvs` draws around one mean, and turns the
    draws by a matrix of all columns.
    """
    n, d = means.shape
    b = (d - 1) / (2 * kappa + np.sqrt(4 * kappa**2 + (d - 1) ** 2))
    x0 = (1 - b) / (1 + b)
    c = kappa * x0 + (d - 1) * np.log(1 - x0**2)
    cosines = np.empty(0)
    while len(cosines) < n:
        z = rng.beta((d - 1) / 2, (d - 1) / 2, n)
        w = (1 - (1 + b) * z) / (1 - (1 - b) * z)
        accepted = kappa * w + (d - 1) * np.log(1 - x0 * w) - c >= np.log(rng.uniform(size=n))
        cosines = np.concatenate([cosines, w[accepted]])
    cosine = cosines[:n, None]
    across = rng.normal(size=(n, d))
    across -= means * (means * across).sum(axis=1, keepdims=True)
    return cosine * means + np.sqrt(1 - cosine**2) * _unit(across)


def _unit(x: NDArray) -> NDArray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def _embed(points: NDArray, spec: Set, rng: Generator, noise: float) -> NDArray:
    """Points of the plane in `d` columns: turned, with noise in all of them."""
    if spec.d == 2:
        return points
    turn = np.linalg.qr(rng.normal(size=(spec.d, spec.d)))[0][:2]
    return points @ turn + rng.normal(size=(len(points), spec.d)) * noise


def _moons(spec: Set, rng: Generator) -> Rows:
    labels, angle = np.arange(spec.n) % 2, rng.uniform(0, np.pi, spec.n)
    x = np.where(labels == 0, np.cos(angle), 1 - np.cos(angle))
    y = np.where(labels == 0, np.sin(angle), 0.5 - np.sin(angle))
    points = np.stack([x, y], axis=1) + rng.normal(size=(spec.n, 2)) * spec.shape
    return _embed(points, spec, rng, spec.shape), labels


def _rings(spec: Set, rng: Generator) -> Rows:
    labels, angle = np.arange(spec.n) % spec.k, rng.uniform(0, 2 * np.pi, spec.n)
    points = (1.0 + labels)[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return points + rng.normal(size=(spec.n, 2)) * spec.shape * 2, labels


def _chains(spec: Set, rng: Generator) -> Rows:
    """Waves one above the other."""
    labels, x = _labels(spec, rng), rng.uniform(0, 4, spec.n)
    y = 1.2 * labels + 0.8 * np.sin(1.5 * x + 0.2 * labels)
    points = np.stack([x, y], axis=1) + rng.normal(size=(spec.n, 2)) * 0.07
    return _embed(points, spec, rng, 0.05), labels


def _one(spec: Set, rng: Generator) -> Rows:
    points = rng.normal(size=(spec.n, spec.d)) * np.geomspace(1, spec.shape, spec.d)
    return points + rng.normal(size=spec.d), np.zeros(spec.n, np.int64)


def _student(spec: Set, rng: Generator) -> Rows:
    scale = np.sqrt(spec.shape / rng.chisquare(spec.shape, spec.n))
    points = rng.normal(size=(spec.n, spec.d)) * scale[:, None]
    return points, np.zeros(spec.n, np.int64)


def _noise(spec: Set, rng: Generator) -> Rows:
    return rng.uniform(size=(spec.n, spec.d)), np.zeros(spec.n, np.int64)


def _quantized(spec: Set, rng: Generator) -> Rows:
    """Blobs rounded to `shape` levels in each column."""
    points, labels = _blobs(spec, rng)
    low, high = points.min(axis=0), points.max(axis=0)
    return np.round((points - low) / (high - low) * (spec.shape - 1)), labels


_KINDS = {
    "blobs": _blobs,
    "ellipses": _ellipses,
    "hierarchy": _hierarchy,
    "styles": _styles,
    "styles_cosine": _styles,
    "vmf": _vmf,
    "vmf_one": _vmf,
    "vmf_noise": _vmf,
    "moons": _moons,
    "rings": _rings,
    "chains": _chains,
    "one": _one,
    "student": _student,
    "noise": _noise,
    "quantized": _quantized,
}


def _around_centers(rng: Generator, centers: NDArray, sizes: list[int], noise: float) -> Rows:
    truth = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    rows = centers[truth] + noise * rng.normal(size=(len(truth), centers.shape[1]))
    return rows.astype(np.float32), truth


def huge(seed: int, count: int) -> Iterator[Case]:
    """One huge cluster beside 10 to 60 small ones of 20 to 40 rows; or sizes by Zipf's law."""
    for i in range(count):
        rng = default_rng(seed + i)
        k, d = round(np.exp(rng.uniform(np.log(11), np.log(60)))), int(rng.integers(24, 65))
        most, least = int(rng.integers(1000, 5001)), int(rng.integers(20, 41))
        sizes = [most, *[least] * (k - 1)]
        if i % 2:
            sizes = [max(least, most // rank) for rank in range(1, k + 1)]
        centers = _unit(rng.normal(size=(k, d)))
        x, truth = _around_centers(rng, centers, sizes, rng.uniform(0.25, 0.5) / np.sqrt(d))
        metric = ("cosine", "euclidean")[i // 2 % 2]
        name = f"huge-{seed + i}-k{k}-{('one', 'zipf')[i % 2]}-{metric}"
        yield Case(name, x, (truth,), metric)


def few_rows(seed: int, count: int) -> Iterator[Case]:
    """Two or three groups of 3 to 6 rows, 12 apart; then as many rows of one."""
    for i in range(2 * count):
        rng = default_rng(seed + i)
        k, d = 2 + i % 2, (2, 6, 20)[i % 3]
        sizes = [4, *rng.integers(3, 7, k - 1).tolist()]
        x, truth = _around_centers(rng, 12 * np.eye(k, d), sizes, 1.0)
        if i >= count:
            x, truth = rng.normal(size=x.shape).astype(np.float32), np.zeros_like(truth)
        name = f"few-{seed + i}-n{len(x)}-k{truth.max() + 1}-d{d}"
        yield Case(name, x, (truth,), "euclidean")


def random_centers(seed: int, count: int) -> Iterator[Case]:
    """20 to 200 random centers in 6 to 32 columns, three to six times as far as rows within."""
    for i in range(count):
        rng = default_rng(seed + i)
        k, d = round(np.exp(rng.uniform(np.log(20), np.log(200)))), int(rng.integers(6, 33))
        centers = rng.uniform(3, 6) * rng.normal(size=(k, d))
        x, truth = _around_centers(rng, centers, [int(rng.integers(12, 41))] * k, 1.0)
        yield Case(f"centers-{seed + i}-k{k}-n{len(x)}-d{d}", x, (truth,), "euclidean")
