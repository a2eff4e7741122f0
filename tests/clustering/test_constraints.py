"""What a person has said about rows holds, whatever an update has found."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_jax.clustering import constraints
from cluster_jax.clustering.constraints import Constraints


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1))
def test_constraints_without_a_contradiction_are_met(seed):
    rng = np.random.default_rng(seed)
    before = rng.integers(0, 4, 30)
    after = np.concatenate([rng.integers(0, 6, 30), rng.integers(0, 7, 10)])
    together = [tuple(rng.integers(0, 40, 2).tolist()) for _ in range(4)]
    group = constraints.groups(40, together)
    fixed = {}
    for row in rng.integers(0, 40, 3).tolist():
        of_group = [cluster for other, cluster in fixed.items() if group[other] == group[row]]
        fixed[row] = of_group[0] if of_group else int(rng.integers(0, 4))
    apart = []
    for a, b in rng.integers(0, 40, (4, 2)).tolist():
        given_of = {group[row]: cluster for row, cluster in fixed.items()}
        is_one = group[a] in given_of and given_of[group[a]] == given_of.get(group[b])
        if group[a] != group[b] and not is_one:
            apart.append((a, b))
    ids, next_id = constraints.enforced(before, after, 7, Constraints(fixed, together, apart))
    assert all(ids[row] == cluster for row, cluster in fixed.items())
    assert all(ids[a] == ids[b] for a, b in together)
    assert all(ids[a] != ids[b] for a, b in apart)
    assert ids.max() < next_id
    told = {row for pair in [*together, *apart] for row in pair} | set(fixed)
    others = [i for i in range(40) if i not in told and after[i] < 4]
    assert (ids[others] == after[others]).all()


def test_a_split_that_parts_a_pair_goes_back():
    before, after = np.zeros(6, int), np.array([0, 0, 0, 1, 1, 1])
    ids, _ = constraints.enforced(before, after, 2, Constraints({}, [(0, 3)], []))
    assert not ids.any()
