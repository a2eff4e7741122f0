"""Decisions as facts about images, which an update keeps as constraints on their clusters."""

import collections
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering import constraints, knn
from cluster_jax.core.checks import InputError
from cluster_jax.report import decisions
from cluster_jax.report.decisions import NO_CLUSTER, PAIRS, Absent, Decisions

# Rows near a moved one that may follow it, and typical rows of its cluster, to which they are not
# nearer. With more of the former, or fewer of the latter, more rows follow, and less often rightly.
_NEIGHBORS, _TYPICAL = 5, 20


def of_images(computed: decisions.Clusters, decided: Decisions) -> Decisions:
    """Turns decisions into facts about images: a merge is one of both clusters' typical images."""
    typical = dict[int, str]()
    for i in np.argsort(computed.distances, kind="stable").tolist():
        typical.setdefault(int(computed.labels[i]), computed.names[i])
    together = {
        (typical[a], typical[b])
        for a, b in decided.merged.items()
        if a in typical and b in typical and typical[a] not in decided.moved
    }
    moved, gone = (
        {key: decided.root(cluster) for key, cluster in of.items()}
        for of in (decided.moved, decided.absent.moved)
    )
    named = {decided.root(cluster): name for cluster, name in decided.named.items()}
    same, absent = decided.same | together, decided.absent._replace(moved=gone)
    return Decisions(moved, {}, named, frozenset(), same, decided.apart, decided.distinct, absent)


def rules(facts: Decisions, names: Sequence[str]) -> constraints.Constraints:
    """Turns facts about images that are there into constraints on their places.

    Raises:
        InputError: two facts contradict each other; names both.
    """
    place = {name: i for i, name in enumerate(names)}
    fixed = {
        place[name]: cluster
        for name, cluster in facts.moved.items()
        if name in place and cluster != NO_CLUSTER
    }
    together, apart = (
        [(place[a], place[b]) for a, b in sorted(pairs) if a in place and b in place]
        for pairs in (facts.same, facts.apart)
    )
    first = constraints.groups(len(names), together)
    first_of = dict[int, int]()
    must = "the facts in decisions.csv must agree"
    for row, cluster in fixed.items():
        other = first_of.setdefault(int(first[row]), row)
        if fixed[other] != cluster:
            raise InputError(
                f"{must}; got {names[row]!r} in group {cluster} and in one group with "
                f"{names[other]!r}, which is in group {fixed[other]}: leave one"
            )
    for a, b in apart:
        same = first[a] == first[b]
        if same or (a in fixed and b in fixed and fixed[a] == fixed[b]):
            why = "one group" if same else f"group {fixed[a]}"
            raise InputError(
                f"{must}; got {names[a]!r} and {names[b]!r} apart, and both in {why}: leave one"
            )
    return constraints.Constraints(fixed, together, apart)


def followers(x: NDArray, computed: decisions.Clusters, decided: Decisions) -> dict[int, int]:
    """Returns rows that follow those that a person has moved since the clusters were found.

    Of the `_NEIGHBORS` nearest rows of a moved one that are in the cluster that it has left, those
    follow that are nearer to it than to each of the `_TYPICAL` rows nearest to that cluster's mean.
    Rows of which a person has said something stay.

    Args:
        x: `[n, d]`.
        computed: the clusters that the run has found, of n rows.
        decided: decisions about them.

    Returns:
        Row -> the cluster that it goes to.
    """
    if not decided.moved:
        return {}
    roots = np.array([decided.root(label) for label in computed.labels.tolist()], np.int64)
    labels, is_decided = decided.labels(computed), decided.is_decided(computed)
    paired = {name for kind in PAIRS for pair in getattr(decided, kind) for name in pair}
    is_free = ~is_decided & ~np.isin(computed.names, list(paired))
    following = dict[int, int]()
    for row in np.flatnonzero(is_decided & (labels != roots) & (labels != NO_CLUSTER)).tolist():
        left = np.flatnonzero((roots == roots[row]) & ~is_decided)
        if len(left) <= _TYPICAL:
            continue
        to_mean = np.linalg.norm(x[left] - x[left].mean(axis=0), axis=1)
        typical, others = np.split(left[np.argsort(to_mean, kind="stable")], [_TYPICAL])
        far = np.linalg.norm(x[others] - x[row], axis=1)
        near = np.argsort(far, kind="stable")[:_NEIGHBORS]
        to_typical = knn.nearest(x[others[near]], x[typical], 1).distances[:, 0]
        follow = others[near][far[near] < to_typical]
        following |= dict.fromkeys(follow[is_free[follow]].tolist(), int(labels[row]))
    return following


def followed(
    held: Decisions,
    was: Mapping[str, str],
    now: Mapping[str, str],
    renamed: Mapping[str, str],
    clusters: NDArray,
) -> Decisions:
    """Returns facts by the names of now, and those about images that are gone.

    Args:
        held: facts by earlier names, and about images that were gone.
        was: earlier names -> contents.
        now: names of now -> contents.
        renamed: earlier names of images that are there -> their names of now.
        clusters: int `[n]`, ids of clusters that there were.
    """
    absent = held.absent
    moved, gone = dict[str, int](), dict(absent.moved)
    for name, cluster in held.moved.items():
        if name in renamed:
            moved[renamed[name]] = cluster
        else:
            gone[was[name]] = cluster
    stayed = set(renamed.values())
    came = [name for name in now if name not in stayed]
    moved |= {name: gone.pop(now[name]) for name in came if now[name] in gone}
    pairs, lost = {kind: set[tuple[str, str]]() for kind in PAIRS}, []
    for kind in PAIRS:
        for a, b in sorted(getattr(held, kind)):
            if a in renamed and b in renamed:
                pairs[kind].add((renamed[a], renamed[b]))
            else:
                lost.append((kind, was[a], was[b]))
    named_by = collections.defaultdict[str, list[str]](list)
    for name, content in now.items():
        named_by[content].append(name)
    for kind, a, b in absent.pairs:
        there = [*named_by[a][:1], *named_by[b][a == b :][:1]]
        if len(there) == 2:
            pairs[kind].add((there[0], there[1]))
        else:
            lost.append((kind, a, b))
    alive = set(clusters.tolist())
    named = {cluster: name for cluster, name in held.named.items() if cluster in alive}
    last = {**absent.names, **{content: name for name, content in was.items()}}
    kept = {*gone, *(content for _, *both in lost for content in both)}
    away = Absent(gone, frozenset(lost), {content: last[content] for content in sorted(kept)})
    same, apart, distinct = map(frozenset, pairs.values())
    return Decisions(moved, {}, named, frozenset(), same, apart, distinct, away)
