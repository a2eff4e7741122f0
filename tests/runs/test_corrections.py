"""What a person has decided on a page: a file of JSON, applied whole or not at all."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from cluster_jax.cli import report as command
from cluster_jax.cli import update
from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.data.images import FACTS
from cluster_jax.report import duplicates
from cluster_jax.runs import carry, corrections, page, states
from cluster_jax.runs import run as records
from cluster_jax.runs import workdir as workdirs
from tests import toy
from tests.report.test_report import Page, points_of
from tests.rows import every_row
from tests.runs.heaps import digests

# Three heaps of 30, 20 and 10 rows: the clusters 0, 1 and 2.
FIRST = np.eye(3)[np.repeat([0, 1, 2], [30, 20, 10])] * 9
FIRST = FIRST + np.random.default_rng(0).normal(size=FIRST.shape)


def save(run, name="c.json", state=None, **said):
    """A file as the page of a state saves it; of the newest one by default."""
    state = records.read(run).state if state is None else state
    file = run.parent / name
    file.write_text(json.dumps({"state": state, **said}))
    return f"--corrections={file}"


def correct(run, *flags):
    command.main([str(run), *flags])
    return records.read(run)


def test_each_kind_of_decision(first):
    run = records.read(first)
    labels = run.labels.copy()
    assert [*np.bincount(labels)] == [30, 20, 10]
    said = {
        "names": {"1": 'a / "b" & 猫'},
        "merges": [[2, 1]],
        "new": {"a": "cats", "b": None},
        "labels": {"0": "a", "1": 2, "2": 1, "3": "b"},
        "wrong": [4],
        "right": [5],
    }
    now = carry.corrected(run, said)
    assert now.labels[:6].tolist() == [3, 1, 1, 4, -1, 0]
    assert now.labels[50:].tolist() == [1] * 10
    assert np.flatnonzero(now.columns["decided"]).tolist() == [0, 1, 2, 3, 4, 5]
    assert dict(now.named) == {1: 'a / "b" & 猫', 3: "cats"}
    assert now.next_label == 5, "2 is not used again"
    assert (now.columns["found"] == labels).all()
    assert (run.labels == labels).all(), "the state before is as it was"
    assert corrections.summary(run, now) == (
        "4 moved, 1 confirmed, 1 in no cluster, 2 new, 1 merged or emptied, 2 named"
    )


@every_row(
    ("named", "said", "names"),
    [
        ({0: "cats", 1: "dogs"}, {"merges": [[1, 0]]}, {0: "cats"}),
        ({1: "dogs"}, {"merges": [[1, 0]]}, {0: "dogs"}),
        ({}, {"merges": [[1, 0]], "names": {"1": "dogs"}}, {0: "dogs"}),
        ({1: "dogs"}, {"merges": [[1, 0]], "names": {"0": "猫 & 'x'"}}, {0: "猫 & 'x'"}),
        ({0: "cats"}, {"merges": [[1, 0]], "names": {"1": "dogs"}}, {0: "cats"}),
        ({}, {"merges": [[0, 1]], "names": {"0": "cats", "1": "dogs"}}, {1: "dogs"}),
        ({2: "birds"}, {"merges": [[2, 1], [1, 0]]}, {0: "birds"}),
        ({2: "birds"}, {"merges": [[1, 0], [2, 1]]}, {0: "birds"}),
        ({0: "cats"}, {"names": {"0": " big   cats\n"}}, {0: "big cats"}),
    ],
)
def test_a_merge_keeps_the_name_of_the_receiving_cluster(first, named, said, names):
    run = carry.corrected(records.read(first), {"names": {str(i): n for i, n in named.items()}})
    now = carry.corrected(run, said)
    assert now.cluster_names == {str(cluster): name for cluster, name in names.items()}
    gone = {pair[0] for pair in said.get("merges", ())}
    assert not gone & {*now.labels.tolist()}


@every_row(
    ("said", "message"),
    [
        ({"names": {"3": "cat"}}, "names must name clusters of the run; got '3'"),
        ({"names": {"x": "cat"}}, "names must name clusters of the run; got 'x'"),
        ({"names": {"0": ""}}, "1 to 100 characters, none for control; got ''"),
        ({"names": {"0": "a\ud800"}}, "none for control; got 'a\\\\ud800'"),
        ({"names": {"0": 7}}, "1 to 100 characters, none for control; got 7"),
        ({"names": {"0": "x" * 100_000}}, "1 to 100 characters, .*; got 'xxx"),
        ({"merges": [[0, 3]]}, "merges must name clusters of the run; got 3"),
        ({"merges": [[0]]}, r"each of merges must be two clusters; got \[0\]"),
        ({"merges": [[0, 1], [0, 2]]}, "got 0 twice"),
        ({"merges": [[0, 0]]}, "merged into another one; got 0 into itself"),
        ({"merges": [[0, 1], [1, 2], [2, 0]]}, "merged into another one; got 0 into itself"),
        ({"labels": {"0": 9}}, "labels must name clusters of the run; got 9"),
        ({"labels": {"0": "none"}}, "labels must name clusters .*; got 'none'"),
        ({"labels": {"0": [1]}}, r"labels must name clusters of the run; got \[1\]"),
        ({"labels": {"0": True}}, "labels must name clusters of the run; got True"),
        ({"labels": {"60": 0}}, "rows of the page, 0 to 59; got '60'"),
        ({"wrong": [-1]}, "wrong must have rows .*; got -1"),
        ({"right": ["9" * 20]}, "right must have rows .*; got '999"),
        ({"keep": [1.5]}, "keep must have rows .*; got 1.5"),
        ({"wrong": [1], "labels": {"1": 0}}, "moved, wrong or right; got two of these for 1"),
        ({"wrong": [1, 1]}, "moved, wrong or right; got two of these for 1"),
        ({"new": {"a": None}}, "must have an image; got none in 'a'"),
        ({"new": {"7": "x"}}, "must be no number; got '7'"),
    ],
)
def test_decisions_that_cannot_be_met(first, said, message):
    with pytest.raises(InputError, match=message) as error:
        carry.corrected(records.read(first), said)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


def test_what_a_later_file_of_the_page_leaves_out_is_taken_back(first):
    run = records.read(first)
    said = {"names": {"0": "cats"}, "right": [3, 4], "new": {"a": "bars"}, "labels": {"5": "a"}}
    now = carry.corrected(run, {"right": [3], "names": {"1": "dogs"}})
    then = carry.corrected(run, said)
    assert corrections.summary(then, now) == "1 merged or emptied, 1 named, 4 taken back"


def test_of_a_set_of_copies_one_is_kept(first):
    groups, is_first = np.zeros(3, int), np.arange(3) == 0
    copies = duplicates.Duplicates(
        np.arange(3), groups, ~is_first, np.ones(3), None, np.zeros(3, FACTS), is_first
    )
    run = dataclasses.replace(records.read(first), copies=copies)
    now = carry.corrected(run, {"keep": [2, 1]})
    assert now.duplicates.keep.tolist() == [False, True, False]
    assert corrections.summary(run, now) == "1 kept of its copies"
    assert np.flatnonzero(now.columns["kept"]).tolist() == [1]
    assert now.state != run.state, "so that a later file of the page can take it back"


def test_a_copy_that_is_kept_by_an_earlier_file_of_the_page_is_taken_back(first):
    is_first = np.arange(5) % 3 == 0
    sets, of_first = np.array([0, 0, 0, 1, 1]), np.zeros(5, FACTS)
    copies = duplicates.Duplicates(
        np.arange(5), sets, is_first, np.ones(5), None, of_first, is_first
    )
    shown = dataclasses.replace(records.read(first), copies=copies)

    def applied(run, browser, *rows):
        said = {"state": shown.state, "browser": browser, "keep": [*rows]}
        return carry.carried(shown, run, said)

    def kept(run):
        return np.flatnonzero(run.duplicates.keep).tolist()

    run = applied(shown, "mine", 2, 4)
    assert kept(run) == [2, 4]
    assert kept(applied(run, "mine", 4)) == [0, 4]
    assert kept(applied(run, "mine", 1)) == [1, 3]
    assert kept(applied(run, "another")) == [2, 4], "it has said nothing about them"
    both = applied(applied(run, "another", 4), "mine")
    assert kept(both) == [0, 4], "somebody else has picked the second one, too"
    assert np.flatnonzero(both.columns["kept"]).tolist() == [4]
    with pytest.raises(InputError, match=r"got another copy than row 4, which a person has picked"):
        applied(run, "another", 3)
    again = applied(applied(run, "mine"), "mine", 2)
    assert kept(again) == [2, 3], "and it may be picked again"


def test_what_is_in_no_cluster_cannot_be_right(first):
    run = carry.corrected(records.read(first), {"wrong": [3]})
    with pytest.raises(InputError, match="that is right must be in a cluster; got 3, in none"):
        carry.corrected(run, {"right": [3]})


@every_row(
    ("text", "message"),
    [
        ("", "must be a JSON file that a report has saved; got other content"),
        ("image,cluster,correction,to\n", "must be a JSON file .* got other content"),
        ("[" * 100_000, "must be a JSON file .* got other content"),
        ("[]", "must say of which state of a run it is; got no key 'state'"),
        ('{"state": 3}', "must say of which state of a run it is"),
        ('{"state": "x", "moved": {}}', "must have the keys of a report; got 'moved' with"),
        ('{"state": "x", "wrong": {}}', "must have the keys of a report; got 'wrong' with"),
        ('{"state": "x", "names": [' + "1," * 10_000 + "1]}", "keys of a report; got 'names'"),
    ],
)
def test_files_that_are_none(tmp_path, text, message):
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(InputError, match=message) as error:
        corrections.read(tmp_path / "c.json")
    assert len(str(error.value)) < 300 + len(str(tmp_path))
    for name, got in (("none.json", "no such file"), ("", "a folder")):
        with pytest.raises(InputError, match=f"must be a file that a report has saved; got {got}"):
            corrections.read(tmp_path / name)


def test_a_file_that_was_cut(first, tmp_path):
    save(shutil.copytree(first, tmp_path / "run"), names={"0": "猫"}, wrong=[1, 2])
    whole = (tmp_path / "c.json").read_bytes()
    assert corrections.read(tmp_path / "c.json")["wrong"] == [1, 2]
    for end in range(len(whole)):
        (tmp_path / "c.json").write_bytes(whole[:end])
        with pytest.raises(InputError, match="must be a JSON file"):
            corrections.read(tmp_path / "c.json")


def test_a_moved_row_is_none_of_the_most_typical_ones(run):
    """However near the center of its new cluster it is."""
    run = records.read(run)

    def typical(run):
        points = points_of(Page(page.render(run)))
        return points["index"][points["cluster"] == 1].tolist()

    first, *others = typical(run)
    columns = run.columns.copy()
    columns["found"][first], columns["decided"][first] = 0, True
    assert typical(dataclasses.replace(run, columns=columns)) == [*others, first]


def test_the_command(run, capsys, refused):
    before, rows = digests(run), toy.table(run)
    assert records.read(run).state in Page((run / "report.html").read_text()).record.values()
    for said, message in (
        ({"labels": {"0": 1, "1": 9}}, "labels must name clusters of the run; got 9"),
        ({"state": "0" * 12, "wrong": [1]}, "must be of one of the last states of"),
    ):
        assert message in refused(command.main, str(run), save(run, **said))
    assert digests(run) == before, "nothing is applied of a bad file"
    correct(run, save(run, labels={"0": 1}, wrong=[59]))
    assert capsys.readouterr().out.splitlines() == [
        "corrections  1 moved, 1 in no cluster",
        f"assignments  {run / 'assignments.csv'}",
        f"report       {run / 'report.html'}",
    ]
    after = toy.table(run)
    assert [row["row"] for row in after] == [row["row"] for row in rows]
    assert [after[0]["cluster"], after[-1]["cluster"]] == ["1", "-1"]
    assert [after[0]["found"], after[0]["decided"], after[0]["probability"]] == ["0", "1", "1"]
    assert [after[1][key] for key in ("cluster", "found", "decided")] == ["0", "0", "0"]
    text = (run / "report.html").read_text()
    assert "A person has corrected the clusters" in text
    # Names of the page, and of the command; then the outputs alone.
    correct(run, save(run, names={"1": "b<b>"}), "--name", "0=Rock & Roll's")
    assert "corrections  2 named" in capsys.readouterr().out
    assert [row["name"] for row in toy.table(run)][:2] == ["b<b>", "Rock & Roll's"]
    assert "b<b>" not in (run / "report.html").read_text()
    whole = digests(run)
    for flags in ([], [save(run, names={"1": "b<b>"})]):
        correct(run, *flags)
        assert "corrections  nothing new; in force: 2 decided, 2 named\n" in capsys.readouterr().out
        assert digests(run) == whole
    unknown = "--name must name clusters of the run; got '9'"
    for flag, message in (("--name=5", "a number and a name"), ("--name=9=x", unknown)):
        assert message in refused(command.main, str(run), flag)
    # Each is taken back, the last one first.
    for _ in range(2):
        update.main([f"--workdir={run}", "--undo"])
    now = digests(run)
    assert {name: now[name] for name in ("assignments.csv", "run-1.npz")} == {
        name: before[name] for name in ("assignments.csv", "run-1.npz")
    }
    assert "run-2.npz" not in now


def test_a_page_is_saved_from_and_applied_many_times(run):
    """It stays open, and each file has all that was decided on it before."""
    state = records.read(run).state
    said = {"new": {"a": "cats"}, "labels": {"0": "a"}, "merges": [], "names": {}}
    for i in range(1, 14):
        said["labels"][str(i)] = "a"
        if i == 6:
            said["merges"].append([2, 1])
        if i == 9:
            said["names"]["0"] = "birds"
        after = correct(run, save(run, "c.json", state, **said), "--quiet")
        correct(run, "--name=3=tigers")
    assert after.labels[:15].tolist() == [3] * 14 + [0]
    assert dict(after.named) == {0: "birds", 3: "tigers"}, "the name that was given since stays"
    assert set(after.labels) == {0, 1, 3}
    # The state of the page is kept beside the last eight, to which an undo goes back.
    assert len(workdirs.states(run)) == records.KEPT + 1
    for _ in range(records.KEPT - 1):
        update.main([f"--workdir={run}", "--undo", "--report=no", "--quiet"])
    with pytest.raises(InputError, match="must have an update or corrections to take back"):
        states.undo(run)


@every_row(
    ("one", "other", "message"),
    [
        ({"labels": {"3": 1}}, {"labels": {"3": 2}}, "got row 3, which a person has decided to be"),
        ({"wrong": [3]}, {"right": [3]}, "got row 3, which a .* decided to be in no cluster"),
        ({"names": {"1": "x"}}, {"names": {"1": "y"}}, "got 'y' for cluster 1, .* called 'x'"),
        ({"merges": [[2, 1]]}, {"merges": [[1, 2]]}, "got merges that others have made otherwise"),
        (
            {"names": {"1": "x"}},
            {"names": {"0": "y"}, "merges": [[0, 1]]},
            "got 'y' for cluster 1, .* called 'x'",
        ),
        ({"merges": [[0, 1]], "names": {"0": "x"}}, {"names": {"1": "y"}}, "got 'y' .* called 'x'"),
        (
            {"merges": [[0, 1]], "names": {"0": "x"}},
            {"merges": [[2, 1]], "names": {"2": "y"}},
            "got 'y' for cluster 1, .* called 'x'",
        ),
    ],
)
def test_two_files_of_one_page_are_both_applied(first, tmp_path, one, other, message):
    """In one command, one after the other, and twice; where they contradict, the second is not."""
    run = shutil.copytree(first, tmp_path / "run")
    state = records.read(run).state
    files = [
        save(run, "one.json", state, names={"0": "cats"}, labels={"5": 1}),
        save(run, "two.json", state, new={"a": "dogs"}, labels={"7": "a"}, wrong=[59]),
    ]
    both = correct(run, *files)
    assert both.labels[[5, 7, 59]].tolist() == [1, 3, -1]
    assert dict(both.named) == {0: "cats", 3: "dogs"}
    update.main([f"--workdir={run}", "--undo"])
    for file in (*files, *files):
        after = correct(run, file)
    assert (after.state, after.number) == (both.state, 3)
    run = shutil.copytree(first, tmp_path / "again")
    correct(run, save(run, "one.json", state, **one))
    before = digests(run)
    save(run, "two.json", state, **other)
    with pytest.raises(InputError, match=message):
        states.correct(run, [tmp_path / "two.json"])
    assert digests(run) == before


@every_row(
    "said",
    [{"right": [35]}, {"names": {"1": "dogs"}}, {"labels": {"55": 1}}, {"merges": [[2, 1]]}],
)
def test_a_cluster_into_which_another_file_merges_is_the_same_one(first, tmp_path, said):
    """Also where most of its rows are those of the other cluster then."""
    after = []
    for order in ("merge", "say"), ("say", "merge"):
        run = shutil.copytree(first, tmp_path / order[0])
        state, of = records.read(run).state, {"merge": {"merges": [[0, 1]]}, "say": said}
        for name in order:
            now = correct(run, save(run, f"{name}.json", state, browser=name, **of[name]))
        after.append((now.labels.tolist(), dict(now.named), now.columns["decided"].tolist()))
    assert after[0] == after[1]
    assert set(after[0][0][:50]) == {1}


def test_a_change_of_mind_on_the_same_page(run):
    """The later file of a browser counts: what it leaves out, moves or names otherwise as well."""
    state, mine = records.read(run).state, {"browser": "anna"}
    said = {"names": {"0": "cats", "1": "dogs"}, "labels": {"3": 1, "4": 1, "6": "a", "7": "a"}}
    said |= {"new": {"a": "birds"}, "wrong": [8, 35], "merges": [[2, 1]], "right": [10]}
    correct(run, save(run, "1.json", state, **said, **mine))
    correct(run, save(run, "2.json", state, browser="ben", labels={"20": 1, "4": 1}))
    said = {"names": {"0": "lions"}, "labels": {"3": 2, "6": "b", "7": "a", "8": 1, "4": 1}}
    said |= {"new": {"b": None, "a": "owls"}, "wrong": [9], "right": []}
    after = correct(run, save(run, "3.json", state, **said, **mine))
    assert after.labels[3:12].tolist() == [2, 1, 0, 4, 3, 1, -1, 0, 0]
    assert after.labels[[20, 35]].tolist() == [1, 1], "Ben's, and what is no longer wrong"
    assert after.labels[50:].tolist() == [2] * 10, "no longer merged"
    assert dict(after.named) == {0: "lions", 3: "owls"}
    assert 1 not in after.held, "it has no name any more, and nothing is merged into it"
    assert np.flatnonzero(after.columns["decided"]).tolist() == [3, 4, 6, 7, 8, 9, 20]
    again = correct(run, f"--corrections={run.parent}/3.json")
    assert (again.state, again.number) == (after.state, after.number)
    before = digests(run)
    for name, said in (("ben", {"labels": {"4": 2}}), ("carla", {"names": {"0": "tigers"}})):
        with pytest.raises(InputError, match="must not contradict those that were made since"):
            states.correct(run, [save(run, "4.json", state, browser=name, **said)[14:]])
    assert digests(run) == before


def test_a_cluster_of_one_kind_is_held_until_another_file_takes_that_back(run, capsys):
    state = records.read(run).state
    correct(run, save(run, "1.json", state, browser="anna", whole=[1, 2], names={"0": "cats"}))
    assert "corrections  1 named, 2 said to be one kind\n" in capsys.readouterr().out
    correct(run, save(run, "2.json", state, browser="ben", whole=[2]))
    now = records.read(run)
    assert (now.whole, now.held) == ({1, 2}, {0, 1, 2})
    assert page.report_data(now).whole == {1, 2}
    correct(run, save(run, "3.json", state, browser="anna", names={"0": "cats"}))
    now = records.read(run)
    assert (now.whole, now.held) == ({2}, {0, 2}), "Anna has taken it back, Ben has not"
    with pytest.raises(InputError, match="whole must name clusters of the run; got 7"):
        states.correct(run, [save(run, "4.json", whole=[7])[14:]])
    update.main([f"--workdir={run}", "--refit", "--report=no", "--quiet"])
    assert records.read(run).whole == {2}
    update.main([f"--workdir={run}", "--n-clusters=1", "--report=no", "--quiet"])
    assert records.read(run).whole <= {0, 1, 2} & {*records.read(run).labels.tolist()}


def test_a_number_of_clusters_is_corrected_as_long_as_a_correction_holds(run):
    state, mine = records.read(run).state, {"browser": "anna"}
    after = correct(run, save(run, "1.json", state, **mine, labels={"3": 1}, names={"0": "cats"}))
    assert after.origin == "corrected"
    after = correct(run, save(run, "2.json", state, **mine, names={"0": "cats"}))
    assert after.origin == after.results["provenance"]["number_of_clusters"]["tree"] == "found"
    after = correct(run, save(run, "3.json", state, **mine, merges=[[2, 1]]))
    assert (after.origin, after.is_corrected) == ("corrected", True)


def test_what_others_say_too_is_not_taken_back(run):
    """Anna takes all back: what Ben says on the same page holds, and Carla's on a later one."""
    state = records.read(run).state
    said = {"names": {"0": "cats", "1": "dogs"}, "labels": {"3": 1, "4": 1, "5": 1}}
    correct(run, save(run, "1.json", state, browser="anna", whole=[1, 2], **said))
    correct(run, save(run, "2.json", state, browser="ben", names={"0": "cats"}, labels={"4": 1}))
    said = {"merges": [[2, 1]], "right": [3], "whole": [1]}
    correct(run, save(run, "3.json", browser="carla", **said))
    after = correct(run, save(run, "4.json", state, browser="anna"))
    assert after.labels[3:6].tolist() == [1, 1, 0]
    assert after.labels[50:].tolist() == [1] * 10
    assert dict(after.named) == {0: "cats"}
    assert (after.held, after.whole) == ({0, 1}, {1})


def test_a_merge_that_two_people_have_made_holds_as_long_as_one_of_them_says_it(run):
    """And what is taken back of a row is then about the cluster that has received its own."""
    state = records.read(run).state
    said = {"merges": [[2, 1]]}
    correct(run, save(run, "1.json", state, browser="anna", **said, labels={"51": 0}, wrong=[52]))
    correct(run, save(run, "2.json", state, browser="ben", **said))
    after = correct(run, save(run, "3.json", state, browser="anna"))
    assert after.labels[50:].tolist() == [1] * 10
    assert not after.columns["decided"].any()
    before = after
    after = correct(run, save(run, "4.json", state, browser="ben"))
    assert after.labels[50:].tolist() == [2] * 10
    assert corrections.summary(before, after) == "1 taken back", "and not each row of the cluster"


def test_what_was_decided_before_an_update_is_taken_back_after_it(run, tmp_path):
    """The new rows stay where they are; the others are in the clusters that were found."""
    state, mine = records.read(run).state, {"browser": "anna"}
    said = {"merges": [[2, 1]], "labels": {"0": 1}, "names": {"1": "dogs"}, "whole": [0]}
    correct(run, save(run, "1.json", state, **mine, **said))
    np.save(tmp_path / "more.npy", np.concatenate([FIRST, FIRST[30:36] + 0.01]))
    update.main([f"--workdir={run}", f"--features={tmp_path}/more.npy", "--report=no", "--quiet"])
    now = records.read(run)
    assert now.labels[[0, *range(50, 66)]].tolist() == [1] * 17
    assert now.columns["found"][[0, *range(50, 66)]].tolist() == [0, *[2] * 10, *[1] * 6]
    after = correct(run, save(run, "2.json", state, **mine, names={"1": "dogs"}))
    assert after.labels[[0, *range(50, 66)]].tolist() == [0, *[2] * 10, *[1] * 6]
    assert (dict(after.named), after.held) == ({1: "dogs"}, {1})
    assert not after.columns["decided"].any()


def test_a_cluster_that_another_page_divides_stays_divided(run):
    """Also after Anna has taken back for what else it was held."""
    state = records.read(run).state
    correct(run, save(run, "1.json", state, browser="anna", merges=[[0, 1]]))
    correct(run, save(run, "2.json", browser="ben", new={"c": None}, labels={"36": "c"}))
    after = correct(run, save(run, "3.json", state, browser="anna"))
    assert np.bincount(after.labels).tolist() == [30, 19, 10, 1]
    assert after.held == {1, 3}


def test_what_a_later_file_says_of_rows_that_it_has_merged_is_about_the_receiving_cluster(run):
    """The merge itself was in an earlier file of the page, which is applied."""
    state, mine = records.read(run).state, {"browser": "anna"}
    correct(run, save(run, "1.json", state, **mine, right=[52]))
    after = correct(
        run, save(run, "2.json", state, **mine, right=[52], merges=[[2, 1]], wrong=[55])
    )
    assert after.labels[50:].tolist() == [1, 1, 1, 1, 1, -1, 1, 1, 1, 1]
    assert np.flatnonzero(after.columns["decided"]).tolist() == [52, 55]
    after = correct(run, save(run, "3.json", state, **mine, right=[52, 56], merges=[[2, 1]]))
    assert after.labels[50:].tolist() == [1] * 10, "also the one that is no longer wrong"
    assert np.flatnonzero(after.columns["decided"]).tolist() == [52, 56]
    after = correct(run, save(run, "4.json", state, **mine, right=[56]))
    assert after.labels[50:].tolist() == [2] * 10
    assert np.flatnonzero(after.columns["decided"]).tolist() == [56]


def test_a_file_that_confirms_a_decision_of_the_page_holds_it(first, tmp_path):
    """Whoever moves that row is refused, in whatever order the two files are applied."""
    for order in ("confirm", "move"), ("move", "confirm"):
        run = shutil.copytree(first, tmp_path / order[0])
        state = correct(run, save(run, "1.json", labels={"3": 1})).state
        said = {"confirm": {"right": [3]}, "move": {"labels": {"3": 2}}}
        correct(run, save(run, "2.json", state, browser=order[0], **said[order[0]]))
        before = digests(run)
        save(run, "3.json", state, browser=order[1], **said[order[1]])
        with pytest.raises(InputError, match="got row 3, which a person has decided to be in"):
            states.correct(run, [tmp_path / "3.json"])
        assert digests(run) == before


def test_what_a_file_of_an_older_page_decides_is_not_taken_back(run):
    """Nor overruled by a later file of a browser that has said nothing about the row before."""
    state, mine = records.read(run).state, {"browser": "anna"}
    page = correct(run, "--name=0=cats").state
    correct(run, save(run, "1.json", page, **mine, merges=[[2, 1]]))
    correct(run, save(run, "2.json", state, browser="ben", labels={"55": 1, "3": 1}))
    before = digests(run)
    save(run, "3.json", page, **mine, labels={"3": 2})
    with pytest.raises(
        InputError, match="got row 3, which a person has decided to be in cluster 1"
    ):
        states.correct(run, [run.parent / "3.json"])
    assert digests(run) == before
    after = correct(run, save(run, "4.json", page, **mine))
    assert after.labels[50:].tolist() == [2, 2, 2, 2, 2, 1, 2, 2, 2, 2]
    assert np.flatnonzero(after.columns["decided"]).tolist() == [3, 55]


def test_an_earlier_file_of_a_browser_does_not_take_back_what_a_later_one_says(run):
    """Neither alone, which is refused, nor in one command, where the order says nothing."""
    state = records.read(run).state
    files = [
        save(run, f"{i}.json", state, browser="anna", saved=i, names={"2": f"name {i}"})
        for i in (7, 8, 9)
    ]
    assert dict(correct(run, files[1], files[0]).named) == {2: "name 8"}
    before = digests(run)
    with pytest.raises(InputError, match=r"7\.json must be the last .* --undo`") as error:
        states.correct(run, [run.parent / "7.json"])
    assert "\n" not in str(error.value)
    assert digests(run) == before
    assert dict(correct(run, files[1]).named) == {2: "name 8"}, "the same file again"
    assert dict(correct(run, files[2]).named) == {2: "name 9"}
    update.main([f"--workdir={run}", "--undo", "--report=no", "--quiet"])
    update.main([f"--workdir={run}", "--undo", "--report=no", "--quiet"])
    assert dict(correct(run, files[0]).named) == {2: "name 7"}, "after what the sentence advises"


def test_another_number_of_clusters_says_what_is_lost(run, capsys):
    said = {"names": {"2": "wrens"}, "new": {"a": "owls", "b": None}, "wrong": [55]}
    correct(run, save(run, labels={"0": "a", "1": "a", "31": "b", "32": 0}, **said), "--quiet")
    capsys.readouterr()
    update.main([f"--workdir={run}", "--n-clusters=2", "--report=no"])
    lines = capsys.readouterr().out.splitlines()
    lost = next(line for line in lines if line.startswith("This no longer holds: "))
    assert "the cluster 'owls'" in lost
    assert "1 cluster that you had made, merged, divided or called one kind, and what" in lost
    assert "and what you had decided about 3 " in lost
    assert f"`cluster-jax update --workdir={run} --undo` brings back what was." in lines
    update.main([f"--workdir={run}", "--undo", "--report=no"])
    update.main([f"--workdir={run}", "--refit", "--report=no"])
    assert "no longer holds" not in capsys.readouterr().out


def test_a_file_that_decides_nothing_is_told_so(run, capsys):
    before, flag = digests(run), save(run)
    correct(run, flag)
    said = "corrections  none: no row was moved, confirmed or taken out, and no cluster named or"
    assert capsys.readouterr().out.startswith(said)
    assert digests(run).keys() == before.keys()


def test_a_state_that_cannot_be_written_changes_nothing(run, monkeypatch, refused):
    before, flag = digests(run), save(run, wrong=[3])

    def failing(*arguments, **options):
        raise OSError("disk full")

    monkeypatch.setattr(io, "write_arrays", failing)
    assert "disk full" in refused(command.main, str(run), flag, code=1)
    assert digests(run) == before
