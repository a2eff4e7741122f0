"""What places new rows in clusters: the interface of a clusterer, and its answer."""

from typing import NamedTuple, Protocol

from numpy.typing import NDArray

from cluster_jax.clustering.membership import Membership

# Verdicts of what finds the number of clusters.
VERDICTS = CLEAR, ONE, UNCLEAR = "clear", "one_cluster", "unclear"
# Label of rows in no cluster, as that of scikit-learn's noise: of zeros under the cosine, and of
# those that a person has found to be in a wrong one.
NO_CLUSTER = -1


class Assignment(NamedTuple):
    """Clusters or classes assigned to new rows.

    Attributes:
        labels: int64 `[m]`, the cluster, -1 for none: it is a row of zeros under the cosine, or
            most of the rows nearest to it are in none, because a person has said so; in novel class
            discovery str `[m]`, the class.
        distances: float64 `[m]`, distance to the center of the cluster, for GridShift in the map
            and in bandwidths, for the tree between sharp rows, for k-means 1 - cosine or the
            Euclidean distance, by its metric, and for classes the Euclidean distance between unit
            rows.
        is_novel: bool `[m]`: farther from every training row than 99 % of these are from their
            nearest other one (`out_of_sample.novelty_threshold`), so that the label means little.
        probabilities, second_labels, second_probabilities: see `Membership`; None without a tree.
    """

    labels: NDArray
    distances: NDArray
    is_novel: NDArray
    probabilities: NDArray | None = None
    second_labels: NDArray | None = None
    second_probabilities: NDArray | None = None

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
            labels: int `[n]`, of the training rows, if they are others than those that were found:
                of a cut of the tree, or as a person has corrected them.
        """
