"""The silhouette: how well clusters are separated, judged without labels."""

import numpy as np
from numpy.typing import ArrayLike
from sklearn.metrics import silhouette_score

from cluster_jax.core import checks
from cluster_jax.core.arrays import normalize_rows, one_per_row


def silhouette(
    features: ArrayLike,
    clusters: ArrayLike,
    *,
    metric: str = "euclidean",
    sample_size: int = 10_000,
    seed: int = 0,
) -> float | None:
    """Returns the mean silhouette (Rousseeuw 1987) of a sample of rows drawn without replacement.

    A row of the sample is compared with the other rows of the sample only. Singleton clusters
    score 0. Wraps scikit-learn's function, but the sample keeps the order of the rows, and
    distances are exact far from the origin and for numbers of any size.

    Args:
        features: finite float `[n, d]`.
        clusters: cluster of each row `[n]`.
        metric: distance between features, for example `"cosine"`.
        sample_size: rows of the sample; all rows are taken where there are no more.
        seed: of the sample; the same seed gives the same value.

    Returns:
        A number from -1 to 1, or None where the sample holds fewer than two clusters, or no
        cluster with two rows.

    Raises:
        ValueError: features and clusters are of different length, or `sample_size` is below 3.

    Example:
        >>> silhouette([[0.0], [1.0], [8.0], [9.0]], [0, 0, 1, 1])
        0.8745098039215686
        >>> silhouette([[0.0], [1.0], [8.0], [9.0]], [0, 0, 0, 0]) is None
        True
    """
    rows = np.asarray(features)
    labels = one_per_row(clusters, "clusters", len(rows))
    checks.whole("sample_size", sample_size, 3)
    if len(rows) > sample_size:
        rng = np.random.default_rng(seed)
        sample = np.sort(rng.choice(len(rows), sample_size, replace=False))
        rows, labels = rows[sample], labels[sample]
    if not 2 <= len(np.unique(labels)) < len(labels):
        return None
    if metric == "euclidean":
        # No distance changes beside the others, but squares neither overflow nor vanish; then, far
        # from the origin, squared distances would be differences of large numbers.
        rows = rows.astype(np.result_type(rows, np.float32))
        rows = np.ldexp(rows, -np.frexp(np.abs(rows).max())[1])
        rows = rows - rows.mean(axis=0, dtype=np.float64)
    elif metric == "cosine":
        # scikit-learn's norms overflow in float32.
        rows = normalize_rows(rows.astype(np.result_type(rows, np.float32)))
    return float(silhouette_score(rows, labels, metric=metric))
