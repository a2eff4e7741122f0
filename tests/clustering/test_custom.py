"""A clusterer in a file of one's own: of embeddings, of images, and for new ones."""

import sys

import numpy as np
import pytest

from cluster_jax import ImageClusterer, load
from cluster_jax.cli import cluster, predict, update
from cluster_jax.clustering import custom
from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from tests import toy

# Signs of the first column; a row whose second column is above 5 is in no cluster.
SIGNS = """
import numpy as np

def fit(x, n_clusters, seed):
    assert np.allclose(np.linalg.norm(x, axis=1), 1) == {is_unit}
    return np.where(x[:, 1] > 5, -1, 7 * (x[:, 0] > 0) + {more})
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes `mine.py`, in the current folder, with a source or the result of `fit`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def write(source):
        sys.modules.pop("mine", None)
        source = (
            source if "def" in source else f"def fit(x, n_clusters, seed):\n    return {source}\n"
        )
        (tmp_path / "mine.py").write_text(f"import numpy as np\n{source}")

    yield write
    sys.modules.pop("mine", None)


def test_the_largest_cluster_is_0_and_rows_in_none_come_last(write):
    write("np.array([5, -1, 2, 5, -3, 4 * n_clusters + seed])")
    labels, count = custom.fit("mine", np.zeros((6, 2)), 1, 1)
    assert (labels.tolist(), count) == ([0, 2, 1, 0, 3, 0], 2)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("np.arange(5)", r"a whole number for each of 4 rows; got an array \(5,\) of int64"),
        ("x[:, 0]", r"a whole number for each of 4 rows; got an array \(4,\) of float64"),
        ("None", r"a whole number for each of 4 rows; got an array \(\) of object"),
        ("np.full(4, -1)", "must put rows into clusters, from 0 on; got all below 0"),
    ],
)
def test_what_it_must_return(write, returned, message):
    write(returned)
    with pytest.raises(InputError, match=message):
        custom.fit("mine", np.zeros((4, 2)), None, 0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mine", "with a function fit; got 'mine', which has no fit"),
        ("mime", "or a module of your own, with a function fit, which Python can import"),
        ("my/mine.py", "must be one of 'tree', or a module of your own.*; got 'my/mine.py'"),
    ],
)
def test_what_is_no_clusterer(write, name, message):
    write("def fits(): pass")
    with pytest.raises(InputError, match=message):
        custom.check("--method", name, ("tree",))


def test_a_bug_in_it_keeps_its_traceback(write):
    write("x.shape[2]")
    np.save("x.npy", np.eye(4))
    with pytest.raises(IndexError):
        cluster.main(["--features=x.npy", "--method=mine", "--workdir=out"])
    write("import not_installed\ndef fit(x, n_clusters, seed): ...")
    with pytest.raises(ModuleNotFoundError, match="not_installed"):
        cluster.main(["--features=x.npy", "--method=mine", "--workdir=out"])


def test_embeddings(write, tmp_path, capsys, refused):
    """Map, table and report as of the tree; new rows go with their neighbors, without the file."""
    write(SIGNS.format(is_unit=False, more=0))
    x = np.random.default_rng(0).normal(size=(60, 3))
    x[:, 0] += np.repeat([4, -4], [40, 20])
    x[:2, 1] = 9
    np.save("x.npy", x)
    flags = ["--features=x.npy", "--method=mine", "--workdir=out"]
    cluster.main(flags)
    results = io.read_json(tmp_path / "out" / "results.json")
    assert results["metrics"]["mine"]["n_large"] == 2
    assert results["metrics"]["mine"]["outliers"] == 2
    assert results["provenance"]["number_of_clusters"] == {"mine": "found"}
    rows = toy.table("out")
    wanted = [2, 3, *[0] * 38, *[1] * 20]
    assert [int(row["cluster"]) for row in rows] == wanted
    assert [row["outlier"] for row in rows] == ["1"] * 2 + ["0"] * 58
    capsys.readouterr()
    cluster.main(flags)
    assert "is finished" in capsys.readouterr().out
    write(SIGNS.format(is_unit=False, more=1))
    assert "out has a run with another clusterer_file; " in refused(cluster.main, *flags)
    (tmp_path / "mine.py").unlink()
    sys.modules.pop("mine")
    predict.main(["--workdir=out", "--features=x.npy", "--out=p.csv"])
    assert load("out").predict(x).tolist() == wanted


@pytest.mark.usefixtures("one_device", "compiled_once")
def test_images(write, tmp_path, capsys):
    """A run clusters again what it has embedded once the file is another, into `n_clusters`."""
    write(SIGNS.format(is_unit=True, more="(n_clusters or 0)"))
    config = toy.config(toy.file(tmp_path, 90))
    overrides = {"eval.method": "mine", "eval.bandwidth": "auto"}
    run = {"config": config.to_dict(), "overrides": overrides, "workdir": tmp_path / "run"}
    images = toy.images(90)[0]
    fitted = ImageClusterer(**run, verbose=False).fit(images)
    assert set(fitted.labels_) == {0, 1}
    assert (fitted.predict(images) == fitted.labels_).all()
    write(SIGNS.format(is_unit=True, more="(n_clusters or 0) + (x[:, 2] > 0)"))
    again = ImageClusterer(**run).fit(images)
    assert "are of another version of your modules" in capsys.readouterr().out
    assert again.n_clusters_ > 2
    sys.modules.pop("mine")
    (tmp_path / "mine.py").unlink()
    assert (load(tmp_path / "run").predict(images) == again.labels_).all()
    update.main([f"--workdir={tmp_path / 'run'}", "--undo"])
    assert (load(tmp_path / "run").labels_ == fitted.labels_).all()
