"""Metrics of one's own: modules with a function `score(features, labels, clusters)`.

The function gets the features that were clustered, float32 `[n, d]`, unit rows; the labels, int32
`[n]`, or None without labels; and the clusters, int `[n]`. It returns numbers by their names, or
None for one that needs labels where there are none. They stand in the results, the tables and the
report beside the metrics of the package.
"""

import math
import numbers
from collections.abc import Mapping, Sequence

from numpy.typing import NDArray

from cluster_jax.core import outside
from cluster_jax.core.checks import InputError

NEEDS = ("score",)


def check(names: Sequence[str]) -> None:
    """Raises an `InputError` unless each of the modules can be imported and defines `score`."""
    for name in names:
        outside.module("eval.metrics", name, (), NEEDS)


def files(names: Sequence[str]) -> dict[str, str | None]:
    """Returns the SHA-256 of the file of each module, by its name."""
    check(names)
    return {name: outside.digest(name) for name in names}


def scores(
    names: Sequence[str], features: NDArray, labels: NDArray | None, clusters: NDArray
) -> dict[str, float | None]:
    """Returns the numbers of all modules, by their own names.

    Args:
        names: the modules.
        features: float `[n, d]`, passed to `score`, like the other two.
        labels: int `[n]`, or None.
        clusters: int `[n]`.

    Raises:
        InputError: `score` returns something else, or two modules have a number of one name.
        Exception: `score` raises it.
    """
    found = dict[str, float | None]()
    for name in names:
        values = outside.module("eval.metrics", name, (), NEEDS).score(features, labels, clusters)
        must = f"score of eval.metrics {name} must return numbers by name, as in {{'purity': 0.5}}"
        if not isinstance(values, Mapping):
            raise InputError(f"{must}; got a {type(values).__name__}")
        for key, value in values.items():
            is_number = value is None or isinstance(value, numbers.Real)
            if not isinstance(key, str) or not is_number:
                raise InputError(f"{must}; got {key!r}: {value!r}")
            if key in found:
                raise InputError(f"eval.metrics must have one number of each name; got two {key!r}")
            is_known = value is not None and math.isfinite(value)
            found[key] = float(value) if is_known else None
    return found
