"""Signs of collapse: how far features spread and over how many directions."""

import numpy as np
from numpy.typing import ArrayLike

_ROWS = 10_000


def collapse(features: ArrayLike) -> dict[str, float]:
    """Spread and effective rank of unit rows, on at most 10,000 rows evenly spaced in the set.

    The effective rank is exp(H), H the entropy of the singular values divided by their sum (Roy
    and Vetterli, "The effective rank", EUSIPCO 2007). The singular values are those of the
    centered rows, a deviation: without centering a common mean would count as a direction.

    Args:
        features: finite float `[n, d]`; scaled to unit rows here, a row of zeros stays.

    Returns:
        `std`, the mean over dimensions of the standard deviation over rows (healthy about
        1/sqrt(d), 0 when collapsed to a point), and `effective_rank`, from 1 (a line) to
        min(n - 1, d); 0 when all rows are equal.

    Raises:
        ValueError: not a non-empty 2-D array of finite numbers.
    """
    features = np.asarray(features, np.float64)
    if features.ndim != 2 or not features.size:
        raise ValueError(f"features must be a non-empty 2-D array; got shape {features.shape}")
    if not np.isfinite(features).all():
        raise ValueError("features contain NaN or infinity: drop or fill those rows")
    n = len(features)
    if n > _ROWS:
        features = features[np.linspace(0, n - 1, _ROWS).astype(np.int64)]
    norm = np.linalg.norm(features, axis=1, keepdims=True)
    rows = features / np.where(norm > 0, norm, 1)
    centered = rows - rows.mean(axis=0)
    values = np.linalg.svd(centered, compute_uv=False)
    # Rounding of the mean leaves dust where all rows are equal.
    values = values[values > len(rows) * np.finfo(np.float64).eps]
    share = values / values.sum()
    rank = float(np.exp(-(share * np.log(share)).sum())) if len(values) else 0.0
    return {"std": float(centered.std(axis=0).mean()), "effective_rank": rank}
