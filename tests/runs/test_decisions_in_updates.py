"""Decisions of several people and pages while rows come, leave and are clustered again.

What a person has said ends only with a cluster that another number of clusters ends. Until then a
later file of the page takes it back, and the rows are where they were found.
"""

import collections
import dataclasses
import json

import numpy as np
import pytest

from cluster_jax.clustering import stable_ids
from cluster_jax.clustering.base import NO_CLUSTER
from cluster_jax.core.checks import InputError
from cluster_jax.data.tables import Table
from cluster_jax.runs import carry, decisions, match, states, update
from cluster_jax.runs import run as records
from tests.runs.walks import check_decided

# Four heaps: the clusters 0 to 3.
SIZES = [30, 20, 12, 10]
FIRST = np.eye(4)[np.repeat(range(4), SIZES)] * 12
FIRST = FIRST + np.random.default_rng(0).normal(size=FIRST.shape)
MORE = np.concatenate([FIRST, FIRST[30:36] + 0.01])


class Story:
    """What people do to a run, each of whom saves one file after the other."""

    def __init__(self, run):
        self.run, self.count = run, 0
        self.first = self.now.state

    @property
    def now(self):
        return records.read(self.run)

    @property
    def sizes(self):
        return dict(collections.Counter(self.now.labels.tolist()))

    def say(self, browser, page=None, **said):
        self.count += 1
        about = {"state": page or self.first, "browser": browser, "saved": self.count}
        file = self.run.parent / "said.json"
        file.write_text(json.dumps(about | said))
        text, _ = states.correct(self.run, [file], with_report=False)
        check_decided(self.now)
        return text

    def update(self, x=None, **how):
        table = None if x is None else Table(x)
        update.update_rows(self.run, table, confirmed=True, with_report=False, **how)
        check_decided(self.now)

    def number(self, count):
        update.with_number(self.run, count, with_report=False)
        check_decided(self.now)


@pytest.fixture
def story(run):
    return Story(run)


@pytest.mark.parametrize("how", ["add", "refit", "leave and return"])
def test_merges_in_a_chain_are_taken_back_after_an_update(story, how):
    """Of one page and of two; a cluster of one kind that was merged is one of one kind again."""

    def updated():
        if how == "leave and return":
            story.update(FIRST[:30])
        story.update(MORE if how == "add" else FIRST, refit=how == "refit")

    more = 6 * (how == "add")
    story.say("carla", whole=[3])
    story.say("anna", merges=[[3, 2]], right=[65])
    page = story.now.state
    story.say("ben", page, merges=[[2, 1]])
    updated()
    assert story.sizes == {0: 30, 1: 42 + more}
    assert story.now.held == {1, 2, 3}
    story.say("ben", page)
    assert story.sizes == {0: 30, 1: 20 + more, 2: 22}
    story.say("anna", merges=[[3, 2], [2, 1]])
    updated()
    assert story.sizes == {0: 30, 1: 42 + more}
    story.say("anna")
    assert story.sizes == {0: 30, 1: 20 + more, 2: 12, 3: 10}
    assert story.now.held == story.now.whole == {3}
    assert not story.now.columns["decided"].any()


def test_a_new_cluster_that_another_page_merges_keeps_its_number(story):
    said = {"new": {"a": "x"}, "labels": {"60": "a", "61": "a"}}
    story.say("anna", **said)
    page = story.now.state
    story.say("ben", page, merges=[[4, 1]])
    story.update(MORE)
    said["labels"]["59"] = "a"
    story.say("anna", **said)
    assert story.now.labels[59:62].tolist() == [1, 1, 1]
    story.say("ben", page)
    assert story.now.labels[59:62].tolist() == [4, 4, 4]


def test_another_number_of_clusters_finds_decided_rows_as_well(story):
    """A row whose merged cluster is there again is in it; one taken back is where it was found."""
    story.say("anna", merges=[[3, 2], [2, 1]], right=[70], labels={"3": 1})
    story.number(4)
    assert story.sizes == {0: 29, 1: 21, 2: 12, 3: 10}
    assert story.now.labels[70] == 3
    story.number(2)
    story.say("anna", labels={"70": 0})
    story.number(3)
    story.say("anna")
    assert len(story.sizes) == 3
    assert not story.now.columns["decided"].any()


def test_what_is_said_of_a_row_that_is_away_holds_when_it_is_back(story):
    """It is a state of its own, also if nothing that is there has changed."""
    story.say("carla", names={"1": "dogs"})
    story.update(np.delete(FIRST, [35, 36], 0))
    text = story.say("anna", labels={"35": 0}, wrong=[36])
    assert "1 moved, 1 in no cluster" in text
    assert story.now.number == 4
    states.undo(story.run, with_report=False)
    story.update(FIRST)
    assert story.now.labels[[35, 36]].tolist() == [1, 1]
    story.update(np.delete(FIRST, [35, 36], 0))
    story.say("anna", labels={"35": 0}, wrong=[36])
    story.update(FIRST)
    assert story.now.labels[[35, 36]].tolist() == [0, NO_CLUSTER]


def test_the_pages_of_two_orders_of_one_state_are_two_pages(story):
    """What the first one has confirmed is moved on the second one, which knows it."""
    story.say("ben", labels={"3": 1})
    story.say("anna", story.now.state, right=[3])
    number = story.now.number
    story.update(np.roll(FIRST, -3, 0))
    assert (story.now.number, story.now.labels[0]) == (number, 1)
    story.say("anna", story.now.state, labels={"0": 2})
    assert story.now.labels[0] == 2


def test_a_merge_is_not_taken_back_if_two_people_contradict_each_other_without_it(story):
    """In either order the second one is refused."""
    story.say("anna", labels={"3": 2}, merges=[[2, 1]])
    story.say("ben", labels={"3": 1})
    with pytest.raises(InputError, match=r"got row 3, which a person has .* in cluster 1"):
        story.say("anna", labels={"3": 2})
    states.undo(story.run, with_report=False)
    story.say("anna", labels={"3": 2})
    with pytest.raises(InputError, match=r"got row 3, which a person has .* in cluster 2"):
        story.say("ben", labels={"3": 1})


def test_a_merge_is_not_taken_back_if_two_others_agree_by_it_alone(story):
    story.say("anna", merges=[[2, 1]])
    story.say("ben", labels={"3": 1})
    story.say("carla", labels={"3": 2})
    with pytest.raises(InputError, match=r"got row 3, which a person has .* in cluster 2"):
        story.say("anna")
    story.say("carla")
    story.say("anna")
    assert story.sizes == {0: 29, 1: 21, 2: 12, 3: 10}


def test_a_merge_that_is_taken_back_where_another_person_has_moved_all_rows(story):
    """No row moves, and the receiving cluster has a name; but nobody has merged anything."""
    story.say("anna", merges=[[2, 1]])
    moved = dict.fromkeys(map(str, range(50, 62)), 1)
    story.say("ben", labels=moved, names={"1": "dogs"})
    story.say("anna")
    assert story.sizes == {0: 30, 1: 32, 3: 10}
    assert not story.now.shaped


def test_two_keys_are_two_new_clusters(story):
    """Also if the rows of one are in the cluster that the other one has had."""
    story.say("anna", new={"a": None}, labels={"1": "a", "2": "a"})
    story.say("carla", new={"c": None}, labels={"1": "c", "2": "c"})
    with pytest.raises(InputError, match="got row 1, which a person has decided"):
        story.say("anna", new={"c": None, "a": None}, labels={"1": "c", "2": "c", "40": "a"})


def test_a_new_cluster_is_none_that_an_update_has_found(story):
    """Though somebody has confirmed its rows in that one: this is a contradiction."""
    heap = np.random.default_rng(1).normal(size=(9, 4)) - 12
    outliers = np.concatenate([FIRST[:-2], heap[:2]])
    story.update(outliers)
    page, rows = story.now.state, ["70", "71"]
    story.update(np.concatenate([outliers, heap[2:]]))
    born = story.now.labels[70].item()
    assert story.now.labels[70:].tolist() == [born] * 9
    assert born >= 4
    story.say("ben", story.now.state, right=[70, 71])
    with pytest.raises(InputError, match="got row 70, which a person has decided"):
        story.say("anna", page, new={"a": "x"}, labels=dict.fromkeys(rows, "a"))


def test_files_of_two_pages_agree_about_a_row_by_a_merge_of_one_of_them(story):
    story.say("carla", names={"0": "cats"})
    story.say("ben", story.now.state, labels={"0": 2}, merges=[[2, 1]])
    story.say("anna", labels={"0": 1})
    assert story.now.labels[0] == 1
    assert story.sizes == {0: 29, 1: 33, 3: 10}


def test_a_cluster_whose_rows_a_file_moves_is_the_one_that_it_names(story):
    """Though only rows are in it then that have come since."""
    story.update(MORE)
    rows = dict.fromkeys(map(str, range(30, 50)), 0)
    story.say("anna", labels=rows, names={"1": "late ones"})
    assert story.sizes == {0: 50, 1: 6, 2: 12, 3: 10}
    assert story.now.named == {1: "late ones"}


def test_a_copy_that_is_kept_leaves_and_returns_as_the_same_row(first):
    run = records.read(first)
    run.columns["kept"][3] = True
    others = np.delete(run.facts, 3)
    compared = match.compare(run, None, others)
    now = compared.joined(compared.known >= 0, run.store[:0]).after
    assert now.departed["id"].tolist() == [3]
    said = carry.corrected(run, {"keep": [3]}).decisions
    now = decisions.without_ended(dataclasses.replace(now, decisions=said), with_clusters=False)
    assert now.departed["id"].tolist() == [3], "it is remembered as long as a file keeps it"
    forgotten = decisions.without_ended(dataclasses.replace(now, decisions=()), with_clusters=False)
    assert not len(forgotten.departed)
    back = match.compare(now, None, run.facts)
    assert back.run.columns["id"][-1] == 3
    assert back.run.labels[-1] == stable_ids.NEW, "nobody has said where it belongs"
    named = dataclasses.replace(now, named={int(run.labels[3]): "cats"})
    assert match.compare(named, None, run.facts).run.labels[-1] == run.labels[3]
