"""The command on embeddings: files that it leaves, folders, one sentence for bad input."""

import base64
import csv
import gzip
import os
import pathlib
import re
import subprocess
import sys
import warnings

import jax
import numpy as np
import pytest

import cluster_jax
from cluster_jax.cli import cluster, exit_codes, predict, update
from cluster_jax.core import devices, io
from cluster_jax.core.checks import InputError
from cluster_jax.data import tables
from cluster_jax.evaluation import clusters
from cluster_jax.evaluation.options import ClusterOptions
from cluster_jax.report import summary
from cluster_jax.runs import page, rows
from tests.report.test_report import Page
from tests.rows import every_row

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMES = ("ant", "bee", "cow")


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Three heaps of points with names in a folder that is the current one."""
    rng = np.random.default_rng(0)
    labels = rng.choice([0, 0, 1, 2], 200)
    x = rng.normal(size=(3, 3))[labels] * 9 + rng.normal(size=(200, 3))
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "wide.npy", np.repeat(x, 2, axis=1))
    lines = [f"row {i}," + ",".join(map(repr, row)) for i, row in enumerate(x.tolist())]
    (tmp_path / "x.csv").write_text("\n".join(["id,a,b,c", *lines]) + "\n")
    (tmp_path / "y.txt").write_text("\n".join(NAMES[label] for label in labels) + "\n")
    monkeypatch.chdir(tmp_path)
    return x, labels


def _run(capsys, *flags):
    cluster.main(flags)
    captured = capsys.readouterr()
    return captured.out, captured.err


def _refused(capsys, *flags, code=2):
    before = sorted(pathlib.Path().rglob("*"))
    with pytest.raises(SystemExit) as stop:
        cluster.main(flags)
    text = capsys.readouterr().err
    assert stop.value.code == code
    assert text.startswith("error: ")
    assert len(text.splitlines()) == 1, text
    assert sorted(pathlib.Path().rglob("*")) == before, "nothing was written"
    return text


@pytest.mark.parametrize("method", ["tree", "gridshift"])
def test_files_of_a_run(files, capsys, method):
    x, labels = files
    out, err = _run(
        capsys, "--features=x.csv", "--labels=y.txt", "--workdir=out", f"--method={method}"
    )
    assert err == ""
    assert ("running GridShift on 200 points" in out) == (method == "gridshift")
    assert "out/report.html\nout/assignments.csv\nout/results.json" in out
    names = {"assignments.csv", "config.json", "features.npy", "report.html", "results.json"}
    assert {file.name for file in pathlib.Path("out").iterdir()} == {*names, "run-1.npz"}

    results = io.read_json("out/results.json")
    metrics = results["metrics"][method]
    assert metrics["verdict"] == "clear"
    assert metrics["acc"] > 0.98
    assert f"{metrics['acc']:.3f}" in out
    protocol = results["provenance"]
    assert (protocol["features"], protocol["labels"]) == ("x.csv", "y.txt")
    assert (protocol["rows"], protocol["columns"], protocol["seed"]) == (200, 3, 0)
    assert protocol["bandwidth"] == (None if method == "tree" else "found")
    assert protocol["number_of_clusters"] == {method: "found"}
    assert protocol["labels_used_for"] == ["scoring"]
    assert {"python", "cluster_jax", "numpy"} <= set(protocol["versions"])
    assert {"machine", "commit"} <= set(protocol)

    result = clusters.find(x, ClusterOptions.of(results["config"]), seed=0)
    rows = list(csv.DictReader(pathlib.Path("out/assignments.csv").read_text().splitlines()))
    assert [row["id"] for row in rows] == [f"row {i}" for i in range(200)]
    assert [int(row["cluster"]) for row in rows] == result.cluster_labels.tolist()
    assert [int(row["outlier"]) for row in rows] == result.outliers.astype(int).tolist()
    distances = [float(row["distance"]) for row in rows]
    np.testing.assert_allclose(distances, result.distances, rtol=1e-5)
    # The names of the labels, cluster by cluster, and of the rows.
    for c, name in metrics["matching"].items():
        assert name == NAMES[np.bincount(labels[result.cluster_labels == int(c)]).argmax()]
        assert f"matched with {name}" in out
    page = pathlib.Path("out/report.html").read_text()
    assert "clusters in 200 rows." in page
    record = re.search(r'id="report-data">(.*?)<', page)[1]
    assert b"row 137" in gzip.decompress(base64.b64decode(record))
    assert "x.csv" in page


def test_the_tree_is_the_default_and_takes_k(files, capsys):
    _run(capsys, "--features=x.npy", "--workdir=found")
    metrics = io.read_json("found/results.json")["metrics"]["tree"]
    assert metrics["n_clusters"] == 3
    assert metrics["rows_clustered"] == 200
    rows = list(csv.DictReader(pathlib.Path("found/assignments.csv").read_text().splitlines()))
    assert all(float(row["probability"]) > 0.5 for row in rows)
    assert all(float(row["second_probability"]) < 0.5 for row in rows)
    for row in rows:
        assert (row["second_cluster"] == "") == (float(row["second_probability"]) == 0)
        assert row["second_cluster"] != row["cluster"]
    page = pathlib.Path("found/report.html").read_text()
    assert "The clusters are clearly apart." in page

    out, _ = _run(capsys, "--features=x.npy", "--workdir=two", "--n-clusters=2")
    results = io.read_json("two/results.json")
    assert results["metrics"]["tree"]["n_clusters"] == 2
    assert results["metrics"]["tree"]["verdict"] is None
    assert results["provenance"]["number_of_clusters"] == {"tree": "given"}
    assert "Tree (k given)" in out
    assert "set in advance" in pathlib.Path("two/report.html").read_text()
    coarse = list(csv.DictReader(pathlib.Path("two/assignments.csv").read_text().splitlines()))
    assert list(coarse[0]) == list(rows[0])
    assert len({row["cluster"] for row in coarse}) == 2


def test_what_is_not_clear_is_said(files, capsys):
    flags = ("--reduce=pca", "--metric=euclidean")
    noise = np.random.default_rng(0).normal(size=(200, 8))
    np.save("blob.npy", noise)
    out, _ = _run(capsys, "--features=blob.npy", "--workdir=one", *flags)
    assert "The rows form one cluster: no split separates them clearly." in out
    assert "do not split into several clusters" in pathlib.Path("one/report.html").read_text()
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 6, 400)
    np.save("near.npy", 2.8 * np.eye(6, 12)[truth] + rng.normal(size=(400, 12)))
    out, _ = _run(capsys, "--features=near.npy", "--workdir=three", *flags)
    assert "No clear answer: the 6 clusters are a best guess" in out
    assert "are a best guess" in pathlib.Path("three/report.html").read_text()


def test_a_finished_run_is_shown_again(files, capsys):
    out, _ = _run(capsys, "--features=x.npy", "--method=gridshift", "--bandwidth=2.5")
    (workdir,) = pathlib.Path("clusters").iterdir()
    assert workdir.name.startswith("x-")
    stamp = (workdir / "results.json").stat().st_mtime_ns
    again, _ = _run(capsys, "--features=x.npy", "--method=gridshift", "--bandwidth=2.5")
    assert "is finished" in again
    assert "GridShift on" not in again
    assert again.split("\n\n")[1:] == out.split("\n\n")[1:], "the same figures"
    assert (workdir / "results.json").stat().st_mtime_ns == stamp
    # What is the default may be said; anything else is another result.
    _run(capsys, "--features=x.npy", "--method=gridshift", "--bandwidth=2.5", "--reduce=none")
    assert len(list(pathlib.Path("clusters").iterdir())) == 1
    _run(capsys, "--features=x.npy", "--method=gridshift", "--bandwidth=2.0")
    _run(capsys, "--features=x.npy", "--method=gridshift", "--bandwidth=2.5", "--labels=y.txt")
    assert len(list(pathlib.Path("clusters").iterdir())) == 3
    results = io.read_json(workdir / "results.json")
    assert results["provenance"]["bandwidth"] == "given"
    assert results["metrics"]["gridshift"]["acc"] is None


def test_an_interrupted_run_starts_over(files, capsys, monkeypatch):
    flags = ("--features=x.npy", "--method=gridshift", "--bandwidth=2.5", "--workdir=out")

    def stop(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(page, "render", stop)
        with pytest.raises(SystemExit) as end:
            cluster.main(flags)
    assert end.value.code == 130
    assert "Interrupted; the same command goes on from what is saved" in capsys.readouterr().err
    results = pathlib.Path("out/results.json")
    assert not results.exists()
    _run(capsys, *flags)
    whole = results.read_bytes()
    results.write_bytes(whole[:40])
    _run(capsys, *flags)
    assert len(results.read_bytes()) > len(whole) / 2, "damaged ones are made anew"


def test_a_folder_of_something_else_is_left_alone(files, capsys):
    pathlib.Path("mine").mkdir()
    pathlib.Path("mine/assignments.csv").write_text("my own")
    text = _refused(capsys, "--features=x.npy", "--workdir=mine")
    assert "mine must have config.json beside assignments.csv" in text
    assert pathlib.Path("mine/assignments.csv").read_text() == "my own"
    pathlib.Path("mine/config.json").write_text("{ no json")
    _refused(capsys, "--features=x.npy", "--workdir=mine")
    for workdir in ("x.npy", "x.npy/below"):
        assert "x.npy is a file" in _refused(capsys, "--features=x.npy", f"--workdir={workdir}")
    pathlib.Path("empty").mkdir()
    _run(capsys, "--features=x.npy", "--method=gridshift", "--bandwidth=2", "--workdir=empty")
    text = _refused(
        capsys, "--features=x.npy", "--method=gridshift", "--bandwidth=3", "--workdir=empty"
    )
    assert "empty contains a run with bandwidth = 2.0, not 3.0; choose another folder" in text


def test_what_another_version_or_a_kill_left(files, tmp_path, capsys, monkeypatch):
    flags = ("--features=x.npy", "--method=gridshift", "--bandwidth=2", "--workdir=out")
    pathlib.Path("out").mkdir()
    pathlib.Path("out/.config.json.partial").write_text("{")
    _run(capsys, *flags)
    assert "is finished" in _run(capsys, *flags)[0]
    monkeypatch.setattr(rows, "__version__", "99.0")
    text = _refused(capsys, *flags)
    assert f"out contains a run with version = {cluster_jax.__version__}, not 99.0" in text
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    whole = pathlib.Path("out/config.json").read_bytes()
    for damaged in ("[1]", "{"):
        pathlib.Path("out/config.json").write_text(damaged)
        _run(capsys, *flags)
        assert pathlib.Path("out/config.json").read_bytes() == whole, "the state has it as well"
    pathlib.Path("out/run-1.npz").unlink()
    pathlib.Path("out/config.json").write_text("[1]")
    assert "out/config.json is damaged" in _refused(capsys, *flags)


def test_kmeans_takes_every_core(files, monkeypatch):
    """A device for each core, unless their number is set; tests set it to 8."""
    code = (
        "import sys; from cluster_jax.cli import cluster\n"
        "cluster.main(sys.argv[1:]); import jax; print('devices', jax.device_count())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--features=x.npy", "--method=kmeans", "--n-clusters=3"],
        env={"PYTHONPATH": str(ROOT), "PATH": "", "JAX_PLATFORMS": "cpu"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.endswith(f"devices {devices.cores()}\n"), done.stderr
    monkeypatch.setattr(jax.config, "update", lambda *_: pytest.fail("the number is set"))
    devices.cpu_devices(3)


@pytest.mark.parametrize("flags", [(), ("--method=kmeans", "--n-clusters=3", "--reduce=pca")])
def test_of_several_processes_only_kmeans_has_a_use(files, capsys, monkeypatch, flags):
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(exit_codes.os, "_exit", lambda code: None)
    said = _refused(capsys, "--features=wide.npy", *flags)
    assert "method must be kmeans, and reduce none, in several processes; got" in said


def test_kmeans_and_one_column(files, capsys):
    np.save("line.npy", np.repeat([0.0, 5.0, 9.0], 20)[:, None] + np.arange(60)[:, None] % 7 / 50)
    out, _ = _run(
        capsys, "--features=line.npy", "--method=kmeans", "--n-clusters=3", "--workdir=out"
    )
    assert "k-means (k given)" in out
    rows = list(csv.DictReader(pathlib.Path("out/assignments.csv").read_text().splitlines()))
    assert [row["row"] for row in rows] == [str(i) for i in range(60)]
    clusters = [row["cluster"] for row in rows]
    assert [len(set(clusters[i : i + 20])) for i in (0, 20, 40)] == [1, 1, 1]
    assert len(set(clusters)) == 3
    assert {row["outlier"] for row in rows} == {"0"}
    assert (
        "The number of clusters was set in advance." in pathlib.Path("out/report.html").read_text()
    )
    protocol = io.read_json("out/results.json")["provenance"]
    assert protocol["number_of_clusters"] == {"kmeans": "given"}
    assert protocol["n_init"] == 10


@every_row(
    ("metrics", "sentence"),
    [
        ({"verdict": "clear"}, None),
        ({"verdict": None}, None),
        ({"verdict": "one_cluster"}, "The rows form one cluster"),
        ({"verdict": "unclear"}, "No clear answer"),
    ],
)
def test_summary_says_what_is_not_clear(metrics, sentence):
    scores = dict.fromkeys(("acc", "nmi", "ari", "ami"), 0.5) | {"silhouette": None}
    sizes = {str(c): 1 + c % 7 for c in range(30)}
    metrics = {"n_clusters": 30, **scores, "cluster_sizes": sizes, **metrics}
    results = {
        "provenance": {"number_of_clusters": {"gridshift": "found"}},
        "metrics": {"gridshift": metrics},
    }
    text = summary.run_table(results)
    assert "and 10 more of at most 2 rows" in text
    assert (
        text.index("cluster      6") < text.index("cluster     13") < text.index("cluster      5")
    )
    remarks = [s for s in ("form one cluster:", "No clear", "outliers") if s in text]
    assert len(remarks) == (sentence is not None)
    assert sentence is None or sentence in text
    assert "cluster      6           7 rows    6.1%" in text
    metrics |= {"n_clusters": 2, "cluster_sizes": {"3": 1, "4": 1}}
    assert "cluster      3           1 row    50.0%" in summary.run_table(results)


def test_summary_counts_small_clusters_apart():
    scores = dict.fromkeys(("acc", "nmi", "ari", "ami", "silhouette"))
    sizes = {"0": 2, "1": 50, "2": 30, "3": 1, "4": 3}
    metrics = {"n_clusters": 5, "n_large": 2, "outliers": 6, **scores, "cluster_sizes": sizes}
    results = {
        "provenance": {"number_of_clusters": {"gridshift": "found"}},
        "metrics": {"gridshift": metrics},
    }
    lines = summary.run_table(results).splitlines()
    assert " ".join(lines[1].split()) == "GridShift (k found) 2 and 3 small -"
    assert len(lines[0]) == len(lines[1])
    assert lines[3] == "Found 2 clusters and 3 small ones in 86 rows."
    assert [line.split()[:3] for line in lines if line.startswith("cluster ")] == [
        ["cluster", "1", "50"],
        ["cluster", "2", "30"],
    ]
    assert lines[-1] == "and 3 small, of at most 3 rows, too small to count: 6 rows are outliers"


@every_row(
    ("flags", "message"),
    [
        ((), "--features"),
        (("--features=none.npy",), "none.npy must be an existing file; got no such file"),
        (("--features=y.txt",), "must be a file of type .npy, .npz, .csv"),
        (
            ("--features=x.npy", "--labels=none.txt"),
            "none.txt must be an existing file; got no such file",
        ),
        (("--features=x.npy", "--labels=short.txt"), "got 200 and 2"),
        (("--features=nan.npy",), "features must be finite; got NaN or infinity in row 1"),
        (("--features=flat.npy",), "rows by columns; got float64 of shape (4,)"),
        (("--features=empty.npy",), "a minimum of 1 is required"),
        (("--features=words.npy",), "must hold real numbers"),
        (("--features=pickled.npy",), "never loaded"),
        (("--features=x.npy", "--method=magic"), "'kmeans', or a module of your own, with"),
        (
            ("--features=x.npy", "--method=kmeans"),
            "n_clusters must be given for k-means; got none: add",
        ),
        (
            ("--features=x.npy", "--method=kmeans", "--n-clusters=201"),
            "n_clusters must be between 1 and 200, the number of rows; got 201",
        ),
        (
            ("--features=x.npy", "--n-clusters=201"),
            "n_clusters must be between 1 and 200, the number of rows",
        ),
        (
            ("--features=x.npy", "--n-clusters=many"),
            "argument --n-clusters: invalid int value: 'many' (see",
        ),
        (
            ("--features=x.npy", "--method=gridshift", "--n-clusters=3"),
            "n_clusters must be left out for GridShift",
        ),
        (
            ("--features=x.npy", "--method=gridshift", "--bandwidth=wide"),
            "bandwidth must be 'auto' or a number greater than 0; got 'wide'",
        ),
        (
            ("--features=x.npy", "--method=kmeans", "--n-clusters=2", "--n-init=2147483648"),
            "n_init must be at most 2,147,483,647; got 2147483648",
        ),
        (("--features=x.npy", "--method=gridshift", "--bandwidth=-1"), "greater than 0; got '-1'"),
        (
            ("--features=x.npy", "--bandwith=1"),
            "there is no flag --bandwith; did you mean --bandwidth?",
        ),
        (("--feature=x.npy",), "there is no flag --feature; did you mean --features?"),
        (("--features=",), "--features must be the path of a file; got an empty one"),
        (("--features=x.npy", "--labels="), "--labels must be the path of a file; got an empty"),
        (
            ("--features=x.npy", "--array=x"),
            "--array must name an array of a file of type .npz, .csv",
        ),
        (("--features=x.npy", "--n-init=3"), "--n-init must be left out for --method=tree; got 3"),
        (
            ("--features=wide.npy", "--reduce=pca", "--n-neighbors=9"),
            "--n-neighbors must be left out for --reduce=pca; got 9",
        ),
        (
            ("--features=junk.npy",),
            "junk.npy must be a complete file of plain arrays of NumPy; got pickled objects",
        ),
        (("--features=x.npy", "more"), "more"),
        (("--features=junk.npy", "--workdir=x.npy/run"), "x.npy is a file; choose another folder"),
        (("--features=wide.npy", "--n-neighbors=1"), "neighbors must be at least 2; got 1"),
    ],
)
def test_bad_input(files, capsys, flags, message):
    pathlib.Path("short.txt").write_text("1\n2\n")
    np.save("nan.npy", [[1.0, 2.0], [np.nan, 1.0]])
    np.save("flat.npy", np.ones(4))
    np.save("empty.npy", np.ones((0, 3)))
    np.save("words.npy", np.array([["a"]]))
    pathlib.Path("junk.npy").write_text("no array")
    np.save("pickled.npy", np.array([{}], object), allow_pickle=True)
    assert message in _refused(capsys, *flags)


def test_late_trouble_is_one_sentence_too(files, capsys, monkeypatch):
    def full(*arguments, **options):
        raise OSError("no space left on device")

    monkeypatch.setattr(clusters, "find", full)
    assert "no space left" in _refused(capsys, "--features=x.npy", code=1)

    def warned(*arguments, **options):
        warnings.simplefilter("always")
        warnings.warn("it did not converge", UserWarning, stacklevel=1)
        raise InputError("coordinates are too large")

    monkeypatch.setattr(clusters, "find", warned)
    with pytest.raises(SystemExit):
        cluster.main(["--features=x.npy"])
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["warning: it did not converge", "error: coordinates are too large"]


def test_names_and_labels_belong_to_what_is_finished(files):
    x, labels = files
    table = tables.Table(x, None)
    known = tables.Labels(labels.astype(np.int32), NAMES)
    prints = [
        rows.fingerprint(table, None),
        rows.fingerprint(table, known),
        rows.fingerprint(table, known._replace(names=("a", "b", "c"))),
        rows.fingerprint(table._replace(names=("r",) * 200), known),
        rows.fingerprint(tables.Table(x.reshape(100, 6), None), known),
        rows.fingerprint(tables.Table(x[::-1], None), known),
    ]
    assert len({str(p) for p in prints}) == len(prints)


@pytest.fixture
def shards(files, monkeypatch):
    """The three heaps in a folder of shards, which count as too large for memory."""
    x, labels = files
    pathlib.Path("parts").mkdir()
    for i, part in enumerate(np.split(x, [70, 150])):
        np.save(f"parts/{i}.npy", part)
    monkeypatch.setattr(tables, "LARGE", 300)
    monkeypatch.setattr(rows, "SAMPLE", 120)
    return x, labels


@pytest.mark.parametrize("method", ["tree", "kmeans"])
def test_features_too_large_for_memory_are_read_in_blocks(shards, capsys, monkeypatch, method):
    _, labels = shards
    monkeypatch.setattr("cluster_jax.core.arrays._BLOCK", 99)
    k = ("--n-clusters=3",) if method == "kmeans" else ()
    out, _ = _run(
        capsys, "--features=parts", "--labels=y.txt", f"--method={method}", *k, "--workdir=w"
    )
    results = io.read_json("w/results.json")
    provenance, metrics = results["provenance"], results["metrics"][method]
    assert provenance["rows"] == 200
    assert provenance["rows_used"] == {"all": 200, "files": 3, "in_report": 120}
    said = "running k-means on 200 rows" if method == "kmeans" else "smoothing 200 x"
    assert said in out
    assert "in 200 rows" in out
    with open("w/assignments.csv") as file:
        table = list(csv.DictReader(file))
    assert [row["row"] for row in table] == [str(i) for i in range(200)]
    assert sum(row["distance"] != "" for row in table) == 120
    found = np.array([int(row["cluster"]) for row in table])
    assert len({(a, b) for a, b in zip(found, labels, strict=True)}) == 3
    assert metrics["acc"] == metrics["nmi"] == 1
    assert metrics["cluster_sizes"] == {str(c): int(n) for c, n in enumerate(np.bincount(found))}
    assert pathlib.Path("w/report.html").stat().st_size > 10_000
    assert "is finished" in _run(
        capsys, "--features=parts", "--labels=y.txt", f"--method={method}", *k, "--workdir=w"
    )[0]  # fmt: skip


def _describe(count):
    """A file of ids of rows."""
    pathlib.Path("ids.txt").write_text("\n".join(f"r{i}" for i in range(count)))
    return "--ids=ids.txt"


def test_ids_of_features_in_blocks(shards, capsys):
    flags = ("--features=parts", _describe(200))
    _run(capsys, *flags, "--workdir=w", "--reduce=pca")
    with open("w/assignments.csv") as file:
        table = list(csv.DictReader(file))
    assert [row["row"] for row in table] == [f"r{i}" for i in range(200)]
    page = Page(pathlib.Path("w/report.html").read_text())
    shown = [int(name.removeprefix("r")) for name in page.record["map"]["names"]]
    assert len(shown) == 120
    assert "is finished" in _run(capsys, *flags, "--workdir=w", "--reduce=pca")[0]
    predict.main(["--workdir=w", *flags, "--out=p.csv"])
    with open("p.csv") as file:
        placed = list(csv.DictReader(file))
    for title in ("row", "cluster"):
        assert [row[title] for row in placed] == [row[title] for row in table]
    capsys.readouterr()
    with pytest.raises(SystemExit):
        update.main(["--workdir=w", "--refit"])
    assert "whose rows were read in blocks: use predict, or" in capsys.readouterr().err
    pathlib.Path("ids.txt").write_text("r\n" * 200)
    assert "got 'r' in the rows 0 and 1" in _refused(capsys, *flags, "--workdir=v")
    pathlib.Path("ids.txt").write_text("r\n" * 3)
    assert "a title); got 200 and 3" in _refused(capsys, *flags, "--workdir=v")


def test_names_of_npy_files_in_memory(files):
    x, _ = files
    _describe(200)
    np.save("ids.npy", 7 + np.arange(200))
    pathlib.Path("parts").mkdir()
    np.save("parts/0.npy", x)
    for source in ("x.npy", "parts"):
        assert tables.read_rows(source, None, "ids.txt").names[199] == "r199"
        assert tables.read_rows(source, None, "ids.npy").names[199] == "206"


def test_small_shards_give_what_their_table_gives(files, capsys):
    x, _ = files
    pathlib.Path("parts").mkdir()
    for i, part in enumerate(np.split(x, [70, 150])):
        np.save(f"parts/{i}.npy", part)
    for source, workdir in (("parts", "a"), ("x.npy", "b")):
        _run(capsys, f"--features={source}", f"--workdir={workdir}")
    assert pathlib.Path("a/assignments.csv").read_text() == (
        pathlib.Path("b/assignments.csv").read_text()
    )


def test_bad_input_in_blocks(shards, capsys):
    x, _ = shards
    command = ("--features=parts", "--workdir=w")
    assert "n_clusters must be between 1 and 200, the number of rows; got 201" in _refused(
        capsys, *command, "--n-clusters=201"
    )
    must = "method must be 'tree', or 'kmeans' with reduce='none', for rows read in blocks; got "
    reduced = ("--method=kmeans", "--reduce=pca", "--n-components=2", "--n-clusters=3")
    assert f"{must}'kmeans' with reduce='pca'" in _refused(capsys, *command, *reduced)
    assert f"{must}'gridshift'" in _refused(capsys, *command, "--method=gridshift")
    pathlib.Path("three.txt").write_text("1\n2\n3\n")
    assert "got 200 and 3" in _refused(capsys, *command, "--labels=three.txt")
    np.save("parts/1.npy", np.where(np.arange(240).reshape(80, 3) == 100, np.nan, x[70:150]))
    assert "1.npy must hold finite numbers; got NaN or infinity in row" in _refused(
        capsys, *command
    )
    np.save("parts/1.npy", x[70:150, :2])
    assert "1.npy must have 3 columns like 0.npy; got 2" in _refused(capsys, *command)


@pytest.mark.filterwarnings("default:the map is drawn by PCA")
def test_a_map_that_fails_loses_no_clusters(tmp_path, monkeypatch, capsys):
    rows = 9 * np.eye(12)[np.arange(120) % 6] + np.random.default_rng(0).normal(size=(120, 12))
    np.save(tmp_path / "x.npy", rows)

    def failing(*args, **options):
        raise RuntimeError("cannot cache function 'rdist'")

    monkeypatch.setattr(sys.modules["cluster_jax.clustering.reduce"], "_umap", failing)
    cluster.main([f"--features={tmp_path}/x.npy", f"--workdir={tmp_path}/run"])
    said = capsys.readouterr()
    assert "the map is drawn by PCA, because UMAP failed: cannot cache function" in said.err
    assert "Found 6 clusters in 120 rows" in said.out
    assert (tmp_path / "run" / "report.html").exists()


def test_numba_gets_a_folder_for_its_cache(tmp_path):
    (tmp_path / "umap.py").write_text(
        "import numba\n"
        "if not numba.config.CACHE_DIR:\n"
        "    raise RuntimeError(\"cannot cache function 'rdist': no locator available\")\n"
        "UMAP = numba.config.CACHE_DIR\n"
    )
    script = "from cluster_jax.clustering.reduce import _imported_umap; print(_imported_umap())"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.getcwd()])}
    env.pop("NUMBA_CACHE_DIR", None)
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert pathlib.Path(done.stdout.strip()).is_dir()


def test_files_of_another_run_are_named(tmp_path, capsys, monkeypatch):
    rng = np.random.default_rng(0)
    monkeypatch.chdir(tmp_path)
    for name in "xy":
        np.save(tmp_path / f"{name}.npy", rng.normal(size=(40, 6)))
    flags = [f"--workdir={tmp_path}/run", "--reduce=pca"]
    cluster.main([f"--features={tmp_path}/x.npy", *flags])
    capsys.readouterr()
    with pytest.raises(SystemExit):
        cluster.main(["--features=y.npy", *flags])
    expected = "must be of the rows of y.npy; got clusters of others: `cluster-jax update` takes"
    assert expected in capsys.readouterr().err
