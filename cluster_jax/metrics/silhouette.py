"""How well separated found clusters are, without labels."""

import numpy as np
from numpy.typing import ArrayLike
from sklearn.metrics import silhouette_score


def silhouette(
    features: ArrayLike, clusters: ArrayLike, *, metric: str, rows: int, seed: int
) -> float | None:
    """Mean silhouette (Rousseeuw 1987) of a sample of rows, drawn without replacement.

    A row of the sample is compared with the rest of the sample only. Clusters of one such row
    score 0, as scikit-learn has it.

    Args:
        features: finite float `[n, d]`.
        clusters: found clusters `[n]`.
        metric: distance between features, for example `"cosine"`.
        rows: size of the sample; all rows are taken where there are no more.
        seed: of the sample; the same seed gives the same figure.

    Returns:
        A number from -1 to 1, or None where the sample holds fewer than two clusters, or none of
        two rows.

    Raises:
        ValueError: features and clusters are of different length, or `rows` is below 3.
    """
    features, clusters = np.asarray(features), np.asarray(clusters)
    if len(features) != len(clusters):
        raise ValueError(
            f"features and clusters must have the same length; got {len(features)} and "
            f"{len(clusters)}"
        )
    if rows < 3:
        raise ValueError(f"a silhouette needs a sample of at least 3 rows; got {rows}")
    if len(features) > rows:
        chosen = np.sort(np.random.default_rng(seed).choice(len(features), rows, replace=False))
        features, clusters = features[chosen], clusters[chosen]
    if not 2 <= len(np.unique(clusters)) < len(clusters):
        return None
    if metric == "euclidean":
        # Squares of distances are differences of large numbers unless the origin is near.
        features = features - features.mean(axis=0, dtype=np.float64)
    return float(silhouette_score(features, clusters, metric=metric))
