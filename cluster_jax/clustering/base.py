"""What places new rows in clusters: the interface of a clusterer, and its answer."""

from typing import NamedTuple, Protocol

from numpy.typing import NDArray

# What a clusterer says of the number of clusters that it has found.
VERDICTS = CLEAR, ONE, UNCLEAR = "clear", "one_cluster", "unclear"
# Label of rows in no cluster, as of noise in scikit-learn: zeros, which have no cosine, and rows
# that a person has taken out of their cluster.
NO_CLUSTER = -1


class Membership(NamedTuple):
    """Clusters of n rows and how sure they are.

    Attributes:
        labels: int64 `[n]`.
        probabilities: float64 `[n]`, of the label.
        second_labels: int64 `[n]`, the likeliest other cluster, -1 where no other is likely.
        second_probabilities: float64 `[n]`, 0 where there is none.
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
        novelty: float64 `[m]`, the distance to the nearest training row, divided by that within
            which 95 % of these have another one (`placing.novelty_threshold`); infinite for a
            row in no cluster because it is zero.
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
        """The clusters and their probabilities in one, or None."""
        sure = (self.probabilities, self.second_labels, self.second_probabilities)
        if any(column is None for column in sure):
            return None
        return Membership(self.labels, *sure)  # type: ignore[arg-type]


class Clusterer(Protocol):
    """Clusters of n training rows, by which new rows are placed."""

    def place(self, x: NDArray, labels: NDArray | None = None) -> Assignment:
        """Places new rows `[m, d]`; rows do not affect each other.

        Args:
            x: the rows, finite numbers.
            labels: int `[n]`, of the training rows: of another cut of the tree, or as corrected by
                a person; None: those that were found.
        """
