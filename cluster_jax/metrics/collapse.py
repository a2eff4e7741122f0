"""Collapse of features: how far they spread, and over how many directions."""

import numpy as np
from numpy.typing import ArrayLike

from cluster_jax.core.arrays import normalize_rows, numeric

_ROWS = 10_000


def collapse(features: ArrayLike) -> dict[str, float]:
    """Returns spread and effective rank of unit rows, of at most 10,000, evenly spaced in the set.

    The effective rank is exp(H), H the entropy of the singular values divided by their sum (Roy
    and Vetterli, "The effective rank", EUSIPCO 2007). The singular values are those of the
    centered rows, a deviation: without centering a common mean would count as a direction.

    Args:
        features: finite float `[n, d]`; scaled to unit rows here, rows of zeros are kept.

    Returns:
        `std`, the mean over dimensions of the standard deviation over rows (healthy about
        1/sqrt(d), 0 when collapsed to a point), and `effective_rank`, from 1 (a line) to
        min(n - 1, d); 0 when all rows are equal.

    Raises:
        ValueError: not a non-empty 2-D array of finite numbers.

    Example:
        >>> metrics = collapse([[1.0, 0.0], [-2.0, 0.0], [0.0, 3.0], [0.0, -4.0]])
        >>> {name: round(value, 3) for name, value in metrics.items()}
        {'std': 0.707, 'effective_rank': 2.0}
    """
    rows = numeric(features, "features").astype(np.float64)
    n = len(rows)
    if n > _ROWS:
        rows = rows[np.linspace(0, n - 1, _ROWS).astype(np.int64)]
    rows = normalize_rows(rows)
    centered = rows - rows.mean(axis=0)
    values = np.linalg.svd(centered, compute_uv=False)
    # Where all rows are equal, rounding of the mean leaves tiny singular values.
    values = values[values > len(rows) * np.finfo(np.float64).eps]
    share = values / values.sum()
    rank = float(np.exp(-(share * np.log(share)).sum())) if len(values) else 0.0
    return {"std": float(centered.std(axis=0).mean()), "effective_rank": rank}
