"""Decisions as facts about images, which an update keeps as constraints on their clusters."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering import constraints
from cluster_jax.core.checks import InputError
from cluster_jax.evaluation import decisions
from cluster_jax.evaluation.decisions import NO_CLUSTER, Decisions


def of_images(found: decisions.Clusters, decided: Decisions) -> Decisions:
    """Decisions as facts about images: a merge is one of typical images of both clusters."""
    typical = dict[int, str]()
    for i in np.argsort(found.distances, kind="stable").tolist():
        typical.setdefault(int(found.labels[i]), found.names[i])
    together = {
        (typical[a], typical[b])
        for a, b in decided.merged.items()
        if a in typical and b in typical and typical[a] not in decided.moved
    }
    moved = {
        name: cluster if cluster == NO_CLUSTER else decided.root(cluster)
        for name, cluster in decided.moved.items()
    }
    named = {decided.root(cluster): name for cluster, name in decided.named.items()}
    return Decisions(moved, {}, named, frozenset(), decided.same | together, decided.apart)


def rules(facts: Decisions, names: Sequence[str]) -> constraints.Constraints:
    """Facts about images that are there, as constraints on their places.

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
    given = dict[int, int]()
    must = "the facts in decisions.csv must agree"
    for row, cluster in fixed.items():
        other = given.setdefault(int(first[row]), row)
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


def renamed(facts: Decisions, now: Mapping[str, str], living_ids: NDArray) -> Decisions:
    """Facts by the names that images have now; without those of images that are gone."""
    pairs = (
        frozenset((now[a], now[b]) for a, b in of if a in now and b in now)
        for of in (facts.same, facts.apart)
    )
    moved = {now[name]: cluster for name, cluster in facts.moved.items() if name in now}
    alive = set(living_ids.tolist())
    named = {cluster: name for cluster, name in facts.named.items() if cluster in alive}
    return Decisions(moved, {}, named, frozenset(), *pairs)
