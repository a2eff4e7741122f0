"""Groups of five to ten rows that lie apart: too few for a density of ten neighbors."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph

from cluster_jax.clustering import basins

# Nearest rows that must all be in the group; rows of a group, at most.
_NEAREST, MOST = 4, 10
# Dimensions around a group, by as many nearest rows, from which chance makes none: there some rows
# are near to many, so that the graph of noise holds together. Copies, at less than a quarter of the
# distance of the fourth row, would tear it.
_DIMENSIONS, _AROUND, _EVEN = 5.0, 20, 4
# Smaller groups than this fraction of the rows must lie beside a larger one: where all rows lie in
# clumps of five (frames of a film, views of an image), those are a matter of scale, not clusters.
FRACTION = 0.01


class Islands(NamedTuple):
    """Leaves among which small groups that lie apart have their own.

    Attributes:
        leaves: int64 `[n]`, 0 to m - 1.
        alone: the leaves of those groups.
    """

    leaves: NDArray
    alone: frozenset[int]


def divide(leaves: NDArray, distances: NDArray, indices: NDArray, prominence: float) -> Islands:
    """Gives leaves of their own to small groups that no row outside is near to.

    A group is a component of the graph of the four nearest rows. In five dimensions or more that is
    enough, unless rows have copies. In fewer it lies apart if the gap around it is so much wider
    than the spacing of its rows, and than that beyond the gap, that the log density falls by
    `prominence`. Equal rows have no spacing.

    Args:
        leaves: int64 `[n]`.
        distances: float64 `[n, k]`, ascending, of the nearest other rows; none is divided if k is
            10 or less.
        indices: int64 `[n, k]`.
        prominence: at least.

    Example:
        >>> x = np.append(np.arange(5.0), np.arange(100.0, 120.0))[:, None]
        >>> found = divide(np.zeros(25, np.int64), *basins.nearest_rows(x, 12), 1.65)
        >>> np.bincount(found.leaves), set(found.alone)
        (array([20,  5]), {1})
    """
    n = len(leaves)
    divided, n_alone = leaves.copy(), 0
    if indices.shape[1] > MOST:
        near = indices[:, :_NEAREST]
        edges = np.repeat(np.arange(n), _NEAREST), near.ravel()
        graph = sparse.csr_array((np.ones(near.size, bool), edges), shape=(n, n))
        _, component = csgraph.connected_components(graph, directed=False)
        sizes = np.bincount(component)
        dimension = basins.dimension(distances[:, :_NEAREST])
        for each in np.flatnonzero(sizes <= MOST):
            own = np.flatnonzero(component == each)
            gaps = np.where(component[indices[own]] == each, np.inf, distances[own])
            nearest = np.unravel_index(gaps.argmin(), gaps.shape)
            radius = distances[own, _NEAREST - 1]
            beside, is_small = indices[own][nearest], len(own) < FRACTION * n
            # The gap is infinite where all rows that are looked at are inside.
            is_distinct = radius.min() > 0 and gaps.min() < np.inf
            if not is_distinct or (is_small and sizes[component[beside]] <= MOST):
                continue
            around = np.union1d(own, indices[own])
            is_even = (_EVEN * distances[own, 0] >= radius).all()
            is_enough = basins.dimension(distances[around, :_AROUND]) >= _DIMENSIONS
            spacing = max(radius.max(), distances[beside, (MOST if is_small else _NEAREST) - 1])
            if (is_even and is_enough) or dimension * np.log(gaps.min() / spacing) >= prominence:
                divided[own] = n + n_alone
                n_alone += 1
    ids, divided = np.unique(divided, return_inverse=True)
    return Islands(divided, frozenset(range(len(ids) - n_alone, len(ids))))
