"""`cluster-jax update` of embeddings: rows that come, leave and change, ids, bad input."""

import dataclasses
import json

import numpy as np
import pyarrow
import pytest
from etils import epath
from pyarrow import parquet

from cluster_jax.cli import cluster, predict, report, update
from cluster_jax.clustering.stable_ids import Event
from cluster_jax.core.checks import InputError
from cluster_jax.runs import changes, page
from cluster_jax.runs import run as records
from cluster_jax.runs import update as updates
from cluster_jax.runs import workdir as workdirs
from tests import toy
from tests.cli.test_output import check_keys
from tests.runs.heaps import digests, rows

FIRST = rows(30, 30, 30, 30)


def updated(run, x, *flags):
    np.save(run.parent / "now.npy", x)
    update.main([f"--workdir={run}", f"--features={run.parent}/now.npy", *flags])


def ids(run):
    return [int(row["cluster"]) for row in toy.table(run)]


def test_rows_that_are_added(run, capsys):
    before = ids(run)
    updated(run, rows(4, 4, 4, 4, 9, seed=1), "--add")
    said = capsys.readouterr().out
    assert "25 rows are new." in said
    assert "cluster 4 is new (9 rows)" in said
    assert ids(run)[:120] == before
    assert set(ids(run)[136:]) == {4}
    assert [row["since"] for row in toy.table(run)] == ["0"] * 120 + ["1"] * 25
    assert [row["row"] for row in toy.table(run)] == list(map(str, range(145)))
    assert toy.table(run, "changes.csv")[-1] == dict(name="144", change="new", before="", after="4")
    page = (run / "report.html").read_text()
    assert "Cluster 4 is new (9 rows)" in page
    assert "Update 1: 25 rows are new." in page
    report.main([str(run)])
    assert (run / "report.html").read_text() == page
    np.save(run.parent / "near.npy", rows(0, 0, 0, 0, 2, seed=9))
    predict.main([f"--workdir={run}", f"--features={run.parent}/near.npy"])
    assert {row["cluster"] for row in toy.table(run, "predictions.csv")} == {"4"}


def test_the_file_is_the_truth(run, capsys, refused):
    """Rows that are not in it leave, in whatever order the others are."""
    own = ids(run)
    updated(run, np.concatenate([FIRST[:9:-1], rows(3, seed=1)]))
    assert "3 rows are new; 10 rows are gone." in capsys.readouterr().out
    assert ids(run) == own[:9:-1] + [own[0]] * 3, "in the order of the file"
    kinds = [row["change"] for row in toy.table(run, "changes.csv")]
    assert [kinds.count(kind) for kind in ("new", "gone")] == [3, 10]
    before = digests(run)
    np.save(run.parent / "now.npy", FIRST[:20])
    said = refused(update.main, f"--workdir={run}", f"--features={run.parent}/now.npy")
    assert f"103 of the 113 rows of {run} would leave: give the file" in said
    assert digests(run) == before
    updated(run, FIRST[:20], "--yes")
    assert len(ids(run)) == 20
    update.main([f"--workdir={run}", "--undo"])
    assert "Its rows are in the order of the file that was read before." in capsys.readouterr().out


def test_the_same_rows_again_change_nothing_and_it_says_so(run, capsys):
    updated(run, rows(4, 4, 4, 4, seed=1), "--add")
    before = digests(run)
    capsys.readouterr()
    updated(run, rows(4, 4, 4, 4, seed=1), "--add")
    assert capsys.readouterr().out == (
        f"Nothing has happened: {run} has 136 rows, and none is new or gone.\n"
    )
    assert digests(run) == before
    update.main([f"--workdir={run}", "--undo"])
    assert "the order of" not in capsys.readouterr().out


@pytest.mark.parametrize("features", [FIRST, FIRST[::-1]], ids=["same order", "another order"])
def test_an_update_without_a_change_writes_what_is_missing(run, features):
    """Also where it stores the state anew, because the rows have another order."""
    for name in ("report.html", "assignments.csv"):
        (run / name).unlink()
    updated(run, features)
    assert records.read(run).number == 1
    assert len(toy.table(run)) == len(FIRST)
    assert "<html" in (run / "report.html").read_text()
    updated(run, features[::-1], "--report=no")
    assert (run / "report.html").exists(), "nothing has changed, so that it stays"


def test_a_refit_keeps_the_ids(run, capsys):
    updated(run, rows(4, 4, 4, 4, 9, seed=1), "--add")
    before = ids(run)
    update.main([f"--workdir={run}", "--refit"])
    assert ids(run) == before
    assert "All rows were clustered anew." in capsys.readouterr().out


def test_of_many_events_the_command_tells_the_first_and_leads_to_the_table(run):
    before = records.read(run)
    events = tuple(Event("grew", cluster, 20 - cluster) for cluster in range(14))
    said = changes.words(before, dataclasses.replace(before, events=events), refit=False)
    lines = [line for line in said.splitlines() if "new rows" in line]
    assert lines == [f"  cluster {i} has {20 - i} new rows" for i in range(12)]
    assert said.endswith("\n  and 2 more; changes.csv has every row")


def test_two_updates_at_once(run):
    with (
        workdirs.locked(epath.Path(run)),
        pytest.raises(InputError, match="is used by another run"),
    ):
        updates.update_rows(run)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--workdir=nowhere"], "which does not exist"),
        (["--workdir={run}", "photos"], "--features must be given in place of PHOTOS"),
        (
            ["--workdir={run}", "--undo", "--refit"],
            "--undo must be given alone; got --refit beside it",
        ),
        (["--workdir={run}", "--undo"], "must have an update or corrections to take back"),
        (["--workdir={run}", "--n-clusters=7000"], "error: --n-clusters must be "),
        (["--workdir={run}", "--array=x"], "--array must come with --features"),
        (["--workdir={run}", "--features={wide}", "--array=x"], "--array must name an array of"),
        (["--workdir={run}"], "--features must be the file with all rows"),
        (["--workdir={run}", "--add"], "--add must come with --features; got no --features"),
        (["--workdir={run}", "--features={wide}"], "must have 8 columns like the embeddings"),
        (["--workdir=gs://bucket/run", "--undo"], "must be a file or folder of this"),
    ],
)
def test_bad_input_is_one_sentence(run, flags, said, refused):
    np.save(run.parent / "wide.npy", np.zeros((3, 9), "f4"))
    files = {"wide": run.parent / "wide.npy"}
    before = digests(run)
    assert said in refused(update.main, *(flag.format(run=run, **files) for flag in flags))
    assert digests(run) == before


def test_a_run_of_another_method(run, tmp_path):
    np.save(tmp_path / "rows.npy", rows(30, 30))
    flags = [f"--features={tmp_path}/rows.npy", f"--workdir={tmp_path}/k", "--method=kmeans"]
    cluster.main([*flags, "--n-clusters=2", "--reduce=pca"])
    with pytest.raises(InputError, match="method must be 'tree' for an update; got 'kmeans'"):
        updates.update_rows(tmp_path / "k")


def test_an_update_without_a_page(run, capsys):
    before = digests(run)
    updated(run, rows(4, 4, 4, 4, seed=1), "--add", "--report=no", "--json")
    told = json.loads(capsys.readouterr().out)
    assert not (run / "report.html").exists(), "that of earlier rows would mislead"
    updated(run, rows(4, 4, 4, 4, seed=1), "--add", "--json")
    nothing = json.loads(capsys.readouterr().out)
    check_keys("update", nothing)
    assert list(told) == list(nothing)
    assert nothing == {**told, "new": 0, "events": []}
    report.main([str(run), "--quiet"])
    assert "Update 1: 16 rows are new." in (run / "report.html").read_text()
    update.main([f"--workdir={run}", "--undo", "--json"])
    check_keys("update --undo", json.loads(capsys.readouterr().out))
    after = digests(run)
    # The page names its folder, which was copied.
    left = {f"store-{len(FIRST)}.npz", "report.html"}
    assert after == before | {name: after[name] for name in left}


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
    cluster.main([first, "--workdir=out", "--reduce=pca", "--quiet"])
    return write


def test_rows_with_ids_are_known_by_them(named, tmp_path, capsys, refused):
    """A row with another vector is placed anew; a copy under another id is a row of its own."""
    before = digests(tmp_path / "out")
    np.save("n.npy", rows(40))
    for file, message in (
        ("--features=n.npy", "say by --ids which column or array has the ids, or for .npy which"),
        (named("no.parquet", [71], None), "no.parquet, which has"),
        (named("q.parquet", [71, 72], ["q"] * 2), "must be distinct; got 'q'"),
    ):
        assert message in refused(update.main, "--workdir=out", file)
    assert digests(tmp_path / "out") == before
    own = {row["id"]: row["cluster"] for row in toy.table("out")}
    new = named(
        "new.parquet",
        [*range(1, 4), 75, *range(5, 70), 3],
        [f"p{i}" for i in range(1, 70)] + ["copy"],
    )
    update.main(["--workdir=out", new])
    assert "\n1 row is new; 1 row is gone; 1 row is changed.\n" in capsys.readouterr().out
    made = {row["id"]: row["cluster"] for row in toy.table("out")}
    assert made == {key: c for key, c in own.items() if key != "p0"} | {
        "p4": own["p69"],
        "copy": own["p3"],
    }
    assert toy.table(tmp_path / "out", "changes.csv") == [
        {"name": "p4", "change": "changed", "before": own["p4"], "after": own["p69"]},
        {"name": "copy", "change": "new", "before": "", "after": own["p3"]},
        {"name": "p0", "change": "gone", "before": own["p0"], "after": ""},
    ]


def test_the_page_shows_what_a_cluster_has_lost(named, tmp_path):
    """What is gone, by its id, and rows that are in another cluster now; also after a decision."""
    new = named("new.parquet", [*range(1, 4), 75, *range(5, 70)], [f"p{i}" for i in range(1, 70)])
    update.main(["--workdir=out", new, "--report=no"])
    before, after = records.read(tmp_path / "out", 1), records.read(tmp_path / "out")
    shown = page.report_data(after).changes
    assert [(one.name, one.cluster) for one in shown.gone] == [("p0", before.labels[0])]
    assert np.flatnonzero(shown.left >= 0).tolist() == [3], "p4, which has another vector"
    assert shown.left[3] == before.labels[4] != after.labels[3]
    report.main(["out", "--name=0=cats"])
    later = page.report_data(records.read(tmp_path / "out")).changes
    assert later.left.tolist() == shown.left.tolist()
    assert later.gone == shown.gone


def test_a_decision_is_about_the_row_of_that_id(named, tmp_path):
    """Two rows of one vector are moved apart and leave; then one returns, with another copy."""
    ids = [f"p{i}" for i in range(70)]
    both = named("both.parquet", [*range(70), 3, 3], [*ids, "a", "b"])
    update.main(["--workdir=out", both, "--report=no"])
    own = toy.table("out")[3]["cluster"]
    other = next(int(row["cluster"]) for row in toy.table("out") if row["cluster"] != own)
    said = {"state": records.read(tmp_path / "out").state, "new": {"n": None}}
    said["labels"] = {"70": other, "71": "n"}
    (tmp_path / "said.json").write_text(json.dumps(said))
    report.main(["out", "--corrections=said.json", "--quiet"])
    made = toy.table("out")[71]["cluster"]
    update.main(["--workdir=out", named("left.parquet", range(70), ids), "--report=no"])
    back = named("back.parquet", [*range(70), 3, 3], [*ids, "b", "c"])
    update.main(["--workdir=out", back, "--report=no"])
    found = {row["id"]: (row["cluster"], row["decided"]) for row in toy.table("out")}
    assert (found["b"], found["c"]) == ((made, "1"), (own, "0"))


@pytest.mark.parametrize(
    ("file", "title", "expected"),
    [("x.parquet", "sku", "sku"), ("x.parquet", "name", "row"), ("x.npz", "sku", "sku")],
)
def test_the_key_keeps_its_title_where_no_column_of_ours_has_it(tmp_path, file, title, expected):
    """Afterwards, columns and arrays are those of the run."""
    x, file, out = rows(20, 20), tmp_path / file, tmp_path / "out"
    keys = [f" a\\{i} & 'é'" for i in range(39)] + ["a\rb "]
    if file.suffix == ".npz":
        np.savez(file, vector=x, year=np.arange(40), **{title: keys})
    else:
        parquet.write_table(pyarrow.table({title: keys, "vector": x.tolist()}), file)
    flags = [f"--features={file}", "--reduce=pca", "--report=no", "--quiet"]
    cluster.main([*flags, "--array=vector", f"--ids={title}", f"--workdir={out}"])
    predict.main([f"--workdir={out}", f"--features={file}", "--quiet"])
    update.main([f"--workdir={out}", f"--features={file}", "--quiet", "--report=no"])
    for name in ("assignments.csv", "predictions.csv"):
        assert list(toy.table(out, name)[0])[:2] == [expected, "cluster"]
        assert [row[expected] for row in toy.table(out, name)] == keys


def test_ids_that_are_numbers_have_one_form(tmp_path, monkeypatch, capsys, refused):
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
    cluster.main(["--features=first.parquet", "--workdir=out", "--reduce=pca", "--report=no"])
    assert "features: vector; ids of rows: id" in capsys.readouterr().out
    provenance = json.loads((tmp_path / "out/results.json").read_text())["provenance"]
    assert (provenance["ids"], provenance["feature_columns"]) == ("id", ["vector"])
    update.main(["--workdir=out", "--features=second.parquet", "--report=no"])
    assert capsys.readouterr().out.startswith("1 row is new.")
    made = toy.table(tmp_path, "out/assignments.csv")
    assert [row["id"] for row in made] == [*map(str, range(69, -1, -1)), "99"]
    # Vectors of another network: all rows are others, and that is asked about.
    write("third.parquet", list(range(70)), x[:70] + 1)
    said = refused(update.main, "--workdir=out", "--features=third.parquet")
    assert (
        "1 of the 71 rows of out would leave and 70 would have another vector under the same id: "
        in said
    )
    assert "by --yes (in Python confirmed=True); what was decided stays with the rows that" in said


def test_rows_of_zeros_are_in_no_cluster(tmp_path, monkeypatch, capsys):
    """Of texts or files that failed: at the first fit, at an update, and where rows are placed."""
    monkeypatch.chdir(tmp_path)
    x = np.concatenate([np.zeros((2, 8), "f4"), rows(30, 30)])
    np.save("x.npy", x)
    np.save("y.npy", np.repeat([0, 1, 0], [2, 30, 30]))
    np.save("new.npy", np.concatenate([x[10:13] + 0.1, np.zeros((3, 8), "f4")]))
    cluster.main(["--features=x.npy", "--labels=y.npy", "--reduce=pca", "--workdir=out"])
    said = capsys.readouterr().out
    assert "2 rows are in no cluster: zeros alone, which have no direction" in said
    metrics = json.loads((tmp_path / "out/results.json").read_text())["metrics"]["tree"]
    assert (metrics["n_clusters"], metrics["n_large"], len(metrics["cluster_sizes"])) == (2, 2, 2)
    assert metrics["acc"] == pytest.approx(60 / 62)
    before = toy.table("out")
    assert {(row["cluster"], row["probability"]) for row in before[:2]} == {("-1", "0")}
    predict.main(["--workdir=out", "--features=new.npy", "--out=new.csv"])
    placed = toy.table(tmp_path, "new.csv")
    assert [row["cluster"] for row in placed[2:]] == [before[12]["cluster"], *["-1"] * 3]
    assert [row["is_novel"] for row in placed[2:]] == ["0", *["1"] * 3]
    update.main(["--workdir=out", "--features=new.npy", "--add"])
    after = [row["cluster"] for row in toy.table("out")]
    assert after[:62] == [row["cluster"] for row in before]
    assert after[62:] == [*[row["cluster"] for row in before[10:13]], "-1"], "two are known"
    report.main(["out", "--quiet"])
    assert toy.table("out")[-1]["probability"] == "0"
    update.main(["--workdir=out", "--refit", "--report=no"])
    assert [row["cluster"] for row in toy.table("out")] == after


def test_all_rows_of_a_cluster_are_moved_away(run):
    """The run is read again, places rows, and grows; the cluster that has no row is in none."""
    gone, target = ids(run)[0], ids(run)[60]
    moved = {str(i): target for i in np.flatnonzero(np.array(ids(run)) == gone)}
    file = run.parent / "page.json"
    file.write_text(json.dumps({"state": records.read(run).state, "labels": moved}))
    report.main([str(run), f"--corrections={file}", "--quiet"])
    report.main([str(run), "--quiet"])
    np.save(run.parent / "like.npy", rows(30)[:3])
    predict.main([f"--workdir={run}", f"--features={run.parent}/like.npy", f"--out={file}"])
    assert {int(row["cluster"]) for row in toy.table(run.parent, "page.json")} == {target}
    updated(run, rows(4, 4, 4, 4, seed=1), "--add")
    assert gone not in ids(run)
    assert set(ids(run)[:30]) == {target}


def test_rows_that_return_are_not_among_those_that_change(tmp_path, monkeypatch, refused):
    """The question whether so many may leave is about rows that are there."""
    monkeypatch.chdir(tmp_path)
    x = rows(20, 20)

    def write(which, values):
        columns = {"id": [f"i{i}" for i in which], "vector": values.tolist()}
        parquet.write_table(pyarrow.table(columns), "now.parquet")

    write(range(40), x)
    flags = ["--workdir=out", "--features=now.parquet", "--report=no"]
    cluster.main([*flags, "--reduce=pca"])
    report.main(["out", "--name=0=cats", "--name=1=dogs"])
    write(range(4), x[:4])
    update.main([*flags, "--yes"])
    write(range(40), x + 0.01)
    said = refused(update.main, *flags)
    assert "4 of the 4 rows of out would have another vector under the same id: " in said


@pytest.mark.parametrize("name", ["run/assignments.csv", "run/run-1.npz", "rows.npy"])
def test_a_table_of_predictions_replaces_no_file_of_the_run(run, monkeypatch, refused, name):
    """Nor the rows that are read."""
    monkeypatch.chdir(run.parent)
    np.save("rows.npy", FIRST)
    before = digests(run.parent)
    said = refused(predict.main, "--workdir=run", "--features=rows.npy", f"--out={name}")
    assert "--out must be a file of its own, and in the folder of the run a .csv" in said
    assert f"; got {name}" in said
    assert digests(run.parent) == before
