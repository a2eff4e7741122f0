"""User-defined clusterers: a Python module with a function `fit(x, n_clusters, seed)`.

The function gets the features, float `[n, d]`, by default unit rows; the number of clusters, or
None if it is to be found; and a random seed. It returns the cluster of each row, integers `[n]`,
below 0 for a row in no cluster. Scores, map and report are those of the package; new rows get their
cluster by a vote of the nearest rows.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering.tree import by_size
from cluster_jax.core import outside
from cluster_jax.core.checks import InputError

NEEDS = ("fit",)


def check(key: str, name: str, choices: Sequence[str]) -> None:
    """Raises an `InputError` unless `name` is one of `choices`, or a module with a function `fit`.

    The module is imported, and an error of its own code is passed on.

    Args:
        key: the flag, or the key of a config, that has the value `name`; for messages.
        name: a clusterer of the package, or a module as Python imports it, such as `folder.file`.
        choices: the clusterers of the package.

    Example:
        >>> check("--method", "math", ("tree",))
        Traceback (most recent call last):
        cluster_jax.core.checks.InputError: --method must be one of 'tree', or a module of your \
own, with a function fit; got 'math', which has no fit
    """
    if name not in choices:
        outside.module(key, name, choices, NEEDS)


def fit(name: str, x: NDArray, n_clusters: int | None, seed: int) -> tuple[NDArray, int]:
    """Returns the clusters of rows by the function `fit` of a module, and their number.

    Args:
        name: the module, which has a function `fit`, see `check`.
        x: float `[n, d]`, passed to that function, like the two arguments below.
        n_clusters: number of clusters; None: it is found. The result may have another number.
        seed: random seed.

    Returns:
        Labels int64 `[n]`, and the number of clusters. Clusters are numbered by size, the largest
        is 0; of equally large ones, that of the lowest returned number comes first. Each row that
        the function puts into no cluster (a number below 0) has a label of its own, after all
        clusters; these labels do not count in the number.

    Raises:
        InputError: there is no such module, its function did not return integers `[n]` (1.0 and
            True are none), or no row is in a cluster.
        Exception: the function raises it.

    Example:
        >>> import sys, types
        >>> fit_signs = lambda x, n_clusters, seed: np.sign(x[:, 0]).astype(int)
        >>> sys.modules["signs"] = types.SimpleNamespace(fit=fit_signs)
        >>> fit("signs", np.array([[-1.0], [2.0], [0.0], [3.0]]), None, 0)
        (array([2, 0, 1, 0]), 2)
    """
    module = outside.module("method", name, (), NEEDS)
    labels = np.asarray(module.fit(x, n_clusters, seed))
    if labels.shape != (len(x),) or labels.dtype.kind not in "iu":
        raise InputError(
            f"{name}.fit must return a whole number for each of {len(x):,} rows; got an array "
            f"{labels.shape} of {labels.dtype}"
        )
    is_in = labels >= 0
    if not is_in.any():
        raise InputError(f"{name}.fit must put rows into clusters, from 0 on; got all below 0")
    ids, codes = np.unique(labels[is_in], return_inverse=True)
    result = np.empty(len(labels), np.int64)
    result[is_in] = by_size(codes)[codes]
    result[~is_in] = len(ids) + np.arange(len(labels) - is_in.sum())
    return result, len(ids)


def file_hash(name: str, choices: Sequence[str]) -> dict[str, str | None]:
    """Returns the SHA-256 of a user-defined clusterer's file as `{"clusterer_file": hash}`.

    The result is `{}` if `name` is one of `choices`, the clusterers of the package. Otherwise the
    module `name` is imported; the hash is None if the module has no file.

    Raises:
        InputError: there is no such module.

    Example:
        >>> file_hash("tree", ("tree", "gridshift"))
        {}
    """
    if name in choices:
        return {}
    check("method", name, choices)
    return {"clusterer_file": outside.digest(name)}
