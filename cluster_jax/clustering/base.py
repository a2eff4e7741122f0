"""Records that clusterers return: verdicts, probabilities, and assignments of new rows."""

from typing import NamedTuple

from numpy.typing import NDArray

# Verdicts on a number of clusters that was found.
VERDICTS = CLEAR, ONE, UNCLEAR = "clear", "one_cluster", "unclear"
# Label of rows in no cluster, as of noise in scikit-learn: zeros, which have no cosine, and rows
# that a person has taken out of their cluster.
NO_CLUSTER = -1


class Membership(NamedTuple):
    """Clusters of n rows and their probabilities.

    Attributes:
        labels: int64 `[n]`.
        probabilities: float64 `[n]`, of the label.
        second_labels: int64 `[n]`, the most probable other cluster, -1 if all others have
            probability 0.
        second_probabilities: float64 `[n]`, of the second label, 0 without one.
    """

    labels: NDArray
    probabilities: NDArray
    second_labels: NDArray
    second_probabilities: NDArray


class Assignment(NamedTuple):
    """Clusters or classes assigned to new rows.

    Attributes:
        labels: int64 `[m]`, the cluster; -1: none, because the row is zero and has no cosine, or
            because a person has taken most of the nearest rows out of their clusters. In novel
            class discovery str `[m]`, the class.
        distances: float64 `[m]`, to the center of the cluster: for the tree between sharp rows; for
            spherical k-means 1 - cosine; else the Euclidean distance, for classes and the cosine
            between unit rows.
        novelty: float64 `[m]`, the distance to the nearest training row, divided by the 95th
            percentile of the distances between nearest training rows
            (`placing.novelty_threshold`); infinite for a row that is in no cluster as it is zero.
        probabilities, second_labels, second_probabilities: see `Membership`; None without a tree.
    """

    labels: NDArray
    distances: NDArray
    novelty: NDArray
    probabilities: NDArray | None = None
    second_labels: NDArray | None = None
    second_probabilities: NDArray | None = None

    @property
    def is_novel(self) -> NDArray:
        """Which rows are unlike all training rows, bool `[m]`, so that the label means little."""
        return self.novelty > 1

    @property
    def membership(self) -> Membership | None:
        """The labels and their probabilities as one record, or None without a tree."""
        columns = (self.probabilities, self.second_labels, self.second_probabilities)
        if any(column is None for column in columns):
            return None
        return Membership(self.labels, *columns)  # type: ignore[arg-type]
