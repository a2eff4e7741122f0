"""Data sets of feature vectors from another network: one or several views of each image."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits

from cluster_jax.core.checks import InputError
from cluster_jax.data import tables
from cluster_jax.data.images import DataConfig, Dataset, subset

# Rows that are converted at a time, which bounds memory.
_CHUNK = 1024


def load(config: DataConfig, *, with_labels: bool = True) -> Dataset:
    """Features `[N, d]`, or `[N, v, d]` with v views of each image, the first the image itself.

    Vectors are scaled to length one, because they are compared by cosine.

    The file `data.dir` is a `.npy`, `.npz` or `.csv`, see `tables.read_table`. A `.npz` file holds
    features under `features` or `x`, or as its only array. Optional arrays are int labels `[N]`
    (`labels` or `y`), names of the classes (`label_names`), and a name of each image (`files`).

    Args:
        config: the section `data`.
        with_labels: whether to read labels.

    Raises:
        ValueError: missing file, or features or labels of an unsupported dtype, shape or value.
    """
    path = config.dir
    values, sources, others = tables.read_features(path)
    labels = tables.check_labels(others, len(values), path) if with_labels else None
    label_names = tables.strings(others, "label_names", path)
    if label_names is not None and labels is not None and labels.max() >= len(label_names):
        wanted = f"name each of the labels 0 to {labels.max()}"
        found = f"{len(label_names)} names"
        raise InputError(f"label_names in {path} must {wanted}; got {found}")
    name = f"features in {path}"
    _check(values, name)
    rows = subset(len(values), config.limit)
    kept = values if len(rows) == len(values) else values[rows]
    return _dataset(_l2_normalized(kept, name), config.cache_mb)._replace(
        labels=None if labels is None else labels[rows],
        label_names=label_names,
        sources=None if sources is None else tuple(sources[i] for i in rows),
    )


def from_array(X: ArrayLike, config: DataConfig) -> Dataset:
    """A data set from features `[N, d]` or `[N, v, d]`, see `load`.

    Raises:
        ValueError: not an array of features.
    """
    values = tables.one_array(X, "rows of different lengths")
    _check(values, "features in X")
    return _dataset(_l2_normalized(values, "features in X"), config.cache_mb)


def pending(images: Dataset, views: int, columns: int) -> Dataset:
    """The data set of images that are not embedded yet; `of_images` adds the values.

    Args:
        images: the images.
        views: number of augmented views of each image that will be stored.
        columns: length of a feature vector.
    """
    return images._replace(
        shape=(1 + views, columns), images=None, fetch=_fetch_pending, features_of=images
    )


def of_images(images: Dataset, values: NDArray, cache_mb: float) -> Dataset:
    """A data set of features, float `[N, v, d]`, with labels, names and sources of the images.

    Raises:
        ValueError: a value is not finite.
    """
    found = _dataset(_l2_normalized(values, f"features of {images.name}"), cache_mb)
    return images._replace(
        shape=found.shape, images=found.images, fetch=found.fetch, features_of=images
    )


def _fetch_pending(indices: NDArray) -> NDArray:
    raise LookupError("the images have no features yet")


def with_neighbors(dataset: Dataset, count: int) -> Dataset:
    """The set with the features of the nearest neighbors of each row appended to its own views.

    Neighbors are the most similar other rows by the cosine of their first views. In novel class
    discovery labeled rows have labeled neighbors and unlabeled rows unlabeled neighbors, because
    known and novel classes are disjoint.

    Args:
        dataset: features.
        count: number of neighbors, less than the number of labeled and of unlabeled rows.

    Raises:
        InputError: there are too few rows.
    """
    if count == dataset.neighbors:  # zero, or an earlier stage has added the neighbors
        return dataset
    views, columns = dataset.shape
    shape = (views + count, columns)
    groups = {"rows of the data": np.arange(dataset.size)}
    if (known := dataset.known) is not None:
        labeled, unlabeled = np.flatnonzero(known >= 0), np.flatnonzero(known < 0)
        groups = {"labeled rows": labeled, "unlabeled rows": unlabeled}
    for kind, rows in groups.items():
        if count >= len(rows):
            must = f"feature_views.neighbors must be less than the {len(rows)} {kind}"
            raise InputError(f"{must}; got {count}")
    if dataset.fetch is _fetch_pending:
        return dataset._replace(shape=shape, neighbors=count)
    starts = range(0, dataset.size, _CHUNK)
    indices = [np.arange(start, min(start + _CHUNK, dataset.size)) for start in starts]
    first = np.concatenate([dataset.fetch(chunk)[:, 0] for chunk in indices])
    nearest = np.empty((dataset.size, count), np.int64)
    for rows in groups.values():
        search = NearestNeighbors(n_neighbors=count, metric="cosine", algorithm="brute")
        # One thread, because the order of ties depends on the number of threads, and all processes
        # must agree. `kneighbors` without an argument excludes each row from its neighbors.
        with threadpool_limits(1):
            nearest[rows] = rows[search.fit(first[rows]).kneighbors(return_distance=False)]

    def fetch(indices: NDArray) -> NDArray:
        indices = np.asarray(indices)
        return np.concatenate([dataset.fetch(indices), first[nearest[indices]]], axis=1)

    # Streamed, because on the device it would take many times the memory of the set.
    return dataset._replace(shape=shape, images=None, fetch=fetch, neighbors=count, nearest=nearest)


def _dataset(values: NDArray, cache_mb: float) -> Dataset:
    cached = values if values.nbytes <= cache_mb * 1e6 else None
    shape, fetch = values.shape[1:], values.__getitem__
    return Dataset("features", len(values), shape, cached, fetch)


def _check(values: NDArray, name: str) -> None:
    """Raises an `InputError` for an unsupported shape or dtype."""
    shape = " x ".join(map(str, values.shape))
    if values.ndim not in (2, 3) or not values.size:
        wanted = "shape [N x d], or [N x v x d] with v views of each image"
        raise InputError(f"{name} must have {wanted}; got [{shape}]")
    if values.dtype.kind not in "biuf":
        raise InputError(f"{name} must be real numbers; got {values.dtype}")


def _l2_normalized(values: NDArray, name: str) -> NDArray:
    """L2-normalized features, float32 `[N, v, d]`; a zero vector stays zero."""
    values = values.reshape(len(values), -1, values.shape[-1])
    rows = np.empty(values.shape, np.float32)
    for i in range(0, len(values), _CHUNK):  # in chunks, to avoid a float64 copy of the whole set
        chunk = values[i : i + _CHUNK].astype(np.float64)
        if not np.isfinite(chunk).all():
            raise InputError(f"{name} must be finite; got NaN or infinity")
        largest = np.abs(chunk).max(axis=2, keepdims=True)
        chunk /= np.where(largest > 0, largest, 1)  # so that squares cannot overflow
        norms = np.linalg.norm(chunk, axis=2, keepdims=True)
        rows[i : i + _CHUNK] = chunk / np.where(norms > 0, norms, 1)
    return rows
