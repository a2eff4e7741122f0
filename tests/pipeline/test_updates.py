"""Updates of a run of embeddings: ids, decisions, undo, kills, locks and bad input."""

import csv
import hashlib
import json
import os
import shutil

import numpy as np
import pyarrow
import pytest
from etils import epath
from pyarrow import parquet

from cluster_jax.cli import cluster, predict, report, update
from cluster_jax.clustering import living
from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.pipeline import history, updates, versions
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.report import assignments, decisions
from tests.cli.test_output import check_keys
from tests.report.test_report import Page

CENTERS = 20 * np.eye(6, 8)


def rows(*counts, seed=0):
    rng = np.random.default_rng(seed)
    kinds = np.repeat(np.arange(len(counts)), counts)
    return (CENTERS[kinds] + rng.normal(size=(len(kinds), 8))).astype("f4")


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A run of 4 clusters of 30 rows."""
    folder = tmp_path_factory.mktemp("updates")
    np.save(folder / "rows.npy", rows(30, 30, 30, 30))
    cluster.main([f"--features={folder}/rows.npy", f"--workdir={folder}/run", "--reduce=pca"])
    return folder / "run"


@pytest.fixture
def run(first, tmp_path):
    shutil.copytree(first, tmp_path / "run")
    return tmp_path / "run"


def updated(run, *counts, seed=1, flags=()):
    file = run.parent / f"new{seed}.npy"
    np.save(file, rows(*counts, seed=seed))
    update.main([f"--workdir={run}", f"--features={file}", *flags])


def table(run):
    return list(csv.DictReader((run / "assignments.csv").read_text().splitlines()))


def ids(run):
    return [int(row["cluster"]) for row in table(run)]


def digests(run):
    files = sorted(path for path in run.rglob("*") if path.is_file() and path.name != "lock")
    kept = [path for path in files if not {".previous", ".update"} & set(path.parts)]
    return {str(p.relative_to(run)): hashlib.sha256(p.read_bytes()).hexdigest() for p in kept}


def test_new_rows_join_and_a_new_kind_is_born(run, capsys):
    before = [int(row["cluster"]) for row in table(run)]
    updated(run, 4, 4, 4, 4, 9)
    said = capsys.readouterr().out
    assert "25 rows are new." in said
    assert "cluster 4 emerged (9 rows)" in said
    assert ids(run)[:120] == before
    assert set(ids(run)[136:]) == {4}
    assert [row["since"] for row in table(run)] == ["0"] * 120 + ["1"] * 25
    assert [row["row"] for row in table(run)] == list(map(str, range(145)))
    page = (run / "report.html").read_text()
    assert "Cluster 4 emerged (9 rows)" in page
    assert "Update 1: 25 rows are new." in page
    report.main([str(run)])
    assert (run / "report.html").read_text().count("Cluster 4 emerged (9 rows)") == 1
    line = json.loads((run / "history.jsonl").read_text())
    assert (line["update"], line["new"], line["rows"], line["clusters"]) == (1, 25, 145, 5)
    assert {"kind": "emerged", "id": 4, "rows": 9, "into": []} in line["events"]
    capsys.readouterr()
    np.save(run.parent / "near.npy", rows(0, 0, 0, 0, 2, seed=9))
    predict.main([f"--workdir={run}", f"--features={run.parent}/near.npy"])
    assert {row["cluster"] for row in _read(run / "predictions.csv")} == {"4"}


def _read(file):
    return list(csv.DictReader(file.read_text().splitlines()))


def test_the_same_rows_again_change_nothing_and_it_says_so(run, capsys):
    updated(run, 4, 4, 4, 4)
    before = digests(run)
    capsys.readouterr()
    updated(run, 4, 4, 4, 4)
    assert capsys.readouterr().out == (
        f"Nothing has happened: {run} has all 136 rows already, and none is gone.\n"
    )
    update.main([f"--workdir={run}"])
    assert "Nothing has happened" in capsys.readouterr().out
    assert digests(run) == before


def test_undo_takes_the_last_update_back_bit_for_bit(run, capsys):
    updated(run, 4, 4, 4, 4)
    before = digests(run)
    updated(run, 4, 4, 4, 4, 9, seed=2)
    assert digests(run) != before
    update.main([f"--workdir={run}", "--undo"])
    assert digests(run) == before
    assert "are as they were before" in capsys.readouterr().out
    with pytest.raises(InputError, match="only the last update"):
        updates.undo(run)


def test_undo_loses_no_decision(run, capsys):
    updated(run, 4, 4, 4, 4)
    before = digests(run)
    updated(run, 4, 4, 4, 4, 9, seed=2)
    file = correct_by_page(run, ("0", ids(run)[60]), "31")
    report.main([str(run), f"--corrections={file}"])
    later = (run / "decisions.csv").read_bytes()
    capsys.readouterr()
    update.main([f"--workdir={run}", "--undo"])
    assert "What was decided since is in" in capsys.readouterr().out
    assert (run / "decisions_undone.csv").read_bytes() == later
    assert digests(run) == {**before, "decisions_undone.csv": hashlib.sha256(later).hexdigest()}


def test_undo_of_the_first_update_leaves_the_run_as_it_was(run):
    before = digests(run)
    updated(run, 4, 4, 4, 4)
    update.main([f"--workdir={run}", "--undo"])
    assert digests(run) == before


def test_a_refit_keeps_the_ids(run, capsys):
    updated(run, 4, 4, 4, 4, 9)
    before = ids(run)
    update.main([f"--workdir={run}", "--refit"])
    assert ids(run) == before
    assert "All rows were clustered anew." in capsys.readouterr().out


@pytest.mark.parametrize("when", ["new", "journal", "files", "previous"])
def test_a_kill_leaves_the_old_state_or_the_new_one_whole(run, monkeypatch, when):
    """Killed before the journal: the old state; after it: whoever reads next completes the new."""
    before = digests(run)

    class Killed(BaseException):
        pass

    def kill(*arguments, **more):
        raise Killed

    replace, left = os.replace, [2]
    if when == "new":
        monkeypatch.setattr(versions, "commit", kill)
    elif when == "journal":
        monkeypatch.setattr(versions, "finish", lambda path: (path / ".update").exists() and kill())
    elif when == "files":
        # Of the files that are put in place, two are.
        def some(source, target):
            if ".update" in str(source) and ".update" not in str(target):
                left[0] -= 1
                if left[0] < 0:
                    kill()
            return replace(source, target)

        monkeypatch.setattr(os, "replace", some)
    else:
        monkeypatch.setattr(os, "rename", kill)
    with pytest.raises(Killed):
        updated(run, 4, 4, 4, 4)
    monkeypatch.undo()
    if when == "new":
        assert digests(run) == before
        updated(run, 4, 4, 4, 4)
    assert workdirs.finished_results(run)["provenance"]["rows"] == 136
    assert len(ids(run)) == 136
    assert not (run / ".update").exists()
    update.main([f"--workdir={run}", "--undo"])
    assert digests(run) == before


def test_decisions_hold_after_updates_and_refits(run):
    own = ids_of_run(run)
    moved, wrong = "0", "31"
    target = own[60]
    file = correct_by_page(run, (moved, target), wrong)
    report.main([str(run), f"--corrections={file}"])
    for seed in range(1, 11):
        updated(run, 4, 4, 4, 4, 3, seed=seed)
        if seed % 5 == 0:
            update.main([f"--workdir={run}", "--refit"])
    now = {row["row"]: int(row["cluster"]) for row in table(run)}
    assert now[moved] == target
    assert now[wrong] == -1
    assert next(row["name"] for row in table(run) if row["cluster"] == str(target)) == "mine"
    decided = (run / "decisions.csv").read_text()
    assert all(f",{kind}," in decided for kind in ("move", "wrong", "name"))


def ids_of_run(run):
    return [int(row["cluster"]) for row in table(run)]


def correct_by_page(run, moved, wrong):
    _, found = decisions.clustered(assignments.read_workdir(run))
    image, target = moved
    decided = decisions.Decisions({image: target, wrong: -1}, named={target: "mine"})
    io.write(run.parent / "page.csv", decisions.to_csv(decided, found))
    return run.parent / "page.csv"


def test_two_updates_at_once(run):
    with (
        workdirs.locked(epath.Path(run)),
        pytest.raises(InputError, match="is used by another run"),
    ):
        updates.update_rows(run)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--workdir=nowhere"], "no such folder"),
        (["--workdir={run}", "photos"], "--features must be given in place of PHOTOS"),
        (["--workdir={run}", "--undo", "--refit"], "--undo must be given alone; got True"),
        (["--workdir={run}", "--undo"], "must have an update to take back"),
        (["--workdir={run}", "--array=x"], "--array must come with --features"),
        (["--workdir={run}", "--features={wide}"], "must have 8 columns like the embeddings"),
        (["--workdir=gs://bucket/run", "--undo"], "must be a file or folder of this machine"),
    ],
)
def test_bad_input_is_one_sentence(run, flags, said, capsys):
    np.save(run.parent / "wide.npy", np.zeros((3, 9), "f4"))
    files = {"wide": run.parent / "wide.npy"}
    before = digests(run)
    with pytest.raises(SystemExit) as stop:
        update.main([flag.format(run=run, **files) for flag in flags])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert digests(run) == before


def test_a_run_of_another_version_or_method(run, tmp_path):
    stored = io.read_arrays(run / "clusterer.npz")
    io.write_arrays(run / "clusterer.npz", {k: v for k, v in stored.items() if k != "contents"})
    with pytest.raises(InputError, match="older version of cluster_jax"):
        updates.update_rows(run)
    np.save(tmp_path / "rows.npy", rows(30, 30))
    flags = [f"--features={tmp_path}/rows.npy", f"--workdir={tmp_path}/k", "--method=kmeans"]
    cluster.main([*flags, "--k=2", "--reduce=pca"])
    with pytest.raises(InputError, match="method must be 'tree' for an update; got 'kmeans'"):
        updates.update_rows(tmp_path / "k")


def test_words_of_events():
    events = (
        living.Event("survived", 0, 9),
        living.Event("split", 1, 5, (7,)),
        living.Event("merged", 2, 8, (0,)),
        living.Event("emerged", 8, 6),
        living.Event("disappeared", 3, 0),
    )
    change = history.Change(6, 2, 1, events, False, "photo", "group")
    assert history.words(change, {1: "dogs"}) == (
        "6 photos are new; 2 photos are gone; 1 photo is moved or renamed.\n"
        "  group 8 emerged (6 photos)\n"
        "  group 1 (dogs) split: 5 photos of it now in group 7\n"
        "  group 2 merged into group 0 (8 photos)\n"
        "  group 3 disappeared: none of its photos is left\n"
        "  1 group survived as it was"
    )


@pytest.fixture
def named(tmp_path, monkeypatch):
    """A run whose rows have ids; writes a table of rows, by number, with ids."""
    monkeypatch.chdir(tmp_path)
    x = rows(40, 40)

    def write(name, numbers, ids):
        columns = {"x": [x[i].tolist() for i in numbers]} | ({"id": ids} if ids else {})
        parquet.write_table(pyarrow.table(columns), tmp_path / name)
        return f"--features={name}"

    first = write("first.parquet", range(70), [f"p{i}" for i in range(70)])
    cluster.main([first, "--out=out", "--reduce=pca", "--quiet"])
    return write


def test_an_update_without_a_page(run, capsys):
    before = digests(run)
    updated(run, 4, 4, 4, 4, flags=["--report=no", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert not (run / "report.html").exists(), "that of earlier rows would mislead"
    updated(run, 4, 4, 4, 4, flags=["--json"])
    nothing = json.loads(capsys.readouterr().out)
    check_keys("update", nothing)
    assert list(told) == list(nothing)
    same = {key: (0, []).__getitem__(key == "events") for key in ("new", "events")}
    assert nothing == {**told, **same, "date": nothing["date"]}
    report.main([str(run), "--quiet"])
    assert len(Page((run / "report.html").read_text()).record["map"]["names"]) == 136
    update.main([f"--workdir={run}", "--undo", "--json"])
    check_keys("update --undo", json.loads(capsys.readouterr().out))
    assert digests(run) == before


def test_rows_of_zeros_are_in_no_cluster(tmp_path, monkeypatch, capsys):
    """Of texts or files that failed: at the first fit, at an update, and where rows are placed."""
    monkeypatch.chdir(tmp_path)
    x = np.concatenate([np.zeros((2, 8), "f4"), rows(30, 30)])
    np.save("x.npy", x)
    np.save("y.npy", np.repeat([0, 1, 0], [2, 30, 30]))
    np.save("new.npy", np.concatenate([x[10:13] + 0.1, np.zeros((3, 8), "f4")]))
    flags = ["--features=x.npy", "--labels=y.npy", "--reduce=pca", "--out=out"]
    cluster.main(flags)
    assert (
        "2 rows are in no cluster: zeros alone, which have no direction" in capsys.readouterr().out
    )
    metrics = json.loads((tmp_path / "out/results.json").read_text())["metrics"]["tree"]
    assert (metrics["n_clusters"], metrics["n_large"], len(metrics["cluster_sizes"])) == (2, 2, 2)
    assert metrics["acc"] == pytest.approx(60 / 62)
    before = table(tmp_path / "out")
    assert {(row["cluster"], row["probability"]) for row in before[:2]} == {("-1", "0")}
    predict.main(["--workdir=out", "--features=new.npy", "--out=new.csv"])
    placed = list(csv.DictReader((tmp_path / "new.csv").read_text().splitlines()))
    assert [row["cluster"] for row in placed[2:]] == [before[12]["cluster"], *["-1"] * 3]
    assert [row["is_novel"] for row in placed[2:]] == ["0", *["1"] * 3]
    update.main(["--workdir=out", "--features=new.npy"])
    after = [row["cluster"] for row in table(tmp_path / "out")]
    assert after[:62] == [row["cluster"] for row in before]
    assert after[62:] == [*[row["cluster"] for row in before[10:13]], "-1"], "two are known"
    report.main(["out", "--quiet"])
    assert table(tmp_path / "out")[-1]["probability"] == "0"
    update.main(["--workdir=out", "--features=new.npy", "--refit", "--report=no"])
    assert [row["cluster"] for row in table(tmp_path / "out")] == after


def test_all_rows_of_a_cluster_are_moved_away(run, capsys):
    """The run is read again, places rows, and grows; the cluster that has no row is in none."""
    own = ids_of_run(run)
    gone, target = own[0], own[60]
    _, found = decisions.clustered(assignments.read_workdir(run))
    moved = {str(i): target for i in np.flatnonzero(np.array(own) == gone)}
    file = run.parent / "page.csv"
    io.write(file, decisions.to_csv(decisions.Decisions(moved), found))
    report.main([str(run), f"--corrections={file}", "--quiet"])
    report.main([str(run), "--quiet"])
    np.save(run.parent / "like.npy", rows(30)[:3])
    predict.main([f"--workdir={run}", f"--features={run.parent}/like.npy", f"--out={file}"])
    placed = list(csv.DictReader(file.read_text().splitlines()))
    assert {int(row["cluster"]) for row in placed} == {target}
    updated(run, 4, 4, 4, 4)
    report.main([str(run), "--quiet"])
    assert gone not in ids_of_run(run)
    assert set(ids_of_run(run)[:30]) == {target}


def _told(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        update.main(["--workdir=out", *arguments])
    assert stop.value.code == 2
    return capsys.readouterr().err


def test_rows_with_ids_are_known_by_them(named, tmp_path, capsys):
    before = (tmp_path / "out/assignments.csv").read_bytes()
    changed = named("changed.parquet", [5, 71], ["p4", "p71"])
    assert "got others for 1, such as 'p4': give changed rows new names" in _told(capsys, changed)
    assert "--ids must be a column of no.parquet" in _told(capsys, named("no.parquet", [71], None))
    assert "must be distinct; got 'q'" in _told(capsys, named("q.parquet", [71, 72], ["q"] * 2))
    assert (tmp_path / "out/assignments.csv").read_bytes() == before
    # A copy of a known row under another id is a row of its own.
    update.main(["--workdir=out", named("copy.parquet", [3, 4, 71], ["p3", "copy", "p71"])])
    assert capsys.readouterr().out.startswith("2 rows are new.")
    made = list(csv.DictReader((tmp_path / "out/assignments.csv").read_text().splitlines()))
    assert [row["row"] for row in made[-2:]] == ["copy", "p71"]
    assert made[-2]["cluster"] == made[4]["cluster"]


def test_ids_that_are_numbers_have_one_form(tmp_path, monkeypatch, capsys):
    """As pandas writes them after a join; and ids from 0 are no places of rows."""
    monkeypatch.chdir(tmp_path)
    x = rows(40, 40)

    def write(name, ids, values):
        columns = {"id": ids, "vector": values.tolist()}
        parquet.write_table(pyarrow.table(columns), name)

    write("first.parquet", list(range(70)), x[:70])
    write(
        "second.parquet", [float(i) for i in (*range(69, -1, -1), 99)], x[[*range(69, -1, -1), 75]]
    )
    cluster.main(["--features=first.parquet", "--out=out", "--reduce=pca", "--report=no"])
    assert "features: vector; ids of rows: id" in capsys.readouterr().out
    provenance = json.loads((tmp_path / "out/results.json").read_text())["provenance"]
    assert (provenance["ids"], provenance["feature_columns"]) == ("id", ["vector"])
    update.main(["--workdir=out", "--features=second.parquet", "--report=no"])
    assert capsys.readouterr().out.startswith("1 row is new.")
    made = list(csv.DictReader((tmp_path / "out/assignments.csv").read_text().splitlines()))
    assert [row["row"] for row in made] == [*map(str, range(70)), "99"]


def test_a_cluster_without_rows_retires_its_name():
    decided = decisions.Decisions({"0": 1}, {3: 1, 4: 2}, {1: "a", 2: "b"}, frozenset([7]))
    alive = updates._alive(decided, np.array([1, 1, 5]))
    assert alive == decisions.Decisions({"0": 1}, {3: 1}, {1: "a"}, frozenset([3]))
