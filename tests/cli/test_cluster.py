"""The command on embeddings: files that it leaves, folders, one sentence for bad input."""

import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from cluster_jax.cli import cluster, exit_codes, predict, update
from cluster_jax.core import devices, io
from cluster_jax.data import tables
from cluster_jax.evaluation import clusters
from cluster_jax.evaluation.options import ClusterOptions
from cluster_jax.runs import page, place, rows
from cluster_jax.runs import run as records
from tests import toy
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


def _flags(line):
    """Of a command line, in which `x` stands for the features of most."""
    return ["--features=x.npy" if word == "x" else word for word in line.split()]


@pytest.fixture
def run(capsys):
    """What a command line prints; nothing on the standard error output."""

    def printed(line):
        capsys.readouterr()
        cluster.main(_flags(line))
        said = capsys.readouterr()
        assert said.err == ""
        return said.out

    return printed


@pytest.fixture
def not_clustered(refused):
    """The one sentence of a command that must write nothing."""

    def sentence(line, code=2):
        before = sorted(pathlib.Path().rglob("*"))
        said = refused(cluster.main, *_flags(line), code=code)
        assert sorted(pathlib.Path().rglob("*")) == before, "nothing was written"
        return said

    return sentence


@pytest.mark.parametrize("method", ["tree", "gridshift"])
def test_files_of_a_run(files, run, method):
    x, labels = files
    out = run(f"--features=x.csv --labels=y.txt --workdir=out --method={method}")
    assert ("running GridShift on 200 points" in out) == (method == "gridshift")
    assert "out/report.html\nout/assignments.csv\nout/results.json" in out
    names = {"assignments.csv", "config.json", "report.html", "results.json", "store-0.npz"}
    names |= {"run-1.npz", "lock"}
    assert {file.name for file in pathlib.Path("out").iterdir()} == names

    results = io.read_json("out/results.json")
    metrics = results["metrics"][method]
    assert metrics["verdict"] == "clear"
    assert metrics["acc"] > 0.98
    assert f"{metrics['acc']:.3f}" in out
    protocol = results["provenance"]
    assert (protocol["features"], protocol["labels"]) == ("x.csv", "y.txt")
    assert (protocol["rows"], protocol["columns"]) == (200, 3)
    assert results["config"]["seed"] == 0
    settings = Page(pathlib.Path("out/report.html").read_text()).text
    assert '"seed": 0' in settings
    assert '"bandwidth": "auto"' in settings
    assert protocol["number_of_clusters"] == {method: "found"}
    assert protocol["labels_used_for"] == ["scoring"]
    assert {"python", "cluster_jax", "numpy"} <= set(protocol["versions"])
    assert {"machine", "commit"} <= set(protocol)

    result = clusters.find(x, ClusterOptions.of(results["config"]), seed=0)
    rows = toy.table("out")
    assert [row["id"] for row in rows] == [f"row {i}" for i in range(200)]
    assert [int(row["cluster"]) for row in rows] == result.cluster_labels.tolist()
    assert not any(int(row["outlier"]) for row in rows)
    placed = place.place(records.read("out"), x)
    np.testing.assert_array_equal(placed.labels, result.cluster_labels)
    distances = [float(row["distance"]) for row in rows]
    np.testing.assert_allclose(distances, placed.distances, rtol=1e-5)
    # The names of the labels, cluster by cluster, and of the rows.
    for c, name in metrics["matching"].items():
        assert name == NAMES[np.bincount(labels[result.cluster_labels == int(c)]).argmax()]
        assert f"matched with {name}" in out
    page = Page(pathlib.Path("out/report.html").read_text())
    assert "clusters in 200 rows." in page.text
    assert "row 137" in page.record["map"]["names"]
    assert "x.csv" in page.text


def test_the_tree_is_the_default_and_takes_k(files, run):
    assert "\nThe clusters are clearly apart.\n" in run("x --workdir=found")
    metrics = io.read_json("found/results.json")["metrics"]["tree"]
    assert metrics["n_clusters"] == 3
    assert metrics["rows_clustered"] == 200
    rows = toy.table("found")
    assert all(float(row["probability"]) > 0.5 for row in rows)
    assert all(float(row["second_probability"]) < 0.5 for row in rows)
    for row in rows:
        assert (row["second_cluster"] == "") == (float(row["second_probability"]) == 0)
        assert row["second_cluster"] != row["cluster"]
    page = pathlib.Path("found/report.html").read_text()
    assert "The clusters are clearly apart." in page

    out = run("x --workdir=two --n-clusters=2")
    results = io.read_json("two/results.json")
    assert results["metrics"]["tree"]["n_clusters"] == 2
    assert results["metrics"]["tree"]["verdict"] is None
    assert results["provenance"]["number_of_clusters"] == {"tree": "given"}
    assert "Tree (k given)" in out
    assert "set in advance" in pathlib.Path("two/report.html").read_text()
    coarse = toy.table("two")
    assert list(coarse[0]) == list(rows[0])
    assert len({row["cluster"] for row in coarse}) == 2


def test_what_is_not_clear_is_said(files, run):
    flags = "--reduce=pca --metric=euclidean"
    noise = np.random.default_rng(0).normal(size=(200, 8))
    np.save("blob.npy", noise)
    out = run(f"--features=blob.npy --workdir=one {flags}")
    assert "The rows form one cluster: no split separates them clearly." in out
    assert "do not split into several clusters" in pathlib.Path("one/report.html").read_text()
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 6, 400)
    np.save("near.npy", 2.8 * np.eye(6, 12)[truth] + rng.normal(size=(400, 12)))
    out = run(f"--features=near.npy --workdir=three {flags}")
    assert "No clear answer: the 6 clusters are a best guess" in out
    assert "are a best guess" in pathlib.Path("three/report.html").read_text()


GRID = "x --method=gridshift --bandwidth=2.5"


def test_a_finished_run_is_shown_again(files, run):
    out = run(GRID)
    (workdir,) = pathlib.Path("clusters").iterdir()
    assert workdir.name.startswith("x-")
    stamp = (workdir / "results.json").stat().st_mtime_ns
    again = run(GRID)
    assert "is finished" in again
    assert "GridShift on" not in again
    assert again.split("\n\n")[1:] == out.split("\n\n")[1:], "the same figures"
    assert (workdir / "results.json").stat().st_mtime_ns == stamp
    # What is the default may be said; anything else is another result.
    run(f"{GRID} --reduce=none")
    assert len(list(pathlib.Path("clusters").iterdir())) == 1
    run("x --method=gridshift --bandwidth=2.0")
    run(f"{GRID} --labels=y.txt")
    assert len(list(pathlib.Path("clusters").iterdir())) == 3
    results = io.read_json(workdir / "results.json")
    assert results["config"]["bandwidth"] == 2.5
    assert results["metrics"]["gridshift"]["acc"] is None


def test_an_interrupted_run_starts_over(files, run, capsys, monkeypatch):
    line = f"{GRID} --workdir=out"

    def stop(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(page, "render", stop)
        with pytest.raises(SystemExit) as end:
            cluster.main(_flags(line))
    assert end.value.code == 130
    assert "Interrupted; the same command goes on from what is saved" in capsys.readouterr().err
    results = pathlib.Path("out/results.json")
    assert not results.exists()
    run(line)
    whole = results.read_bytes()
    results.write_bytes(whole[:40])
    run(line)
    assert len(results.read_bytes()) > len(whole) / 2, "damaged ones are made anew"


def test_a_folder_of_something_else_is_left_alone(files, run, not_clustered):
    pathlib.Path("mine").mkdir()
    pathlib.Path("mine/assignments.csv").write_text("my own")
    said = "mine must have config.json beside assignments.csv"
    assert said in not_clustered("x --workdir=mine")
    assert pathlib.Path("mine/assignments.csv").read_text() == "my own"
    pathlib.Path("empty").mkdir()
    run(f"{GRID} --workdir=empty")
    said = "empty has a run with another bandwidth; choose another folder"
    assert said in not_clustered("x --method=gridshift --bandwidth=3 --workdir=empty")


def test_what_another_version_or_a_kill_left(files, tmp_path, run, monkeypatch, not_clustered):
    line = f"{GRID} --workdir=out"
    pathlib.Path("out").mkdir()
    pathlib.Path("out/.config.json.partial").write_text("{")
    run(line)
    assert "is finished" in run(line)
    monkeypatch.setattr(rows, "__version__", "99.0")
    said = "out has a run with another version; choose another folder"
    assert said in not_clustered(line)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    whole = pathlib.Path("out/config.json").read_bytes()
    for damaged in ("[1]", "{"):
        pathlib.Path("out/config.json").write_text(damaged)
        run(line)
        assert pathlib.Path("out/config.json").read_bytes() == whole, "the state has it as well"
    pathlib.Path("out/run-1.npz").unlink()
    pathlib.Path("out/config.json").write_text("[1]")
    assert "out/config.json is damaged" in not_clustered(line)


def test_kmeans_takes_every_core(files, monkeypatch):
    """A device for each core, unless their number is set; tests set it to 8."""
    code = (
        "import sys; from cluster_jax.cli import cluster\n"
        "cluster.main(sys.argv[1:]); import jax; print('devices', jax.device_count())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--features=x.npy", "--method=kmeans", "--n-clusters=3",
         "--reduce=pca"],
        env={"PYTHONPATH": str(ROOT), "PATH": "", "JAX_PLATFORMS": "cpu"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.endswith(f"devices {devices.cores()}\n"), done.stderr
    monkeypatch.setattr(jax.config, "update", lambda *_: pytest.fail("the number is set"))
    devices.cpu_devices(3)


@pytest.mark.parametrize("flags", ["", "--method=kmeans --n-clusters=3 --reduce=pca"])
def test_of_several_processes_only_kmeans_has_a_use(files, not_clustered, monkeypatch, flags):
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(exit_codes.os, "_exit", lambda code: None)
    said = not_clustered(f"--features=wide.npy {flags}")
    assert "method must be kmeans, and reduce none, in several processes; got" in said


def test_kmeans_and_one_column(files, run):
    np.save("line.npy", np.repeat([0.0, 5.0, 9.0], 20)[:, None] + np.arange(60)[:, None] % 7 / 50)
    out = run("--features=line.npy --method=kmeans --n-clusters=3 --workdir=out")
    assert "k-means (k given)" in out
    rows = toy.table("out")
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
    assert io.read_json("out/results.json")["config"]["n_init"] == 10


@every_row(
    ("given", "message"),
    [
        ("", "--features"),
        ("--features=none.npy", "none.npy must be an existing file"),
        ("--features=y.txt", "must be a file of type .npy, .npz, .csv"),
        ("x --labels=none.txt", "none.txt must be an existing file"),
        ("x --labels=short.txt", "got 200 and 2"),
        ("--features=nan.npy", "must be finite; got NaN or infinity in row 1"),
        ("--features=flat.npy", "rows by columns; got float64 of shape (4,)"),
        ("--features=empty.npy", "a minimum of 1 is required"),
        ("--features=words.npy", "must hold real numbers"),
        ("--features=pickled.npy", "never loaded"),
        ("x --method=magic", "'kmeans', or a module of your own"),
        ("x --method=kmeans", "error: --n-clusters must be given for k-means"),
        ("x --n-clusters=201", "error: --n-clusters must be between 1 and 200"),
        ("x --method=gridshift --n-clusters=3", "(or use --method tree)"),
        ("x --n-clusters=many", "--n-clusters: invalid int value: 'many'"),
        ("x --method=gridshift --bandwidth=wide", "number greater than 0; got 'wide'"),
        ("x --bandwith=1", "no flag --bandwith; did you mean --bandwidth?"),
        ("--feature=x.npy", "no flag --feature; did you mean --features?"),
        ("--features=", "--features must be the path of a file"),
        ("x --labels=", "--labels must be the path of a file"),
        ("x --array=x", "--array must name an array of a file"),
        ("x --n-init=3", "--n-init must be left out for --method=tree"),
        ("--features=wide.npy --reduce=pca --n-neighbors=9", "left out for --reduce=pca; got 9"),
        ("--features=junk.npy", "junk.npy must be a complete file"),
        ("x more", "more"),
        ("--features=junk.npy --workdir=x.npy/run", "x.npy is a file"),
        ("--features=wide.npy --n-neighbors=1", "neighbors must be at least 2"),
    ],
)
def test_bad_input(files, not_clustered, given, message):
    pathlib.Path("short.txt").write_text("1\n2\n")
    np.save("nan.npy", [[1.0, 2.0], [np.nan, 1.0]])
    np.save("flat.npy", np.ones(4))
    np.save("empty.npy", np.ones((0, 3)))
    np.save("words.npy", np.array([["a"]]))
    pathlib.Path("junk.npy").write_text("no array")
    np.save("pickled.npy", np.array([{}], object), allow_pickle=True)
    assert message in not_clustered(given)


def test_late_trouble_is_one_sentence_too(files, refused, monkeypatch):
    """The folder has its lock by then, and nothing else: the same command may be given again."""

    def full(*arguments, **options):
        raise OSError("no space left on device")

    monkeypatch.setattr(clusters, "find", full)
    assert "no space left" in refused(cluster.main, *_flags("x --workdir=w"), code=1)
    assert os.listdir("w") == ["lock"]


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
def parts(files):
    """The three heaps also in a folder of shards; a file of ids."""
    pathlib.Path("parts").mkdir()
    for i, part in enumerate(np.split(files[0], [70, 150])):
        np.save(f"parts/{i}.npy", part)
    pathlib.Path("ids.txt").write_text("\n".join(f"r{i}" for i in range(200)))
    return files


@pytest.fixture
def shards(parts, monkeypatch):
    """Which count as too large for memory."""
    monkeypatch.setattr(tables, "LARGE", 300)
    monkeypatch.setattr(rows, "SAMPLE", 120)
    return parts


@pytest.mark.parametrize("method", ["tree", "kmeans"])
def test_features_too_large_for_memory_are_read_in_blocks(shards, run, monkeypatch, method):
    _, labels = shards
    monkeypatch.setattr("cluster_jax.core.arrays._BLOCK", 99)
    k = "--n-clusters=3" if method == "kmeans" else ""
    line = f"--features=parts --labels=y.txt --method={method} {k} --workdir=w"
    out = run(line)
    results = io.read_json("w/results.json")
    provenance, metrics = results["provenance"], results["metrics"][method]
    assert provenance["rows"] == 200
    assert provenance["rows_used"] == {"all": 200, "files": 3, "in_report": 120}
    said = "running k-means on 200 rows" if method == "kmeans" else "smoothing 200 x"
    assert said in out
    assert "in 200 rows" in out
    table = toy.table("w")
    assert [row["row"] for row in table] == [str(i) for i in range(200)]
    assert sum(row["distance"] != "" for row in table) == 120
    found = np.array([int(row["cluster"]) for row in table])
    assert len({(a, b) for a, b in zip(found, labels, strict=True)}) == 3
    assert metrics["acc"] == metrics["nmi"] == 1
    assert metrics["cluster_sizes"] == {str(c): int(n) for c, n in enumerate(np.bincount(found))}
    assert pathlib.Path("w/report.html").stat().st_size > 10_000
    assert "is finished" in run(line)


def test_ids_of_features_in_blocks(shards, run, not_clustered, refused, monkeypatch):
    monkeypatch.setattr("cluster_jax.core.arrays._BLOCK", 99)
    flags = "--features=parts --ids=ids.txt"
    run(f"{flags} --workdir=w --reduce=pca")
    table = toy.table("w")
    assert [row["row"] for row in table] == [f"r{i}" for i in range(200)]
    page = Page(pathlib.Path("w/report.html").read_text())
    shown = [int(name.removeprefix("r")) for name in page.record["map"]["names"]]
    assert len(shown) == 120
    assert "is finished" in run(f"{flags} --workdir=w --reduce=pca")
    predict.main(["--workdir=w", *flags.split(), "--out=p.csv"])
    placed = toy.table(".", "p.csv")
    for title in ("row", "cluster"):
        assert [row[title] for row in placed] == [row[title] for row in table]
    said = refused(update.main, "--workdir=w", "--refit")
    assert "whose rows were read in blocks: use predict, or" in said
    pathlib.Path("ids.txt").write_text("r\n" * 200)
    assert "got 'r' in the rows 0 and 1" in not_clustered(f"{flags} --workdir=v")
    pathlib.Path("ids.txt").write_text("r\n" * 3)
    assert "a title); got 200 and 3" in not_clustered(f"{flags} --workdir=v")


def test_small_shards_give_what_their_table_gives(parts, run):
    np.save("ids.npy", 7 + np.arange(200))
    for source in ("parts", "x.npy"):
        run(f"--features={source} --ids=ids.npy --workdir={source[0]}")
    assert toy.table("p") == toy.table("x")
    assert toy.table("p")[199]["row"] == "206"


def test_bad_input_in_blocks(shards, not_clustered):
    x, _ = shards
    pathlib.Path("three.txt").write_text("1\n2\n3\n")
    line = "--features=parts --workdir=w"
    for flags, said in (
        ("--n-clusters=201", "--n-clusters must be between 1 and 200"),
        ("--method=kmeans --reduce=pca --n-clusters=3", "got 'kmeans' with reduce='pca'"),
        ("--method=gridshift", "for rows read in blocks; got 'gridshift'"),
        ("--labels=three.txt", "got 200 and 3"),
    ):
        assert said in not_clustered(f"{line} {flags}")
    np.save("parts/1.npy", np.where(np.arange(240).reshape(80, 3) == 100, np.nan, x[70:150]))
    assert "1.npy must hold finite numbers; got NaN or infinity in row" in not_clustered(line)
    np.save("parts/1.npy", x[70:150, :2])
    assert "1.npy must have 3 columns like 0.npy; got 2" in not_clustered(line)


@pytest.mark.filterwarnings("default:the map is drawn by PCA")
def test_a_map_that_fails_loses_no_clusters(tmp_path, monkeypatch, capsys):
    rows = 9 * np.eye(12)[np.arange(120) % 6] + np.random.default_rng(0).normal(size=(120, 12))
    np.save(tmp_path / "x.npy", rows)

    def failing(*args, **options):
        raise RuntimeError("cannot cache function 'rdist'")

    monkeypatch.setattr("cluster_jax.evaluation.maps.tsne", failing)
    cluster.main([f"--features={tmp_path}/x.npy", f"--workdir={tmp_path}/run"])
    said = capsys.readouterr()
    assert "the map is drawn by PCA, because TSNE failed: cannot cache function" in said.err
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


def test_files_of_another_run_are_named(files, run, not_clustered):
    """Rows that differ beyond float32 are others; the same numbers of another dtype are not."""
    rows = files[0].astype(np.float32)
    np.save("x4.npy", rows)
    np.save("x8.npy", rows.astype(np.float64))
    flags = "--workdir=run --reduce=pca"
    run(f"--features=x4.npy {flags}")
    assert "run is finished" in run(f"--features=x8.npy {flags}")
    update = "`cluster-jax update --workdir=run --features=FILE` takes other rows in, or choose"
    assert f"run has a run with another --features; {update}" in not_clustered(f"x {flags}")
    said = not_clustered(f"--features=x4.npy {flags} --seed=5")
    assert "run has a run with another seed; choose another folder" in said, "no update is like it"
    run("--features=x4.npy --workdir=means --method=kmeans --n-clusters=2 --report=no")
    said = not_clustered("x --workdir=means --method=kmeans --n-clusters=2")
    assert "means has a run with another --features; choose another folder" in said
    pathlib.Path("run/run-1.npz").unlink()  # It is not finished then.
    assert "run has a run with another --features; choose another" in not_clustered(f"x {flags}")
