"""Files that two people have saved of one page: in which order they are applied decides nothing."""

import dataclasses

import numpy as np
import pytest

from cluster_jax.core.checks import InputError
from cluster_jax.runs import carry, corrections
from cluster_jax.runs import run as records
from tests.rows import every_row

FIRST = np.eye(3)[np.repeat([0, 1, 2], [30, 20, 10])] * 9
FIRST = FIRST + np.random.default_rng(0).normal(size=FIRST.shape)
# Small clusters, so that two files are often about the same ones.
LABELS = np.repeat([0, 1, 2, 3, -1], [6, 4, 3, 2, 1])
N, CLUSTERS = len(LABELS), 4


@pytest.fixture(scope="module")
def shown(first):
    """The state of the page: 16 rows in four clusters, and a row of each of them that has left."""
    run = records.read(first)
    columns, departed = run.columns[:N].copy(), run.columns[N : N + CLUSTERS].copy()
    columns["found"], departed["found"] = np.maximum(LABELS, 0), range(CLUSTERS)
    columns["label"], departed["label"] = columns["found"], departed["found"]
    run = dataclasses.replace(
        run, columns=columns, departed=departed, facts=None, next_label=CLUSTERS
    )
    said = {"names": {"3": "birds"}, "wrong": np.flatnonzero(LABELS < 0).tolist()}
    run = dataclasses.replace(carry.corrected(run, said), number=2)
    assert run.labels.tolist() == LABELS.tolist()
    return run


def drawn(rng, shown, browser):
    """A file of up to three kinds of decisions that do not contradict each other."""
    while True:
        said = {key: {} for key in corrections.OBJECTS} | {key: [] for key in corrections.LISTS}
        for kind in rng.choice(["names", "merges", "labels", "new", "wrong", "right", "whole"], 3):
            cluster, other = rng.integers(CLUSTERS, size=2).tolist()
            rows = rng.choice(N, rng.integers(1, 4), replace=False).tolist()
            if kind == "names":
                said["names"][str(cluster)] = str(rng.choice(["cats", "dogs"]))
            elif kind == "new":
                key = str(rng.choice(["a", "b"]))
                said["new"][key] = [None, "cats", "dogs"][rng.integers(3)]
                said["labels"] |= {str(row): key for row in rows}
            elif kind == "labels":
                said["labels"] |= {str(row): cluster for row in rows}
            else:
                said[kind] += {"merges": [[cluster, other]], "whole": [cluster]}.get(kind, rows[:1])
        said = {key: said[key] for key in said if said[key] and rng.random() < 0.7}
        try:
            carry.corrected(shown, said)
        except InputError:
            continue
        return {"browser": browser, **said}


def applied(run, shown, said):
    return carry.carried(shown, run, said)


def told(run):
    """What a run says of its rows and clusters, whatever the numbers of the new ones."""
    labels = run.labels.tolist()
    new = list(dict.fromkeys(label for label in labels if label >= CLUSTERS))
    number = {label: label for label in labels} | {c: CLUSTERS + i for i, c in enumerate(new)}
    return {
        "labels": [number[label] for label in labels],
        "departed": run.departed["label"].tolist(),
        "decided": run.columns["decided"].tolist(),
        "named": {number[label]: run.named[label] for label in run.named.keys() & number},
        "shaped": {number[label] for label in run.shaped & number.keys()},
        "whole": run.whole,
    }


def in_both_orders(shown, one, other):
    """What the run says after both files; None if the second one is refused, in both orders."""
    results = []
    for first, second in ((one, other), (other, one)):
        run = applied(shown, shown, first)
        try:
            run = applied(run, shown, second)
        except InputError as error:
            if "open the page" not in str(error):
                raise
            results.append(None)
            continue
        results.append(told(run))
        for again in (first, second, first):
            run = applied(run, shown, again)
            assert told(run) == results[-1], f"again: {again}"
    assert results[0] == results[1]
    return results[0]


@every_row(
    ("one", "other", "labels", "named"),
    [
        ({"merges": [[2, 1]]}, {"names": {"2": "x"}}, {2: 1}, {1: "x", 3: "birds"}),
        ({"merges": [[2, 1]]}, {"labels": {"3": 2}, "whole": [2]}, {2: 1}, {3: "birds"}),
        ({"merges": [[2, 1]]}, {"merges": [[3, 2]]}, {2: 1, 3: 1}, {1: "birds"}),
        ({"merges": [[2, 1]]}, {"merges": [[1, 2]]}, None, None),
        ({"merges": [[2, 1]]}, {"merges": [[2, 0]]}, None, None),
        ({"merges": [[2, 1]]}, {"merges": [[1, 3], [3, 2]]}, None, None),
        (
            {"names": {"2": "y"}, "merges": [[3, 2]]},
            {"merges": [[2, 0], [0, 1]]},
            {0: 1, 2: 1, 3: 1},
            {1: "y"},
        ),
    ],
)
def test_what_is_said_of_a_merged_cluster_is_meant_of_the_receiving_one(
    shown, one, other, labels, named
):
    said = in_both_orders(shown, {"browser": "anna", **one}, {"browser": "ben", **other})
    if labels is None:
        assert said is None
        return
    wanted = [labels.get(label, label) for label in LABELS.tolist()]
    wanted[3] = 1 if "labels" in other else wanted[3]
    assert said["labels"] == wanted
    assert said["departed"] == [labels.get(label, label) for label in range(CLUSTERS)]
    assert said["named"] == named


@every_row(
    ("one", "other", "is_refused"),
    [
        # All rows of a cluster of which the other one speaks.
        ({"labels": {"13": 0, "14": 0}}, {"names": {"3": "x"}, "merges": [[3, 1]]}, False),
        # Rows of one new cluster are in two of the other person.
        (
            {"new": {"a": None}, "labels": {"5": "a", "6": "a"}},
            {"new": {"a": None, "b": None}, "labels": {"5": "a", "6": "b"}},
            True,
        ),
        # A key is that of its browser.
        (
            {"new": {"a": "x", "b": "y"}, "labels": {"4": "a", "15": "b"}},
            {"new": {"a": "x"}, "labels": {"2": "a", "15": "a"}},
            True,
        ),
        # Both clusters are divided, also by the new one that the other person has made.
        (
            {"new": {"a": None}, "labels": {"13": "a", "2": "a"}},
            {"new": {"a": None}, "labels": {"1": "a", "2": "a", "10": "a"}},
            False,
        ),
        # A row that one person moves to where the other one moves it by a merge, too.
        ({"labels": {"3": 2}}, {"labels": {"3": 1}, "merges": [[2, 1]]}, False),
    ],
)
def test_rows_of_two_files(shown, one, other, is_refused):
    said = in_both_orders(shown, {"browser": "anna", **one}, {"browser": "ben", **other})
    assert (said is None) == is_refused


def test_a_merge_that_no_longer_holds_moves_no_row(shown):
    """And the number of a new cluster of the page holds no cluster that an update has made."""
    run = applied(shown, shown, {"browser": "anna", "merges": [[3, 1]]})
    later = carry.corrected(run, {"labels": {"3": 3}})
    later.columns["label"][0] = later.columns["found"][0] = CLUSTERS
    later = dataclasses.replace(later, next_label=CLUSTERS + 1)
    said = {"merges": [[2, 1]], "new": {"a": None}, "labels": {"6": "a"}}
    now = applied(later, shown, {"browser": "ben", **said})
    assert now.labels[[0, 3, 6]].tolist() == [CLUSTERS, 3, CLUSTERS + 1]
    assert now.labels[10:15].tolist() == [1] * 5
    assert now.shaped == {1, CLUSTERS + 1}


@pytest.mark.parametrize(
    "seeds", [range(60), pytest.param(range(60, 5000), marks=pytest.mark.slow)], ids=len
)
def test_random_files(shown, seeds):
    refused = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        files = [drawn(rng, shown, browser) for browser in ("anna", "ben")]
        try:
            refused += in_both_orders(shown, *files) is None
        except (AssertionError, InputError) as error:
            error.add_note(f"seed {seed}: {files}")
            raise
    assert 0.05 < refused / len(seeds) < 0.4, "pairs of both kinds are drawn"
