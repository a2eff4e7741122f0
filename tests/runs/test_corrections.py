"""What a person has decided on a page: a file of JSON, applied whole or not at all."""

import csv
import dataclasses
import json
import shutil

import numpy as np
import pytest

from cluster_jax.cli import cluster, update
from cluster_jax.cli import report as command
from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.data.images import FACTS
from cluster_jax.report import assignments, duplicates
from cluster_jax.runs import corrections, page
from cluster_jax.runs import run as records
from tests import toy
from tests.report.test_report import Page, points_of
from tests.rows import every_row

ROWS = 60
NAMES = [f"r\\{i} & 'é'" for i in range(ROWS)]


def write(file, names=NAMES, x=None):
    """A table of rows in three heaps of 30, 20 and 10, with an id of each."""
    rows = (vectors() if x is None else x).tolist()
    with file.open("w", newline="") as text:
        writer = csv.writer(text)
        writer.writerow(["id", *"abc"])
        writer.writerows([name, *row] for name, row in zip(names, rows, strict=True))
    return f"--features={file}"


def vectors():
    rng = np.random.default_rng(0)
    return np.eye(3)[np.repeat([0, 1, 2], [30, 20, 10])] * 9 + rng.normal(size=(ROWS, 3))


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A folder of the command `cluster`, of clusters 0, 1 and 2."""
    folder = tmp_path_factory.mktemp("rows")
    cluster.main([write(folder / "x.csv"), f"--workdir={folder / 'run'}", "--reduce=pca"])
    return folder / "run"


@pytest.fixture
def workdir(first, tmp_path):
    return shutil.copytree(first, tmp_path / "run")


def save(workdir, name="c.json", state=None, **said):
    """A file as the page of a state saves it; of the newest one by default."""
    state = records.read(workdir).state if state is None else state
    file = workdir.parent / name
    file.write_text(json.dumps({"state": state, **said}))
    return f"--corrections={file}"


def correct(workdir, *flags):
    command.main([str(workdir), *flags])
    return records.read(workdir)


def content(workdir):
    files = [path for path in workdir.rglob("*") if path.is_file() and path.name != "lock"]
    return {path.name: path.read_bytes() for path in files}


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
    now = corrections.corrected(run, said)
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
        ({2: "birds"}, {"merges": [[2, 1], [1, 0]]}, {0: "birds"}),
        ({2: "birds"}, {"merges": [[1, 0], [2, 1]]}, {0: "birds"}),
        ({0: "cats"}, {"names": {"0": " big   cats\n"}}, {0: "big cats"}),
    ],
)
def test_a_merge_keeps_the_name_of_the_receiving_cluster(first, named, said, names):
    run = dataclasses.replace(records.read(first), named=named)
    now = corrections.corrected(run, said)
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
        corrections.corrected(records.read(first), said)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


def test_what_a_later_file_of_the_page_leaves_out_is_taken_back(first):
    run = records.read(first)
    said = {"names": {"0": "cats"}, "right": [3, 4], "new": {"a": "bars"}, "labels": {"5": "a"}}
    now = corrections.corrected(run, {"right": [3], "names": {"1": "dogs"}})
    then = corrections.corrected(run, said)
    assert corrections.summary(then, now) == "1 merged or emptied, 1 named, 4 taken back"


def test_of_a_set_of_copies_one_is_kept(first):
    groups, is_first = np.zeros(3, int), np.arange(3) == 0
    copies = duplicates.Duplicates(
        np.arange(3), groups, ~is_first, np.ones(3), None, np.zeros(3, FACTS), is_first
    )
    run = dataclasses.replace(records.read(first), duplicates=copies)
    now = corrections.corrected(run, {"keep": [2, 1]})
    assert now.duplicates.keep.tolist() == [False, True, False]
    assert corrections.summary(run, now) == "1 kept of its copies"
    assert np.flatnonzero(now.columns["kept"]).tolist() == [1]
    assert now.state != run.state, "so that a later file of the page can take it back"


def test_what_is_in_no_cluster_cannot_be_right(first):
    run = corrections.corrected(records.read(first), {"wrong": [3]})
    with pytest.raises(InputError, match="that is right must be in a cluster; got 3, in none"):
        corrections.corrected(run, {"right": [3]})


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


def test_a_moved_row_is_none_of_the_most_typical_ones(workdir):
    """However near the center of its new cluster it is."""
    run = records.read(workdir)

    def typical(run):
        points = points_of(Page(page.render(run)))
        return points["index"][points["cluster"] == 1].tolist()

    first, *others = typical(run)
    columns = run.columns.copy()
    columns["found"][first], columns["decided"][first] = 0, True
    assert typical(dataclasses.replace(run, columns=columns)) == [*others, first]


def test_the_command(workdir, capsys, refused):
    before, rows = content(workdir), toy.table(workdir)
    assert (
        records.read(workdir).state in Page((workdir / "report.html").read_text()).record.values()
    )
    for said, message in (
        ({"labels": {"0": 1, "1": 9}}, "labels must name clusters of the run; got 9"),
        ({"state": "0" * 12, "wrong": [1]}, "must be of one of the last states of"),
    ):
        assert message in refused(command.main, str(workdir), save(workdir, **said))
    assert content(workdir) == before, "nothing is applied of a bad file"
    correct(workdir, save(workdir, labels={"0": 1}, wrong=[59]))
    assert capsys.readouterr().out.splitlines() == [
        "corrections  1 moved, 1 in no cluster",
        f"assignments  {workdir / 'assignments.csv'}",
        f"report       {workdir / 'report.html'}",
    ]
    after = toy.table(workdir)
    assert [row["id"] for row in after] == [row["id"] for row in rows]
    assert [after[0]["cluster"], after[-1]["cluster"]] == ["1", "-1"]
    assert [after[0]["found"], after[0]["decided"], after[0]["probability"]] == ["0", "1", "1"]
    assert [after[1][key] for key in ("cluster", "found", "decided")] == ["0", "0", "0"]
    text = (workdir / "report.html").read_text()
    assert "A person has corrected the clusters" in text
    # Names of the page, and of the command; then the outputs alone.
    correct(workdir, save(workdir, names={"1": "b<b>"}), "--name", "0=Rock & Roll's")
    assert "corrections  2 named" in capsys.readouterr().out
    assert [row["name"] for row in toy.table(workdir)][:2] == ["b<b>", "Rock & Roll's"]
    assert "b<b>" not in (workdir / "report.html").read_text()
    whole = content(workdir)
    for flags in ([], [save(workdir, names={"1": "b<b>"})]):
        correct(workdir, *flags)
        assert "corrections  nothing new; in force: 2 decided, 2 named\n" in capsys.readouterr().out
        assert content(workdir) == whole
    for flag, message in (("--name=5", "a number and a name"), ("--name=9=x", "clusters of the")):
        assert message in refused(command.main, str(workdir), flag)
    # Each is taken back, the last one first.
    for _ in range(2):
        update.main([f"--workdir={workdir}", "--undo"])
    now = content(workdir)
    assert {name: now[name] for name in ("assignments.csv", "run-1.npz")} == {
        name: before[name] for name in ("assignments.csv", "run-1.npz")
    }
    assert "run-2.npz" not in now


def test_later_files_of_a_page_have_all_of_the_earlier_ones(workdir):
    """The page stays open and saves again: what was taken back on it is taken back."""
    state = records.read(workdir).state
    saved = [
        {"new": {"a": "cats"}, "labels": {"0": "a"}, "wrong": [1]},
        {"new": {"a": "cats"}, "labels": {"0": "a", "2": "a"}},
        {"new": {"a": "tigers"}, "labels": {"0": "a"}, "merges": [[2, 1]]},
    ]
    for i, said in enumerate(saved):
        run = correct(workdir, save(workdir, f"{i}.json", state, **said))
    assert run.labels[:3].tolist() == [3, 0, 0]
    assert (dict(run.named), run.next_label, set(run.labels)) == ({3: "tigers"}, 4, {0, 1, 3})
    # So they do in one command, and a name that was given since stays.
    update.main([f"--workdir={workdir}", "--undo"])
    flags = [save(workdir, f"{i}.json", state, **said) for i, said in enumerate(saved)]
    assert correct(workdir, *flags).state == run.state
    correct(workdir, "--name=0=birds")
    assert correct(workdir, flags[0]).named[0] == "birds"


def test_decisions_about_an_earlier_state_hold_for_the_rows_that_are_left(workdir, capsys):
    """The page was open while an update went on."""
    flag = save(
        workdir,
        names={"2": "birds"},
        new={"a": "cats", "b": "gone"},
        labels={"0": "a", "1": "b", "40": 0},
        wrong=[2, 59],
    )
    left = [i for i in range(ROWS) if i not in (1, 2, 10)][::-1]
    features = write(workdir.parent / "y.csv", [NAMES[i] for i in left], vectors()[left])
    update.main([f"--workdir={workdir}", features])
    capsys.readouterr()
    correct(workdir, flag)
    assert "corrections  2 moved, 1 in no cluster, 1 new, 2 named" in capsys.readouterr().out
    names = {assignments.escaped(name): name for name in NAMES}
    rows = {names[row["id"]]: row for row in toy.table(workdir)}
    assert len(rows) == ROWS - 3
    decided = {name: row["cluster"] for name, row in rows.items() if row["decided"] == "1"}
    assert decided == {NAMES[0]: "3", NAMES[40]: "0", NAMES[59]: "-1"}
    assert {row["name"] for row in rows.values() if row["cluster"] == "2"} == {"birds"}


def test_a_file_that_decides_nothing_is_told_so(workdir, capsys):
    before, flag = content(workdir), save(workdir)
    correct(workdir, flag)
    said = "corrections  none: no row was moved, confirmed or taken out, and no cluster named or"
    assert capsys.readouterr().out.startswith(said)
    assert content(workdir).keys() == before.keys()


@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
def test_an_interrupt_leaves_one_state_or_the_other(workdir, monkeypatch, kind):
    before, flag = content(workdir), save(workdir, wrong=[3])

    def failing(*arguments, **options):
        raise kind("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(io, "write_arrays", failing)
        with pytest.raises((SystemExit, KeyboardInterrupt)):
            command.main([str(workdir), flag])
    assert content(workdir) == before
    with monkeypatch.context() as patch:
        patch.setattr(page, "write_outputs", failing)
        with pytest.raises((SystemExit, KeyboardInterrupt)):
            command.main([str(workdir), flag])
    assert records.read(workdir).labels[3] == -1
    command.main([str(workdir)])
    assert toy.table(workdir)[3]["cluster"] == "-1"


def test_later_files_of_a_page_after_another_change(workdir):
    """A cluster that the page has made is made once, and has the name that it was given since."""
    state = records.read(workdir).state
    first = {"new": {"a": "old"}, "labels": {"0": "a", "1": "a"}}
    made = int(correct(workdir, save(workdir, "a.json", state, **first)).labels[0])
    correct(workdir, f"--name={made}=newer")
    more = {**first, "labels": {**first["labels"], "2": "a"}}
    for _ in range(2):  # Once is as good as twice.
        run = correct(workdir, save(workdir, "b.json", state, **more))
    assert run.labels[:3].tolist() == [made] * 3
    assert run.named[made] == "newer"
    correct(workdir, save(workdir, "c.json", merges=[[made, 0]]))
    run = correct(workdir, save(workdir, "a.json", state, **first))
    assert run.labels[:3].tolist() == [0] * 3
