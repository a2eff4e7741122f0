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
        labels: int64 `[n]`; -1: the row is in no cluster.
        probabilities: float64 `[n]`, the probability of the label; 0 for a row in no cluster.
        second_labels: int64 `[n]`, the most probable other cluster, -1 if all others have
            probability 0. It may be more probable than the label.
        second_probabilities: float64 `[n]`, the probability of the second label, 0 without one.
    """

    labels: NDArray
    probabilities: NDArray
    second_labels: NDArray
    second_probabilities: NDArray


class Assignment(NamedTuple):
    """Clusters or classes assigned to new rows.

    Attributes:
        labels: int64 `[m]`, the cluster. -1: the row is in no cluster, because a person has taken
            most of the nearest training rows out of their clusters or, by a tree with the cosine,
            because the row is zero. In novel class discovery str `[m]`, the class.
        distances: float64 `[m]`, from each row to the center of its cluster. For a tree, the
            Euclidean distance between sharp rows; for spherical k-means, 1 - cosine; else the
            Euclidean distance, with the cosine between unit rows. For the label -1 the distance has
            no meaning.
        novelty: float64 `[m]`, the distance to the nearest training row, divided by
            `placing.novelty_threshold`, the 95 % quantile of the distances from training rows to
            their nearest other row. 0 for a copy of a training row; infinite for a row of zeros
            that a tree puts into no cluster, and for all but copies if the threshold is 0.
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
        """Whether each row has a novelty above 1, bool `[m]`: its label then means little."""
        return self.novelty > 1

    @property
    def membership(self) -> Membership | None:
        """The labels and their probabilities as one record; None without a tree."""
        columns = (self.probabilities, self.second_labels, self.second_probabilities)
        if any(column is None for column in columns):
            return None
        return Membership(self.labels, *columns)  # type: ignore[arg-type]
