"""What a person has said about rows, as hard constraints on clusters that keep their ids.

As in COP-k-means [1], rows that must be together have one cluster and those that must not have two;
here also rows whose cluster is given. Contradictions are found before: what is left can be met.

References:
    [1] Wagstaff, Cardie, Rogers and Schroedl 2001, Constrained k-means clustering with background
        knowledge.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Constraints(NamedTuple):
    """Facts about rows.

    Attributes:
        fixed: row -> its cluster.
        together: pairs of rows that are in one cluster.
        apart: pairs of rows that are in two.
    """

    fixed: Mapping[int, int]
    together: Sequence[tuple[int, int]]
    apart: Sequence[tuple[int, int]]


def groups(n: int, together: Sequence[tuple[int, int]]) -> NDArray:
    """Returns the first row of each row's group of rows that must be together, int64 `[n]`.

    Example:
        >>> groups(4, [(3, 1)]).tolist()
        [0, 1, 2, 1]
    """
    first = np.arange(n)
    for a, b in together:
        low, high = sorted((first[a], first[b]))
        first[first == high] = low
    return first


def enforced(
    before: NDArray, after: NDArray, next_id: int, rules: Constraints
) -> tuple[NDArray, int]:
    """Returns the clusters of all rows under the constraints, and the lowest id that is not used.

    A cluster that was split off and would part rows that must be together goes back. Of two rows
    that must be apart, the later one leaves for a new cluster, with all that must be with it.

    Args:
        before: int `[n]`, the clusters of the old rows.
        after: int `[m]`, those of all rows, the new ones last.
        next_id: the lowest id that no cluster has had.
        rules: constraints without a contradiction.

    Example:
        >>> before, after = np.array([0, 0, 0]), np.array([0, 0, 1, 0])
        >>> enforced(before, after, 2, Constraints({}, [(0, 2)], [(0, 3)]))[0].tolist()
        [0, 0, 0, 2]
    """
    ids, earlier = after.copy(), set(before.tolist())
    first = groups(len(ids), rules.together)
    fixed = {int(first[row]): cluster for row, cluster in rules.fixed.items()}
    members = {int(g): np.flatnonzero(first == g) for g in np.unique(first[_rows(rules)])}
    for group, rows in members.items():
        here = np.unique(ids[rows]).tolist()
        old = [cluster for cluster in here if cluster in earlier]
        target = fixed.get(group, ids[group] if ids[group] in earlier else (old or here)[0])
        for cluster in here:
            if cluster != target and cluster not in earlier and group not in fixed:
                ids[ids == cluster] = target
        ids[rows] = target
    for a, b in rules.apart:
        if ids[a] != ids[b]:
            continue
        leaves = max(a, b, key=lambda row: (first[row] not in fixed, row))
        ids[first == first[leaves]], next_id = next_id, next_id + 1
    return ids, next_id


def _rows(rules: Constraints) -> list[int]:
    return [*rules.fixed, *(row for pair in rules.together for row in pair)]
