"""States of a run: written and read again, corrected, updated, taken back, killed at any moment."""

import dataclasses
import errno
import html
import itertools
import json
import os
import shutil

import numpy as np
import pytest
from etils import epath

import cluster_jax
from cluster_jax.cli import cluster, images, predict, report
from cluster_jax.cli import update as update_command
from cluster_jax.clustering import placing
from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.data.tables import Table
from cluster_jax.report import duplicates
from cluster_jax.runs import changes, measured, page, place, states, store, update
from cluster_jax.runs import run as records
from cluster_jax.runs import workdir as workdirs
from tests import toy
from tests.runs import heaps
from tests.runs.heaps import rows

pytestmark = pytest.mark.usefixtures("found_once")

N, GROUPS = 100, 4
FIRST = rows(25, 25, 25, 25)
NEW = rows(3, 3, 3, 3, 12, seed=1)


def said_by(run, name="saved.json", back=0, **decided):
    """A file that the page of a state has saved."""
    shown = records.read(run, workdirs.states(run)[-1 - back])
    (run.parent / name).write_text(json.dumps({"state": shown.state, **decided}))
    return run.parent / name


def corrected(run, *files, names=None, with_report=False):
    states.correct(run, files, names, with_report=with_report)
    return records.read(run)


def updated(run, x, add=False, with_report=False, **how):
    update.update_rows(run, Table(x), add=add, with_report=with_report, **how)
    return records.read(run)


def of(run, x):
    """The cluster of each of these rows of a run."""
    place = {row.tobytes(): label for row, label in zip(run.features, run.labels, strict=True)}
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    return [int(place[row.tobytes()]) for row in unit.astype("f4")]


def assert_same(one, other):
    """Two states are the same bit for bit, wherever their features are in the store."""
    for field in dataclasses.fields(records.Run):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if field.name == "placer":
            a, b = map(placing.to_arrays, (a, b))
        if field.name == "copies" and a is not None:
            a, b = map(duplicates.to_arrays, (a, b))
        if field.name == "store":
            a, b = one.features, other.features
        if field.name == "columns":
            a, b = ({key: c[key] for key in c.dtype.names if key != "row"} for c in (a, b))
        if isinstance(a, dict) and any(isinstance(value, np.ndarray) for value in a.values()):
            assert a.keys() == b.keys(), field.name
            for key in a:
                np.testing.assert_array_equal(a[key], b[key], field.name, strict=True)
        elif isinstance(a, np.ndarray):
            np.testing.assert_array_equal(a, b, field.name, strict=True)
        else:
            assert a == b, field.name


def digests(run, *left_out):
    """What is in each file; the rows that an undone update has added to the store stay."""
    return heaps.digests(run, f"store-{N}.npz", *left_out)


def test_a_state_is_read_as_it_was_written(run, monkeypatch):
    written, write = [], records.Run.write
    monkeypatch.setattr(records.Run, "write", lambda run: (written.append(run), write(run)))
    file = said_by(run, names={"1": "cats"}, labels={"0": "a"}, new={"a": None}, wrong=[30])
    for act in (lambda: corrected(run, file), lambda: updated(run, NEW, add=True)):
        after = act()
        assert_same(written[-1], after)
        files = digests(run)
        write(after)
        assert digests(run) == files
    assert_same(records.read(run, 2), written[0])


# --- a kill --------------------------------------------------------------------------------------


class Killed(BaseException):
    """What no code but a test's handles."""


def kill_before(patch, number):
    """Before the so-manieth file operation from now on, and before all that would follow it."""
    left = [number]

    def guard(owner, name):
        function = getattr(owner, name)

        def act(*arguments, **more):
            if left[0] == 0:
                raise Killed
            left[0] -= name != "replace" and not str(arguments[0]).endswith(".partial")
            return function(*arguments, **more)

        patch.setattr(owner, name, act)

    guard(io, "write"), guard(store, "write"), guard(os, "fsync")
    guard(type(epath.Path("x")), "unlink"), guard(type(epath.Path("x")), "replace")


def _correct(run):
    file = run.parent / "once.json"
    states.correct(run, [file], {"2": "dogs"})


def _update(run):
    update.update_rows(run, Table(np.concatenate([FIRST[5:], NEW])), with_report=False)


def _undo(run):
    if len(workdirs.states(run)) > 2:  # Else it was killed after its end.
        states.undo(run)


@pytest.mark.parametrize("act", [_correct, _update, _undo], ids=lambda act: act.__name__)
def test_a_kill_leaves_the_old_state_or_the_new_one(run, tmp_path, act):
    """And the same command goes on: it ends as if nothing had happened."""
    updated(run, NEW[:3], add=True, with_report=True)
    if act is _undo:
        corrected(run, names={"1": "cats"}, with_report=True)
    said_by(run, "once.json", labels={"0": "a", "1": 2}, new={"a": "puppies"}, wrong=[40])
    before, number = records.read(run), 0
    kept = shutil.copytree(run, tmp_path / "kept")
    act(run)
    after, files = records.read(run), digests(run, f"run-{before.number + 1}.npz")
    shutil.rmtree(run)
    seen = set()
    while True:
        shutil.copytree(kept, run)
        with pytest.MonkeyPatch.context() as patch:
            kill_before(patch, number)
            try:
                act(run)
                break
            except Killed:
                number += 1
        found = records.read(run)
        seen.add(found.number)
        assert_same(found, before if found.number == before.number else after)
        act(run)
        assert_same(records.read(run), after)
        assert digests(run, f"run-{before.number + 1}.npz") == files, number
        shutil.rmtree(run)
    assert number > 4
    assert seen == {before.number} if act is _undo else {before.number, after.number}


def test_outputs_of_a_state_that_is_written_again_follow_it_after_a_kill(run, tmp_path):
    """Its number and digest stay, but its page says which files have been applied."""
    files = [said_by(run, f"{who}.json", browser=who, right=[3]) for who in ("one", "two")]
    before = corrected(run, files[0], with_report=True)
    kept = shutil.copytree(run, tmp_path / "kept")
    after = corrected(run, files[1], with_report=True)
    assert (after.number, after.state) == (before.number, before.state)
    written = {1: heaps.digests(kept), 2: heaps.digests(run)}  # By the number of applied files.
    seen = set()
    for number in itertools.count():
        shutil.rmtree(run)
        shutil.copytree(kept, run)
        with pytest.MonkeyPatch.context() as patch:
            kill_before(patch, number)
            try:
                corrected(run, files[1], with_report=True)
                break
            except Killed:
                pass
        update.update_rows(run, Table(FIRST))  # Of no change.
        said = records.read(run).decisions
        assert len({file.page for file in said}) == 1
        seen.add(len(said))
        partial = f".run-{before.number}.npz.partial"
        assert heaps.digests(run, partial) == written[len(said)], number
    assert seen == {1, 2}


def test_the_page_of_a_run_that_has_moved_names_its_new_folder(run, tmp_path, monkeypatch):
    """After the next command; a run that cannot be written is read as it is."""
    corrected(run, said_by(run, right=[3]), with_report=True)
    moved = epath.Path(shutil.move(run, tmp_path / "a moved one"))
    command = f"cluster-jax report '{moved}' --corrections="
    assert command not in (moved / "report.html").read_text()
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        page.ensured(records.read(moved), with_report=True)
    assert command not in (moved / "report.html").read_text()
    update.update_rows(moved, Table(FIRST))  # Of no change.
    assert command in html.unescape((moved / "report.html").read_text())


def test_an_update_after_a_killed_undo_writes_the_outputs_of_the_newest_state(run, tmp_path):
    """They were those of the state before, in part or all, and the table of changes was gone."""
    updated(run, NEW, add=True, with_report=True)
    before, files = records.read(run), heaps.digests(run)
    kept = shutil.copytree(run, tmp_path / "kept")
    for number in itertools.count():
        with pytest.MonkeyPatch.context() as patch:
            kill_before(patch, number)
            try:
                states.undo(run)
                break
            except Killed:
                pass
        update.update_rows(run, Table(np.concatenate([FIRST, NEW])))
        assert records.read(run).number == before.number
        assert heaps.digests(run) == files, number
        shutil.rmtree(run)
        shutil.copytree(kept, run)
    assert number > 4


def test_lost_rows_of_an_update_say_how_to_go_back(run):
    """To the state before by an undo; to an earlier one by hand, if corrections came since."""
    first = records.read(run)
    updated(run, NEW, add=True)
    (run / f"store-{N}.npz").unlink()
    with pytest.raises(InputError, match=r"go back to the state before by .*--undo`$"):
        records.read(run)
    states.undo(run)
    assert_same(records.read(run), first)
    updated(run, NEW, add=True)
    corrected(run, names={"1": "cats"})
    (run / f"store-{N}.npz").unlink()
    said = r"remove run-2.npz, run-3.npz to go back to the state of run-1.npz$"
    with pytest.raises(InputError, match=said):
        records.read(run)
    for number in (2, 3):
        (run / f"run-{number}.npz").unlink()
    assert_same(records.read(run), first)
    (run / "store-0.npz").unlink()
    with pytest.raises(InputError, match=r"restore it from a copy$"):
        records.read(run)


@pytest.mark.parametrize("act", [_correct, _update, _undo], ids=lambda act: act.__name__)
def test_a_full_disk_is_told_and_the_state_is_whole(run, tmp_path, monkeypatch, act):
    """Whichever file no longer has room: it is the state before or the one after, and goes on."""
    said_by(run, "once.json", labels={"3": "a"}, new={"a": "puppies"}, wrong=[41])
    corrected(run, names={"1": "cats"}, with_report=True)
    updated(run, NEW[:2], add=True, with_report=True)
    before = records.read(run)
    kept = shutil.copytree(run, tmp_path / "kept")
    act(run)
    after = records.read(run)
    sync, number = os.fsync, 0
    while True:
        shutil.rmtree(run)
        shutil.copytree(kept, run)
        left = [number]

        def full(file, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            sync(file)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            try:
                act(run)
                break
            except OSError:
                assert left[0] < 0
        assert not list(run.glob(".*.partial"))
        found = records.read(run)
        assert_same(found, before if found.number == before.number else after)
        number += 1
        act(run)
        assert_same(records.read(run), after)
    assert number > 3


def test_a_file_is_on_the_disk_before_it_has_its_name(run, monkeypatch):
    """Else a lost power supply would leave an empty file under the name of the newest state."""
    synced, renamed = [], []
    sync, replace = os.fsync, os.replace
    path = type(epath.Path("x"))

    def noted(file):
        synced.append(os.fstat(file).st_ino)
        sync(file)

    def moved(old, new):
        assert os.stat(old).st_ino in synced, f"{new} was not synced"
        renamed.append(os.path.basename(new))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(path, "replace", lambda old, new: moved(old, new))
    updated(run, NEW, add=True, with_report=True)
    assert {"report.html", "assignments.csv", "results.json"} <= {*renamed}
    assert renamed[:2] == [f"store-{N}.npz", "run-2.npz"], "rows before the state that has them"


def test_a_first_run_that_is_killed_has_all_its_files_in_the_end(run, tmp_path):
    command = [f"--features={tmp_path}/rows.npy", f"--workdir={tmp_path}/new", "--reduce=pca"]
    np.save(tmp_path / "rows.npy", FIRST)
    number = 0
    while True:
        with pytest.MonkeyPatch.context() as patch:
            kill_before(patch, number)
            try:
                cluster.main(command)
                break
            except Killed:
                number += 1
        cluster.main(command)
        names = {path.name for path in (tmp_path / "new").iterdir()}
        assert names == {path.name for path in run.iterdir()}, number
        np.testing.assert_array_equal(cluster_jax.load(tmp_path / "new").labels_, of_first(run))
        shutil.rmtree(tmp_path / "new")
    assert number > 5


def of_first(run):
    return records.read(run).labels


# --- corrections ---------------------------------------------------------------------------------


def test_corrections_of_an_older_page_are_about_the_same_rows(run):
    """Rows 0 to 4 leave, so that all others have other places; and what is decided is carried."""
    a, b, c, d = of_first(run)[[0, 25, 50, 75]].tolist()
    updated(run, np.concatenate([FIRST[5:], NEW]))
    file = said_by(
        run,
        back=1,
        labels={"1": "y", "2": b, "10": c, "11": "x"},
        new={"x": "puppies", "y": "gone"},
        wrong=[3, 30],
        right=[60],
        names={str(d): "cats"},
    )
    after = corrected(run, file)
    born = after.next_label - 1
    assert of(after, FIRST[[9, 10, 11, 12]]) == [a, c, born, a]
    assert of(after, FIRST[[29, 30, 31, 60]]) == [b, -1, b, c]
    assert after.labels[after.columns["decided"]].tolist() == [c, born, -1, c]
    assert after.named == {d: "cats", born: "puppies"}


def test_what_is_right_on_an_older_page_is_in_the_cluster_that_it_shows(run):
    """Unless a person has moved it since: then the file is refused, and names the row."""
    a, b = of_first(run)[[0, 25]].tolist()
    page = said_by(run, "page.json", right=[0, 2])
    corrected(run, said_by(run, labels={"0": b}), names={str(a): "cats"})
    before = digests(run)
    with pytest.raises(InputError, match=f"got row 0, which a person has .* to be in cluster {b}"):
        corrected(run, page)
    assert digests(run) == before
    states.undo(run, with_report=False)
    after = corrected(run, page)
    assert (of(after, FIRST[[0, 2]]), after.columns["decided"].sum()) == ([a, a], 2)


def test_a_place_on_the_page_of_a_sample(tmp_path, monkeypatch):
    """Of rows that are read in blocks a sample is shown, and the page is older than the run."""
    (tmp_path / "x").mkdir()
    np.save(tmp_path / "x" / "0.npy", FIRST)
    monkeypatch.setattr("cluster_jax.data.tables.LARGE", 50)
    monkeypatch.setattr("cluster_jax.runs.rows.SAMPLE", 60)
    run = tmp_path / "run"
    cluster.main([f"--features={tmp_path}/x", f"--workdir={run}", "--reduce=pca", "--report=no"])
    row = records.read(run).rows[50]
    file = said_by(run, labels={"50": "a"}, new={"a": None})
    corrected(run, names={"0": "cats"})
    after = corrected(run, file)
    assert row > 50
    assert np.flatnonzero(after.columns["decided"]).tolist() == [row]
    assert after.labels[row] == GROUPS
    certain = [line["probability"] for line in toy.table(run)]
    assert certain[row] == "1"
    assert all(0 < float(probability) <= 1 for probability in certain), "also of rows not shown"


def test_what_a_person_has_decided_holds_in_updates(run):
    a, b = of_first(run)[[0, 25]].tolist()
    after = corrected(run, said_by(run, labels={"0": b}, wrong=[1, 26]))
    for seed in range(2, 5):
        after = updated(run, rows(3, 3, 3, 3, 3, seed=seed), add=True, refit=seed == 4)
        assert of(after, FIRST[[0, 1, 2, 26]]) == [b, -1, a, -1]


def test_a_row_that_equals_several_goes_where_an_update_puts_it(tmp_path):
    """A person has put them into several clusters: those that nobody has decided about count."""
    x = np.concatenate([FIRST, *[FIRST[[0, 25, 50]]] * 3, FIRST[:2]])
    np.save(tmp_path / "rows.npy", x)
    run = tmp_path / "run"
    cluster.main([f"--features={tmp_path}/rows.npy", f"--workdir={run}", "--reduce=pca"])
    a, b, c, d = of_first(run)[[0, 25, 50, 75]].tolist()
    of_25 = {"25": d, "101": d, "104": a, "107": d}
    of_50 = {"50": a, "102": b, "105": b, "108": a}
    moved = {"0": b, "100": b, "103": b, **of_25, **of_50, "1": c}
    before = corrected(run, said_by(run, labels=moved))
    new = FIRST[[0, 25, 50, 1, 75]]
    placed = place.place(before, new).labels.tolist()
    assert placed == [a, d, min(a, b), a, d]
    after = updated(run, np.concatenate([x, new]))
    assert after.labels[len(x) :].tolist() == placed


def test_a_doubt_that_a_person_has_settled_is_not_counted(run):
    after = corrected(run, said_by(run, right=[0, 1]))
    doubted = dataclasses.replace(after, probabilities=np.full(N, 0.3))
    assert measured.count_doubtful(doubted) == N - 2


def test_a_name_changes_nothing_else(run):
    before = cluster_jax.load(run)
    corrected(run, names={"1": "cats"})
    after = cluster_jax.load(run)
    np.testing.assert_array_equal(after.cut(n_clusters=3), before.cut(n_clusters=3))
    np.testing.assert_array_equal(after.predict(NEW), before.predict(NEW))
    assert after.run.results["metrics"] == before.run.results["metrics"]


# --- clusters that come and go -------------------------------------------------------------------


def test_what_was_named_or_decided_comes_back_with_its_rows(run):
    """Others of their kind are a new cluster; a merge has what it has merged, also later."""
    a, b, c, d = of_first(run)[[0, 25, 50, 75]].tolist()
    said = {"names": {str(d): "cats"}, "labels": {"26": a}, "wrong": [27]}
    named = corrected(run, said_by(run, **said))
    after = updated(run, np.concatenate([FIRST[:25], FIRST[30:75]]))
    assert d not in after.labels
    assert after.cluster_names == {}
    born = updated(run, rows(0, 0, 0, 9, seed=2), add=True)
    assert set(of(born, rows(0, 0, 0, 9, seed=2))) == {GROUPS}
    assert born.cluster_names == {}
    states.undo(run, with_report=False)
    corrected(run, said_by(run, merges=[[a, c]]))
    said = update.update_rows(run, Table(FIRST), with_report=False)[0]
    back = records.read(run)
    assert said.startswith(f"30 rows are new.\n  cluster {d} (cats) is back (25 rows)\n")
    assert back.cluster_names == {str(d): "cats"}
    assert of(back, FIRST[[0, 25, 26, 27, 28, 50, 75]]) == [c, b, c, -1, b, c, d]
    decided = zip(back.features, back.columns["decided"], strict=True)
    assert sum(is_decided for _, is_decided in decided) == 2
    assert set(of(back, FIRST[75:])) == {d}
    assert not len(back.departed)
    assert (back.columns["since"] == back.updates).sum() == 30, "the page shows those that it tells"
    assert named.next_label == back.next_label


def test_what_was_said_of_a_cluster_comes_back_with_its_rows(run):
    """Also if all of them have left, and what was said is taken back while they are away."""
    a, b, c, d = of_first(run)[[0, 25, 50, 75]].tolist()
    file = said_by(run, browser="anna", merges=[[d, c]], whole=[c])
    less = said_by(run, "less.json", browser="anna", whole=[c])
    said = (corrected(run, file).whole, corrected(run, file).shaped)
    updated(run, FIRST[:50], confirmed=True)
    back = updated(run, FIRST)
    assert of(back, FIRST[[0, 25, 50, 75]]) == [a, b, c, c]
    assert (back.whole, back.shaped) == said == ({c}, {c})
    updated(run, FIRST[:50], confirmed=True)
    assert (corrected(run, less).whole, corrected(run, less).shaped) == ({c}, set())
    assert of(updated(run, FIRST), FIRST[[0, 25, 50, 75]]) == [a, b, c, d]


def test_what_was_decided_about_a_row_that_has_left_ends_with_its_cluster(run):
    a, b, c, d = of_first(run)[[0, 25, 50, 75]].tolist()
    corrected(run, said_by(run, labels={"0": b, "25": c, "50": d, "75": a}))
    updated(run, np.delete(FIRST, [0, 25, 50, 75], axis=0))
    update.with_number(run, 1, with_report=False)
    there = set(records.read(run).labels.tolist())
    back = updated(run, FIRST)
    assert set(back.labels.tolist()) == there
    assert len(there) == 1


def test_a_row_of_the_run_is_there_before_an_equal_one_that_has_left(run):
    """Though a person had decided about the one that has left, which comes back with the second."""
    a, b = of_first(run)[[0, 25]].tolist()
    updated(run, np.concatenate([FIRST, FIRST[:1]]))
    corrected(run, said_by(run, labels={str(N): b}))
    for x in (FIRST, np.concatenate([FIRST, NEW])):
        after = updated(run, x)
        assert (after.labels[0], len(after.departed)) == (a, 1)
    after = updated(run, np.concatenate([FIRST, NEW, FIRST[:1]]))
    assert (after.labels[0], after.labels[-1], len(after.departed)) == (a, b, 0)


def test_a_row_with_another_vector_is_the_same_row(tmp_path):
    """It moves only where the clusters part it from its own, and what is decided about it holds."""
    (x, names), run = (FIRST, tuple(map(str, range(N)))), tmp_path / "run"
    np.savez(tmp_path / "x.npz", features=x, ids=np.array(names))
    flags = [f"--features={tmp_path}/x.npz", f"--workdir={run}", "--reduce=pca", "--report=no"]
    cluster.main([*flags, "--array=features", "--ids=ids"])
    first = of_first(run)
    a, b, c, d = first[[0, 25, 50, 75]].tolist()
    corrected(run, said_by(run, labels={"0": b}, wrong=[1], right=[2]), names={str(d): "cats"})
    rng = np.random.default_rng(3)
    changed = np.concatenate([FIRST[50:54] + 0.1, FIRST[4:]])
    changed[60:] *= 1 + 1e-6 * rng.normal(size=changed[60:].shape).astype("f4")
    told = update.update_rows(run, Table(changed, names), with_report=False)
    assert told[0].startswith("44 rows are changed.")
    after = records.read(run)
    where = dict(zip(after.names, after.labels.tolist(), strict=True))
    assert [where[name] for name in "01234"] == [b, -1, a, c, a]
    assert [where[name] for name in names[60:]] == first[60:].tolist()
    assert after.columns["decided"].sum() == 3
    assert after.cluster_names == {str(d): "cats"}
    # Vectors of another network, even if they differ by rounding: that is asked about.
    other = changed * np.float32(1 + 1e-6)
    with pytest.raises(InputError, match=r"100 of the 100 rows of .* would have another vector"):
        update.update_rows(run, Table(other, names))
    update.update_rows(run, Table(other, names), confirmed=True, with_report=False)
    assert records.read(run).labels.tolist() == after.labels.tolist()


def test_a_row_that_comes_back_with_another_vector_has_that(tmp_path):
    """It is known by its id, and what was decided about it holds."""
    names, run = tuple(map(str, range(N))), tmp_path / "run"
    np.savez(tmp_path / "x.npz", features=FIRST, ids=np.array(names))
    flags = [f"--features={tmp_path}/x.npz", f"--workdir={run}", "--reduce=pca", "--report=no"]
    cluster.main([*flags, "--array=features", "--ids=ids"])
    b = int(of_first(run)[25])
    corrected(run, said_by(run, labels={"0": b, "1": b}))
    for first, left in ((2, ["0", "1"]), (1, ["0"])):
        update.update_rows(run, Table(FIRST[first:], names[first:]), with_report=False)
        assert list(records.read(run).departed_names) == left
    changed = np.concatenate([FIRST[60:61] + 0.1, FIRST[1:]])
    update.update_rows(run, Table(changed, names), with_report=False)
    after = records.read(run)
    assert after.departed_names == ()
    rows_of = dict(zip(after.names, after.features, strict=True))
    for name, x in (("0", changed[0]), ("1", FIRST[1])):
        np.testing.assert_allclose(rows_of[name], x / np.linalg.norm(x), rtol=1e-5)
        assert after.labels[after.names.index(name)] == b


def test_a_row_without_a_direction_that_gets_one(tmp_path):
    """It was in no cluster, and is found in one."""
    names, run = np.array([*map(str, range(N))]), tmp_path / "run"
    first = FIRST.copy()
    first[3] = 0
    np.savez(tmp_path / "x.npz", features=first, ids=names)
    flags = [f"--features={tmp_path}/x.npz", f"--workdir={run}", "--reduce=pca", "--report=no"]
    cluster.main([*flags, "--array=features", "--ids=ids"])
    assert of_first(run)[3] == -1
    update.update_rows(run, Table(FIRST, tuple(names)), with_report=False)
    assert of_first(run)[3] == of_first(run)[4]


def test_all_rows_are_others(run):
    """It is the next update all the same, and fewer rows may have fewer clusters than asked for."""
    update.with_number(run, 3, with_report=False)
    after = updated(run, rows(9, 9, 9, 0, seed=5), confirmed=True, with_report=True)
    assert (after.updates, {*after.columns["since"].tolist()}) == (2, {2})
    assert "Update 2: 27 rows are new; 100 rows are gone" in (run / "report.html").read_text()
    assert min(after.labels.tolist()) >= GROUPS, "no number is used twice"
    two = updated(run, rows(1, 1, 0, 0, seed=6), confirmed=True)
    assert len({*two.labels.tolist()}) <= 2


def test_the_last_update_is_known_by_two_states_that_follow_each_other(run):
    """An older one is kept as long as people save from its page, but is not the one before."""
    corrected(run, said_by(run, labels={"0": 1}, browser="anna", saved=1))
    corrected(run, names={"1": "cats"})
    updated(run, NEW, add=True)
    assert changes.last_update(records.read(run))[0].number == 3
    table = toy.table(run, "changes.csv")
    for i in range(7):
        corrected(run, names={"1": f"name {i}"})
    assert workdirs.states(run) == [1, *range(4, 12)]
    assert changes.last_update(records.read(run)) is None
    assert toy.table(run, "changes.csv") == table, "what is no longer known stays"
    updated(run, FIRST)
    assert toy.table(run, "changes.csv") != table
    states.undo(run, with_report=False)
    assert not (run / "changes.csv").exists(), "it was that of the update that is taken back"


def test_a_report_after_a_kill_has_the_changes_of_the_update(run, monkeypatch):
    write = io.write
    for x in (NEW[:3], NEW[3:6]):
        with monkeypatch.context() as patch:
            patch.setattr(
                io,
                "write",
                lambda path, text: kill(path) if "changes" in str(path) else write(path, text),
            )
            with pytest.raises(Killed):
                updated(run, x, add=True)
        corrected(run)
        assert len(toy.table(run, "changes.csv")) == 3
    names = [row["name"] for row in toy.table(run, "changes.csv")]
    assert names == ["103", "104", "105"], "those of the last update"


def test_a_damaged_state_before_the_last_update_is_in_the_way_of_nothing_else(run):
    updated(run, NEW, add=True)
    table = toy.table(run, "changes.csv")
    (run / "run-1.npz").write_bytes(b"damaged")
    assert corrected(run, names={"1": "cats"}, with_report=True).named == {1: "cats"}
    assert states.undo(run)[1]["undone"] == "corrections"
    assert records.read(run).named == {}
    assert toy.table(run, "changes.csv") == table


def test_undo_goes_back_state_by_state(run):
    corrected(run, with_report=True)  # The page names its folder, which was copied.
    stages = [digests(run)]
    updated(run, NEW, add=True, with_report=True)
    stages.append(digests(run))
    corrected(run, names={"1": "cats"}, with_report=True)
    stages.append(digests(run))
    updated(run, FIRST, with_report=True)
    of = {"update": "update 2", "corrections": "the last corrections"}
    for what in ("update", "corrections", "update"):
        said, told = states.undo(run)
        assert (told["undone"], said.startswith(f"Took {of[what]} of ")) == (what, True)
        of["update"] = "update 1"
        assert digests(run) == stages.pop()
    with pytest.raises(InputError, match="must have an update or corrections to take back"):
        states.undo(run)


def test_a_run_that_is_not_finished_has_nothing_to_undo(tmp_path):
    io.write_json(tmp_path / "config.json", {})
    with pytest.raises(InputError, match="is not finished; run its command again with --workdir="):
        states.undo(tmp_path)


def test_the_last_eight_states_are_kept(run):
    for i in range(9):
        corrected(run, names={"1": f"name {i}"})
    assert workdirs.states(run) == list(range(3, 11))
    for _ in range(7):
        states.undo(run, with_report=False)
    assert records.read(run).named == {1: "name 1"}
    with pytest.raises(InputError, match="the last 8 states are kept"):
        states.undo(run)


def test_results_are_output(tmp_path):
    """No command depends on them: all is done as before where the state has none."""
    names = [f"row {i}" for i in range(N)]
    np.savez(tmp_path / "x.npz", v=FIRST, files=names)
    np.savez(
        tmp_path / "new.npz",
        v=np.concatenate([FIRST[3:], NEW]),
        files=[*names[3:], *map(str, range(len(NEW)))],
    )
    flags = ["--array=v", "--ids=files", "--reduce=pca", "--report=no", "--quiet"]
    cluster.main([f"--features={tmp_path}/x.npz", f"--workdir={tmp_path}/one", *flags])
    shutil.copytree(tmp_path / "one", tmp_path / "none")
    empty = {"metrics": {"tree": {}}, "provenance": {}}
    dataclasses.replace(records.read(tmp_path / "none"), results=empty).write()
    tables = []
    for name in ("one", "none"):
        flags = [f"--workdir={tmp_path / name}", f"--features={tmp_path}/new.npz", "--quiet"]
        predict.main([*flags, f"--out={tmp_path}/placed.csv"])
        update_command.main([*flags, "--report=no"])
        tables.append((toy.table(tmp_path / name), toy.table(tmp_path, "placed.csv")))
    assert tables[0] == tables[1]
    assert tables[0][1][0]["files"] == "row 3"


# --- photos --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("one_device", "shallow_lite")
@pytest.mark.filterwarnings("ignore:n_jobs value:UserWarning")
def test_photos_that_move_while_a_page_is_open(tmp_path, refused):
    """The folder of the run moves with its photos; one is renamed, one leaves, two come."""
    pixels = toy.images(32, channels=3)[0]
    toy.save(tmp_path / "here" / "photos", pixels[:30])
    quick = ("data.image_size=32", "eval.batch_size=2", "eval.reduce=pca")
    flags = [f"--workdir={tmp_path}/here/run", *(f"--config.{key}" for key in quick)]
    images.main([str(tmp_path / "here" / "photos"), *flags])
    (tmp_path / "here").rename(tmp_path / "there")
    run, photos = tmp_path / "there" / "run", tmp_path / "there" / "photos"
    first = records.read(run)
    other = first.next_label
    file = said_by(run, labels={"5": "a", "7": "a"}, new={"a": "bars"}, wrong=[0, 9], keep=[3])
    (photos / "05.png").rename(photos / "zebra.png")
    (photos / "00.png").unlink()
    toy.save(photos, pixels[30:], 30)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records.Run, "write", kill)
        with pytest.raises(Killed):
            update.update_photos(run)
    assert_same(records.read(run), first)
    told = update.update_photos(run)[1]
    assert [told[key] for key in ("new", "gone", "renamed", "photos")] == [2, 1, 1, 31]
    after = corrected(run, file, with_report=True)
    where = dict(zip(after.names, after.labels.tolist(), strict=True))
    before = dict(zip(first.names, first.labels.tolist(), strict=True))
    assert (where["zebra.png"], where["07.png"], where["09.png"]) == (other, other, -1)
    assert after.cluster_names[str(other)] == "bars"
    same = set(before) - {"00.png", "05.png", "07.png", "09.png"}
    assert all(where[name] == before[name] for name in same)
    assert where.keys() - before.keys() == {"zebra.png", "30.png", "31.png"}
    assert update.update_photos(run)[1]["new"] == 0
    images.main([str(photos), f"--workdir={run}", *flags[1:], "--n-clusters=3"])
    three = records.read(run)
    assert len(set(three.labels.tolist()) - {-1}) == 3
    assert three.next_label >= after.next_label
    for _ in range(3):
        states.undo(run, with_report=False)
    assert_same(records.read(run), first)


def kill(run):
    raise Killed


# --- what cannot be read -------------------------------------------------------------------------


@pytest.mark.parametrize("form", [workdirs.FORMAT + 7, None])
def test_a_state_of_another_format_is_one_sentence(run, refused, form):
    """By the field alone: of a newer version, of which all else may be the same, and of an old one
    without the field. No command writes anything."""
    file = run / "run-1.npz"
    arrays = io.read_arrays(file)
    about = json.loads(arrays["about"].item())
    about.pop("format")
    about |= {} if form is None else {"format": form}
    io.write_arrays(file, {**arrays, "about": np.array(json.dumps(about))})
    np.save(run.parent / "x.npy", FIRST)
    before, rows_of = digests(run), f"--features={run.parent}/x.npy"
    for main, *flags in (
        (report.main, str(run), "--name=1=cats"),
        (predict.main, f"--workdir={run}", rows_of),
        (update_command.main, f"--workdir={run}", rows_of),
        (cluster.main, f"--workdir={run}", rows_of),
    ):
        said = refused(main, *flags)
        assert f"{run} was written by another version of cluster_jax (format {form}, not" in said
        assert "choose another folder to run it again, or use that version" in said
    assert digests(run) == before


def test_a_damaged_newest_state_is_told_and_nothing_is_guessed(run):
    corrected(run, names={"1": "cats"})
    content = bytearray((run / "run-2.npz").read_bytes())
    # A bit of what is between the arrays would change nothing.
    for where in (100, content.index("config".encode("utf-32-le")), len(content) - 10):
        changed = content.copy()
        changed[where] ^= 4
        (run / "run-2.npz").write_bytes(changed)
        before = digests(run)
        for use in (records.read, states.correct, update.update_rows):
            with pytest.raises(InputError, match=r"run-2.npz is damaged \(.*restore it") as error:
                use(run)
            assert "\n" not in str(error.value)
            assert "--undo" in str(error.value)
        assert digests(run) == before
    assert states.undo(run)[1]["undone"] == "damaged state"
    assert records.read(run).number == 1


def test_of_two_damaged_states_the_files_are_named(run):
    corrected(run, names={"1": "cats"})
    for number in (1, 2):
        (run / f"run-{number}.npz").write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"run-1.npz is damaged \(.*or remove all files run-\*"):
        states.undo(run)


def test_a_merge_is_one_correction_and_names_are_as_they_are(run):
    merged = said_by(run, merges=[[0, 1]])
    text, _ = states.correct(run, [merged], {"1": "C:\\cats"}, with_report=False)
    assert text.startswith("corrections  1 merged or emptied, 1 named\n")
    rows = toy.table(run)
    assert {row["name"] for row in rows if row["cluster"] == "1"} == {"C:\\cats"}
    with pytest.raises(InputError, match="must name a cluster that has rows; got 0, which has no"):
        states.correct(run, names={"0": "dogs"})


def test_rows_may_all_be_wrong(run):
    found = corrected(run, said_by(run, wrong=list(range(22)))).results["metrics"]["tree"]
    assert (found["n_clusters"], found["n_large"]) == (GROUPS, GROUPS - 1), "three rows are left"
    _, one_of_each = np.unique(records.read(run, 1).labels, return_index=True)
    most = said_by(run, wrong=np.setdiff1d(np.arange(N), one_of_each).tolist())
    found = corrected(run, most).results["metrics"]["tree"]
    assert found["n_clusters"] == found["n_large"] == GROUPS - 1, "no cluster is larger"
    after = corrected(run, said_by(run, wrong=list(range(N))), with_report=True)
    assert set(after.labels.tolist()) == {-1}
    assert (place.place(after, FIRST).labels == -1).all()


def test_features_that_are_missing_or_damaged_are_told(run):
    file = run / "store-0.npz"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    store.write(epath.Path(run), 0, -FIRST)  # As by another run of as many rows.
    for reason in ("it has other rows", "cannot be read", "cannot be read", "it is not there"):
        for use in (records.read, states.correct, update.update_rows):
            with pytest.raises(InputError, match=rf"store-0.npz is damaged \(.*{reason}\)"):
                use(run)
        if reason == "it has other rows":
            file.write_bytes(content)
        elif file.exists() and file.stat().st_size:
            file.write_bytes(b"")
        else:
            file.unlink(missing_ok=True)


def test_a_store_has_the_rows_that_were_written_last(tmp_path):
    """Those of a killed or an undone update may be there, before and after them, and damaged."""
    workdir, x = epath.Path(tmp_path), np.arange(24, dtype=np.float32).reshape(12, 2)
    files = {}
    for first, last, values in ((0, 3, x), (3, 6, -x), (6, 8, -x), (3, 7, x), (7, 8, x)):
        files |= store.write(workdir, first, values[first:last])
    store.path_of(workdir, 6).write_bytes(b"damaged")
    for size in (3, 7, 8):
        own = {first: files[first] for first in (0, 3, 7) if first < size}
        rows = store.read(workdir, None, size, own)
        np.testing.assert_array_equal(rows, x[:size], strict=True)
    store.write(workdir, 3, -x[3:7])
    with pytest.raises(io.DamagedFile, match=r"store-3.npz is damaged \(it has other rows\)"):
        store.read(workdir, None, 7, {0: files[0], 3: files[3]})
    store.path_of(workdir, 3).unlink()
    with pytest.raises(io.DamagedFile, match=r"store-3.npz is damaged \(it is not there\)"):
        store.read(workdir, None, 7, {0: files[0], 3: files[3]})
    assert store.read(workdir, None, 3, {0: files[0]}).tolist() == x[:3].tolist()


def test_the_next_state_removes_files_of_the_store_that_no_state_needs(run):
    """Also one whose first row is now in an earlier file, but none of a name of the user's own."""
    shutil.copy(run / "store-0.npz", run / "store-0-copy.npz")
    own = {"store-0.npz", "store-0-copy.npz"}

    def there():
        return {path.name for path in run.glob("store*")}

    for x in (NEW[:2], NEW[2:5]):
        updated(run, x, add=True)
    for _ in range(2):
        states.undo(run, with_report=False)
    assert there() == own | {f"store-{N}.npz", f"store-{N + 2}.npz"}
    after = updated(run, NEW[:9], add=True)
    assert there() == own | {f"store-{N}.npz"}
    np.testing.assert_array_equal(records.read(run).features, after.features)
    states.undo(run, with_report=False)
    corrected(run, names={"1": "cats"})
    assert there() == own
    np.testing.assert_array_equal(records.read(run, 1).features, after.features[:N])


def test_a_store_that_is_linked_stays_where_it_is(tmp_path):
    """Such as on a larger disk."""
    (tmp_path / "store-0.npz").symlink_to(tmp_path / "elsewhere.npz")
    for values in (FIRST, -FIRST):
        store.write(epath.Path(tmp_path), 0, values)
    assert (tmp_path / "store-0.npz").is_symlink()
    assert np.array_equal(np.load(tmp_path / "elsewhere.npz")["features"], -FIRST)


def test_a_command_reads_the_features_of_a_run_once(run, monkeypatch):
    """However many earlier states it looks at, also those of an update."""
    page = said_by(run, "page.json", labels={"0": 1})
    updated(run, NEW, add=True)
    for name in ("cats", "dogs"):
        before = corrected(run, names={"1": name})
    read, sizes = store.read, []
    monkeypatch.setattr(store, "read", lambda *how: (sizes.append(how[2]), read(*how))[1])
    states.correct(run, [page])
    assert sizes == [len(before.store)]
    monkeypatch.undo()
    first = records.read(run, 1)
    assert_same(records.read(run, 1, records.read(run)), first)


def test_no_table_is_read_back(first, tmp_path, monkeypatch):
    """Tables, results and the page are outputs: no command goes by them, however many rows."""
    monkeypatch.setattr("csv.DictReader", None)
    shutil.copytree(first, tmp_path / "whole")
    shutil.copytree(first, tmp_path / "bare")
    for name in ("assignments.csv", "results.json", "report.html"):
        (tmp_path / "bare" / name).write_bytes(b"\xff,garbage")
    np.save(tmp_path / "new.npy", NEW)
    tables = []
    for name in ("whole", "bare"):
        run = tmp_path / name
        predict.main([f"--workdir={run}", f"--features={tmp_path}/new.npy"])
        updated(run, NEW, add=True)
        corrected(run, names={"1": "cats"})
        tables.append(digests(run, "config.json"))
    assert {"predictions.csv", "assignments.csv", "changes.csv", "run-3.npz"} <= tables[0].keys()
    assert tables[0] == tables[1]


def test_the_page_is_called_after_the_file_of_its_first_rows(run):
    for name, x in (("may", FIRST[3:]), ("june", NEW[:9])):
        np.save(run.parent / f"{name}.npy", x)
    for name, flags in (("may", []), ("june", ["--add"])):
        given = f"--features={run.parent}/{name}.npy"
        update_command.main([f"--workdir={run}", "--report=no", "--quiet", given, *flags])
        after = records.read(run)
        assert after.results["provenance"]["features"].endswith("rows.npy")
        assert page.report_data(after).title == "rows.npy"
    assert (after.updates, len(after.columns)) == (2, len(FIRST) - 3 + 9)
