"""Real sets with labels, which score only: tables, features of photos, and low-dimensional sets."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray
from sklearn import datasets

from cluster_jax.core.checks import InputError
from cluster_jax.data import arrays
from experiments.number_of_clusters.generate import Case

# Features of photos by EfficientNet-Lite0, and by Lite2.
FILES, LITE2 = ("tiny95.npz", "cifar100_50.npz"), "tiny95_lite2.npz"
# Photos of a large kind beside a rare one.
LARGE = dict.fromkeys(FILES, 60)
LARGE_LITE2 = {LITE2: 60, "imagenette_lite2.npz": 220, "tiny_imagenet10_lite2.npz": 150}
BUNDLED = ("iris", "wine", "breast_cancer", "digits")
# Rows of a file, at most: the first ones.
_ROWS = 5_000


def tables(files: list[Path]) -> Iterator[Case]:
    """Sets of scikit-learn, and the first rows of files, see `read`."""
    for name in BUNDLED:
        x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        # Columns in units of their own.
        if name in ("wine", "breast_cancer"):
            x = (x - x.mean(axis=0)) / x.std(axis=0)
        yield Case(name, x.astype(np.float32), (y,), "euclidean")
    for file in files:
        yield read(file, _ROWS)


def read(file: Path, rows: int | None = None) -> Case:
    """Features or pixels, and `labels`, of an `.npz` file; its first rows, None: all.

    Raises:
        InputError: there is no such file, or they are not in it.
    """
    x, others, (key, *_) = arrays.read_arrays(str(file), ("images", "features"))
    if "labels" not in others:
        has = ", ".join([key, *others])
        raise InputError(f"{file} must hold features or images, and labels; it has {has}")
    y = others["labels"][:rows].astype(np.int64)
    x = x[:rows].reshape(len(y), -1).astype(np.float32)
    return Case(file.stem, x, (y,), "euclidean" if key == "images" else "cosine")


def photos(folder: Path, seed: int, count: int, files: tuple[str, ...] = FILES) -> Iterator[Case]:
    """Draws of 2 to 50 classes of photos from the files in turn.

    The number of classes is log-uniform. Every other pair of sets has a long tail, with four to ten
    times as many rows in the largest class as in the smallest; the others have 25 to 60 rows each.
    """
    pools = [_pool(folder, file) for file in files]
    for i in range(count):
        rng = default_rng(seed + i)
        x, y = pools[i % len(pools)]
        k = round(np.exp(rng.uniform(np.log(2), np.log(50))))
        chosen = rng.permutation(np.unique(y))[:k]
        if i // 2 % 2:
            sizes = 60 * np.geomspace(1, 1 / rng.uniform(4, 10), k)
        else:
            sizes = np.full(k, rng.integers(25, 61))
        sizes = np.maximum(6, sizes.round()).astype(int)
        rows = rng.permutation(_members(rng, y, chosen, sizes.tolist()))
        yield Case(f"photos-{seed + i}-k{k}", x[rows], (y[rows],), "cosine")


def few(folder: Path, seed: int, count: int) -> Iterator[Case]:
    """Few photos: 3, 5 or 8 of each of 3, 5 or 10 classes; then one class of 6 to 60 photos."""
    for i in range(count):
        each, k = (3, 5, 8)[i % 3], (3, 5, 10)[i // 3 % 3]
        yield _drawn(folder, f"few-{seed + i}-{each}x{k}", seed + i, [each] * k)
    for i in range(count, 2 * count):
        n = (6, 8, 10, 15, 20, 30, 45, 60)[i % 8]
        yield _drawn(folder, f"few-{seed + i}-{n}x1", seed + i, [n])


def copied(folder: Path, seed: int, count: int) -> Iterator[Case]:
    """Photos with copies: all twice, thrice, a fifth, or one kind twelve times; equal or noisy.

    Noise is 0, 0.1 or 1 % of the standard deviation of a column. What is a copy is known, as a run
    on photos knows it.
    """
    for i in range(count):
        rng = default_rng(seed + i)
        k, noise = int(rng.integers(4, 13)), (0, 1e-3, 1e-2)[i // 4 % 3]
        case = _drawn(folder, "", seed + i, [int(rng.integers(12, 31))] * k)
        x, y = case.rows, case.truths[0]
        n, one = len(y), np.flatnonzero(y == y[0])
        ways = {
            "twice": np.arange(n),
            "thrice": np.tile(np.arange(n), 2),
            "a-fifth": rng.permutation(n)[: n // 5],
            "one-kind": np.repeat(one, 11),
        }
        how, added = list(ways.items())[i % 4]
        spread = noise * x.std(axis=0)
        copies = x[added] + spread * rng.standard_normal((len(added), x.shape[1]), np.float32)
        name = f"copies-{seed + i}-{how}-{noise:g}"
        every = np.concatenate([x, copies]), (np.concatenate([y, y[added]]),)
        yield Case(name, *every, "cosine", np.concatenate([np.arange(n), added]))


def rare(folder: Path, seed: int, count: int, large: dict[str, int], most: int) -> Iterator[Case]:
    """6 to `most` photos of one class, the last, beside many of each of two to five others.

    `large` says how many of a file, which are taken in turn; one that is not there is left out.
    """
    for i in range(count):
        file = list(large)[i % len(large)]
        if (folder / file).exists():
            rng = default_rng(seed + i)
            sizes = [large[file]] * int(rng.integers(2, 6)) + [int(rng.integers(6, most + 1))]
            yield _drawn(folder, f"rare-{seed + i}", seed + i, sizes, file)


def _members(rng: np.random.Generator, y: NDArray, chosen: NDArray, sizes: list[int]) -> NDArray:
    """Random rows of the chosen classes, so many of each."""
    members = zip(chosen, sizes, strict=True)
    return np.concatenate([rng.permutation(np.flatnonzero(y == c))[:n] for c, n in members])


def _drawn(folder: Path, name: str, seed: int, sizes: list[int], file: str | None = None) -> Case:
    """Photos of random classes, so many of each; of two files in turn, unless one is named."""
    rng, (x, y) = default_rng(seed), _pool(folder, file or FILES[seed % 2])
    chosen = rng.permutation(np.unique(y))[: len(sizes)]
    rows = _members(rng, y, chosen, sizes)
    return Case(name, x[rows], (y[rows],), "cosine")


def single_classes(folder: Path) -> Iterator[Case]:
    """Each of the 145 classes of photos alone: one cluster of 60 rows."""
    for i, file in enumerate(FILES):
        x, y = _pool(folder, file)
        for c in np.unique(y):
            rows = x[y == c]
            yield Case(f"class-{i}-{c}", rows, (np.zeros(len(rows), np.int64),), "cosine")


def low_dimensional(folder: Path) -> Iterator[Case]:
    """Gagolewski's batteries: `NAME.data.gz` and `NAME.labels*.gz`, of which 0 is noise."""
    files = sorted(folder.glob("*/*.data.gz"))
    if not files:
        raise InputError(f"--data must be a folder with lowdim/*/*.data.gz; none are in {folder}")
    for file in files:
        name = file.name.removesuffix(".data.gz")
        labels = sorted(file.parent.glob(f"{name}.labels*.gz"))
        truths = tuple(np.loadtxt(f).astype(np.int64) - 1 for f in labels)
        yield Case(name, np.loadtxt(file).astype(np.float32), truths, "euclidean")


def _pool(folder: Path, file: str) -> tuple[NDArray, NDArray]:
    if not (folder / file).exists():
        raise InputError(f"--data must be a folder with features/{file}; got {folder.parent}")
    with np.load(folder / file) as arrays:
        return arrays["features"].astype(np.float32), arrays["labels"].astype(np.int64)
