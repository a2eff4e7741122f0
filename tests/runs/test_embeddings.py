"""A run of the command `cluster`, used later: new embeddings, cuts, corrections, load."""

import json
import re

import numpy as np
import pandas as pd
import pyarrow
import pytest

import cluster_jax
from cluster_jax import SmoothTree
from cluster_jax.cli import cluster, predict
from cluster_jax.core.checks import InputError
from cluster_jax.runs import states
from tests import toy

N, GROUPS = 240, 4


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    return (20 * np.eye(GROUPS, 8)[np.arange(N) % GROUPS] + rng.normal(size=(N, 8))).astype("f4")


@pytest.fixture(scope="module")
def new(rows):
    """Rows between those of the run and, the last two, far from all of them."""
    between = (rows[:8] + rows[8:16]) / 2
    return np.concatenate([between, -rows[:2]])


@pytest.fixture(scope="module")
def make(rows, tmp_path_factory):
    """Runs of `cluster` by their flags."""

    def made(*flags):
        folder = tmp_path_factory.mktemp("embeddings")
        np.save(folder / "rows.npy", rows)
        cluster.main([f"--features={folder}/rows.npy", f"--workdir={folder}/run", *flags])
        return folder / "run"

    return made


@pytest.fixture(scope="module")
def tree(make):
    return make("--reduce=pca")


KINDS = {
    "tree": ["--reduce=pca"],
    "gridshift in a map": ["--method=gridshift", "--reduce=pca"],
    "gridshift": ["--method=gridshift", "--reduce=none", "--bandwidth=6"],
    "kmeans": ["--method=kmeans", "--n-clusters=4"],
    "euclidean kmeans": ["--method=kmeans", "--n-clusters=4", "--metric=euclidean"],
    "kmeans in a map": ["--method=kmeans", "--n-clusters=4", "--reduce=pca"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_the_run_keep_their_clusters(make, rows, new, kind):
    run = cluster_jax.load(make(*KINDS[kind]))
    placed = run.assign(rows)
    np.testing.assert_array_equal(placed.labels, run.labels_)
    assert placed.is_novel.mean() < 0.05
    table = toy.table(run.run.workdir)
    stored = np.array([float(row["distance"]) for row in table])
    np.testing.assert_allclose(placed.distances, stored, rtol=1e-4, atol=1e-4)
    found = run.assign(new)
    np.testing.assert_array_equal(found.labels[:4], found.labels[4:8])
    assert len(set(found.labels[:4].tolist())) == GROUPS  # of which each row has another
    assert found.is_novel.tolist()[-2:] == [True, True]
    np.testing.assert_array_equal(run.score_samples(new), -found.novelty)
    assert (found.novelty[:8] < 1).all()
    for i, one in enumerate(found.labels):
        assert run.predict(new[i : i + 1]) == one


def test_probabilities_are_those_of_the_table(tree, rows, new):
    run = cluster_jax.load(tree)
    table = toy.table(tree)
    told = np.array([float(row["probability"]) for row in table])
    every = run.predict_proba(rows)
    np.testing.assert_allclose(every.sum(axis=1), 1)
    np.testing.assert_allclose(every[np.arange(N), run.labels_], told, atol=1e-5)
    np.testing.assert_allclose(run.probabilities_, told, atol=1e-5)
    assert (run.n_clusters_, run.ids_) == (GROUPS, None)
    sure = run.assign(new)
    np.testing.assert_allclose(
        run.predict_proba(new)[np.arange(len(new)), sure.labels], sure.probabilities
    )
    model = SmoothTree("cosine").fit(rows)
    np.testing.assert_array_equal(model.labels_, run.labels_)
    np.testing.assert_allclose(model.predict_proba(new), run.predict_proba(new), atol=1e-6)


def test_the_command_places_new_rows(tree, new, tmp_path, capsys):
    titles = ",".join(f"f{i}" for i in range(new.shape[1]))
    np.savetxt(tmp_path / "new.csv", new, delimiter=",", header=titles, comments="")
    flags = [f"--workdir={tree}", f"--features={tmp_path}/new.csv", f"--out={tmp_path}/p.csv"]
    predict.main(flags)
    table, run = toy.table(tmp_path, "p.csv"), cluster_jax.load(tree)
    assert [int(row["cluster"]) for row in table] == run.predict(new).tolist()
    assert [row["is_novel"] for row in table] == ["0"] * 8 + ["1"] * 2
    assert list(table[0]) == [
        *("row", "cluster", "distance", "novelty", "is_novel", "probability", "second_cluster"),
        "second_probability",
    ]
    assert "Assigned 10 rows to 4 clusters; 2 are unlike all rows of the run." in (
        capsys.readouterr().out
    )


def test_columns_of_a_data_frame_are_told_by_name(new, tmp_path):
    x = pd.DataFrame(new, columns=[f"f{i}" for i in range(8)])
    x.to_csv(tmp_path / "x.csv", index=False)
    flags = ["--method=kmeans", "--n-clusters=3", "--reduce=none", "--report=no"]
    cluster.main([f"--features={tmp_path}/x.csv", f"--workdir={tmp_path}/run", *flags])
    run = cluster_jax.load(tmp_path / "run")
    for same in (x[x.columns[::-1]], pd.DataFrame(new), pyarrow.table(x)):
        assert run.predict(same).tolist() == run.labels_.tolist()
    with pytest.raises(InputError, match="X must have the column 'f0' of"):
        run.predict(x[["f1"]])


def test_corrections_hold_for_new_rows(make, rows, new, tmp_path, capsys):
    np.save(tmp_path / "labels.npy", np.arange(N) % GROUPS)
    flags = ["--reduce=pca", f"--labels={tmp_path}/labels.npy"]
    workdir = make(*flags)
    before = cluster_jax.load(workdir)
    a, b = before.labels_[:2].tolist()
    said = {"state": before.run.state, "merges": [[a, b]], "names": {str(b): "birds"}}
    (tmp_path / "saved.json").write_text(json.dumps(said))
    states.correct(workdir, [tmp_path / "saved.json"])
    run = cluster_jax.load(workdir)
    assert run.names_ == {b: "birds"}
    placed = run.assign(new)
    np.testing.assert_array_equal(placed.labels[[0, 1]], [b, b])
    ids = np.unique(run.labels_)
    assert a not in ids
    sure = run.predict_proba(new)
    assert sure.shape == (len(new), len(ids))
    np.testing.assert_allclose(sure.sum(axis=1), 1)
    predict.main([f"--workdir={workdir}", f"--features={workdir.parent}/rows.npy"])
    table = toy.table(workdir, "predictions.csv")
    assert {row["name"] for row in table if int(row["cluster"]) == b} == {"birds"}
    # The command of the run says how many there are now, and how right they are.
    capsys.readouterr()
    cluster.main([f"--features={workdir.parent}/rows.npy", f"--workdir={workdir}", *flags])
    said = capsys.readouterr().out
    assert "is finished" in said
    assert re.search(r"\nTree \(k corrected\) +3 +0\.750 ", said)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("", "--features must be given for this kind"),
        ("--images=x", "--features must be given in place of --images for .*; got x"),
        ("--features=narrow.npy", "--features must have 8 columns like .*; got 7"),
        ("--features=nan.npy", "--features must .*finite"),
        ("--features=none.npy", "none.npy must be an existing file"),
        ("--features=new.npy --export=x", "--export must be left out"),
    ],
)
def test_bad_input(tree, new, tmp_path, monkeypatch, refused, flags, message):
    monkeypatch.chdir(tmp_path)
    np.save("new.npy", new)
    np.save("narrow.npy", new[:, :7])
    np.save("nan.npy", np.full_like(new, np.nan))
    said = refused(predict.main, f"--workdir={tree}", "--out=p.csv", *flags.split())
    assert re.search(message, said)
    assert not (tmp_path / "p.csv").exists()


def test_what_a_method_cannot_do(make, rows):
    run = cluster_jax.load(make("--method=kmeans", "--n-clusters=4"))
    with pytest.raises(InputError, match=r"method must be 'tree' to cut; got 'kmeans'"):
        run.cut(n_clusters=2)
    with pytest.raises(InputError, match="method must be 'tree' to give probabilities"):
        run.predict_proba(rows)
    with pytest.raises(InputError, match="whose rows are embeddings: "):
        cluster_jax.ImageClusterer.load(make("--method=gridshift", "--reduce=pca"))
    drawn = cluster_jax.load(make("--method=gridshift", "--reduce=tsne"))
    with pytest.raises(InputError, match="used t-SNE, whose map has no place for new rows"):
        drawn.predict(rows)
