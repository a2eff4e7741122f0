"""Data sets of feature vectors from another network.

Augmented views for a training mix a vector with its neighbors.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

from cluster_jax.core import arrays, checks, knn
from cluster_jax.core.checks import CountOrZero, InputError
from cluster_jax.data import tables
from cluster_jax.data.arrays import as_floats, labels_in
from cluster_jax.data.images import DataConfig, Dataset
from cluster_jax.data.views import Augment


def load(config: DataConfig, X: ArrayLike | None = None) -> Dataset:
    """Loads features `[N, d]` as a data set with items float32 `[1, d]`.

    Vectors are scaled to length one, because they are compared by cosine; a vector of zeros stays
    zero.

    The features are `X` or in the file or folder `data.dir`, see `tables.read_rows`. Optional
    arrays of an `.npz` are int labels `[N]` (`labels` or `y`), and names of the classes
    (`label_names`). The ids of the rows, of a table or an `.npz`, become the `sources`.

    Args:
        config: the section `data`, of which `dir` and `cache_mb` count here; `datasets.load`
            applies `labels`, `limit` and `classes`.
        X: features in place of a file, or None.

    Raises:
        ValueError: the file is missing, or features or labels have an unsupported dtype, shape or
            value.
    """
    if X is None:
        where = config.dir or ""
        table = tables.read_rows(where)
    else:
        arrays.check_unmasked(X, "X")
        where = "X"
        table = tables.Table(as_floats(np.asarray(X), where))
    values = table.values[:]
    name = f"features in {where}"
    if values.ndim != 2 or not values.size:
        shape = " x ".join(map(str, values.shape))
        raise InputError(f"{name} must have shape [N x d]; got [{shape}]")
    labels = labels_in(table.others, len(values), where)
    dataset = _dataset(values, name, config.cache_mb)._replace(labels=labels, sources=table.names)
    if "label_names" not in table.others:
        return dataset
    return dataset._replace(label_names=tuple(map(str, np.ravel(table.others["label_names"]))))


def pending(images: Dataset, columns: int) -> Dataset:
    """Makes a placeholder for the features of images that are not embedded yet.

    Its `fetch` raises a `LookupError`. When the features are there, `of_images` makes another data
    set from its `features_of`, which takes its place.

    Args:
        images: the images.
        columns: length of a feature vector.
    """
    shape = 1, columns
    return images._replace(shape=shape, images=None, fetch=_fetch_pending, features_of=images)


def of_images(images: Dataset, values: NDArray, cache_mb: float) -> Dataset:
    """Makes a data set of the features of images; labels, names and sources are the images'.

    Args:
        images: the N images themselves; of a `pending` data set its `features_of`.
        values: their features, float `[N, d]`, which are scaled to length one.
        cache_mb: see `DataConfig`.

    Raises:
        InputError: a value is not finite.
    """
    features = _dataset(values, f"features of {images.name}", cache_mb)
    return images._replace(
        shape=features.shape, images=features.images, fetch=features.fetch, features_of=images
    )


def _fetch_pending(indices: NDArray) -> NDArray:
    """Raises a LookupError; it is the `fetch` of a `pending` data set."""
    raise LookupError("the images have no features yet")


def with_neighbors(dataset: Dataset, count: int) -> Dataset:
    """Appends the features of each row's nearest neighbors to its own.

    Neighbors are the most similar other rows by their cosine. In novel class discovery labeled rows
    have labeled neighbors and unlabeled rows unlabeled neighbors, because known and novel classes
    are disjoint. A data set that has `count` neighbors already stays as it is; a `pending` one gets
    the shape alone.

    Args:
        dataset: features without neighbors, or with `count` of them.
        count: number of neighbors, less than the number of rows, and in novel class discovery less
            than the number of labeled and of unlabeled rows. 0: none.

    Returns:
        A data set with items float32 `[1 + count, d]`, which are not in memory but fetched.

    Raises:
        InputError: there are too few rows.
    """
    if count == dataset.neighbors:  # zero, or an earlier stage has added the neighbors
        return dataset
    shape = (1 + count, dataset.shape[1])
    groups = {"rows of the data": np.arange(dataset.size)}
    if (partial := dataset.partial_labels) is not None:
        labeled = np.flatnonzero(partial >= 0)
        groups = {"labeled rows": labeled, "unlabeled rows": np.flatnonzero(partial < 0)}
    for kind, rows in groups.items():
        checks.at_most("feature_views.neighbors", count, len(rows) - 1, f"for {len(rows)} {kind}")
    if dataset.fetch is _fetch_pending:
        return dataset._replace(shape=shape, neighbors=count)
    first = dataset.fetch(np.arange(dataset.size))[:, 0]
    nearest = np.empty((dataset.size, count), np.int64)
    for rows in groups.values():
        # One thread, because products are rounded by their number, and all processes must agree.
        with threadpool_limits(1):
            own = knn.nearest(first[rows], first[rows], count, metric="cosine", exclude_self=True)
        nearest[rows] = rows[own.indices]

    def fetch(indices: NDArray) -> NDArray:
        indices = np.asarray(indices)
        return np.concatenate([dataset.fetch(indices), first[nearest[indices]]], axis=1)

    # Streamed, because on the device it would take many times the memory of the set.
    return dataset._replace(shape=shape, images=None, fetch=fetch, neighbors=count, nearest=nearest)


def _dataset(values: NDArray, name: str, cache_mb: float) -> Dataset:
    """Makes a set of L2-normalized features, float32 `[N, 1, d]`; a zero vector stays zero.

    Args:
        values: `[N, d]`.
        name: what the features are, for messages.
        cache_mb: see `DataConfig`.

    Raises:
        InputError: a value is not finite.
    """
    unit = np.empty((len(values), 1, values.shape[1]), np.float32)
    for rows in arrays.blocks(*values.shape):  # never a float64 copy of the whole set
        block = values[rows].astype(np.float64)
        if not np.isfinite(block).all():
            raise InputError(f"{name} must be finite; got NaN or infinity")
        unit[rows, 0] = arrays.normalize_rows(block)
    cached = unit if unit.nbytes <= cache_mb * 1e6 else None
    return Dataset("features", len(unit), unit.shape[1:], cached, unit.__getitem__)


@dataclasses.dataclass(frozen=True)
class FeatureViewsConfig:
    """Section `feature_views`: augmentation of a feature vector, by views of it and its neighbors.

    Attributes:
        neighbors: number of nearest neighbors of which one is drawn: the view is a random point
            between the features and those of this neighbor. NCL's head on clusters spreads labels
            over the neighbors too (ten at most). 0: a view is the features.
    """

    neighbors: CountOrZero


def make_views(config: FeatureViewsConfig) -> Augment:
    """Makes the augmentations of an item of features, float `[1 + m, d]` -> `[d]`; see `Augment`.

    The first row has the features of the image itself, which `clean` returns, and the last m rows
    those of the neighbors. Vectors are scaled to a root mean square of one.
    """

    def view(key: Array, rows: Array) -> Array:
        _, neighbor_key, step_key = jax.random.split(key, 3)
        x = rows[0]
        if config.neighbors:
            neighbor = rows[-jax.random.randint(neighbor_key, (), 1, config.neighbors + 1)]
            x += jax.random.uniform(step_key, (), x.dtype) * (neighbor - x)
        return _unit_rms(x)

    return Augment(view, view, clean)


def clean(rows: Array) -> Array:
    """Returns the features `[d]` of an item, float `[1 + m, d]`, as a network takes them."""
    return _unit_rms(rows[0])


def _unit_rms(x: Array) -> Array:
    """Scales a vector of length one to a root mean square of one, as of standardized pixels."""
    return x.astype(jnp.result_type(float)) * math.sqrt(len(x))
