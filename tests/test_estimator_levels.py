"""ImageClusterer with `eval.method` "tree": the tree of groups, its cuts, and probabilities."""

import dataclasses
import functools
import itertools
import shutil

import numpy as np
import pytest

import cluster_jax
from cluster_jax import SmoothTree
from cluster_jax.cli import predict
from cluster_jax.clustering import representation, tree_fit
from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.estimators import ImageClusterer
from cluster_jax.evaluation import clusters
from cluster_jax.evaluation.evaluate import evaluate
from cluster_jax.runs import page
from cluster_jax.training.config import parse_config
from tests import toy
from tests.report.test_report import Page

pytestmark = pytest.mark.usefixtures("one_device", "traced_once")

COUNT = 300
OVERRIDES = {
    "eval.features": "backbone",
    "eval.n_init": 1,
    "eval.reduce": "pca",
    "network.width": 32,
    "optimizer.warmup": "0 steps",
    "train.duration": "1 step",
}


@pytest.fixture(scope="module")
def make(tmp_path_factory, one_device, traced_once):
    """Estimators of one training step on features, which takes the least time."""
    config = toy.shrunken("simclr_features", tmp_path_factory.mktemp("config")).to_dict()

    def made(**options):
        overrides = {**OVERRIDES, **options.pop("overrides", {})}
        return ImageClusterer(config, overrides=overrides, verbose=False, **options)

    return made


@pytest.fixture(scope="module")
def features():
    """Three pairs of groups, the groups of each pair near each other."""
    rng = np.random.default_rng(0)
    centers = np.tile(4 * np.eye(3, 12), (2, 1))
    centers[:, 3] = [-1.5, -1.5, -1.5, 1.5, 1.5, 0.75]
    rows = centers[rng.integers(0, 6, COUNT)] + rng.normal(size=(COUNT, 12)) / 2
    return rows.astype(np.float32)


@pytest.fixture(scope="module")
def fitted(make, features, tmp_path_factory):
    return make(workdir=tmp_path_factory.mktemp("levels") / "run").fit(features)


@pytest.fixture
def workdir(fitted, tmp_path):
    """A copy of its workdir."""
    return shutil.copytree(fitted._run.workdir, tmp_path / "run")


@pytest.fixture
def leaves(fitted):
    """Rows that are no copies of others."""
    return len(fitted._run.placer.sample)


def _is_union(coarse, fine):
    return len(set(zip(fine.tolist(), coarse.tolist(), strict=True))) == len(np.unique(fine))


def test_what_fit_leaves(fitted, leaves):
    metrics = fitted.results_["metrics"]
    assert "gridshift" not in metrics
    # Processors round the one step of training differently, and some find a part of a group.
    k = fitted.n_clusters_
    assert 5 <= k <= 7
    assert k == metrics["tree"]["n_large"]
    # After a training nothing is called clear.
    assert metrics["tree"]["verdict"] != "clear"
    assert fitted.results_["provenance"]["number_of_clusters"]["tree"] == "found"
    assert 0 < fitted.probabilities_.min() < 0.8 < fitted.probabilities_.max() <= 1
    assert fitted.tree_.shape == (leaves - 1, 4)
    assert fitted.linkage_.shape == (k - 1, 4)
    np.testing.assert_allclose(fitted.linkage_[:, 2], fitted.tree_[1 - k :, 2], rtol=1e-6)
    assert 'id="tree"' in (fitted._run.workdir / "report.html").read_text()
    groups = cluster_jax.cut_tree(fitted.linkage_, k - 1)
    assert _is_union(groups[fitted.labels_], fitted.cut(n_clusters=k - 1))
    rows = toy.table(fitted._run.workdir)
    assert list(rows[0]) == [
        *("image", "cluster", "distance", "outlier", "map_x", "map_y", "map_z", "probability"),
        *("second_cluster", "second_probability", "kmeans_cluster"),
    ]
    assert [int(row["cluster"]) for row in rows] == fitted.labels_.tolist()
    found = [[float(row[f"map_{axis}"]) for axis in "xyz"] for row in rows]
    np.testing.assert_allclose(found, fitted._run.points, rtol=1e-5)
    stored = fitted._run
    found = [float(row["second_probability"]) for row in rows]
    np.testing.assert_allclose(found, stored.second_probabilities, rtol=1e-5)
    assert [int(row["second_cluster"] or -1) for row in rows] == stored.second_labels.tolist()
    assert (stored.second_labels >= 0).any()


def test_cuts_are_nested_partitions(fitted, leaves):
    cuts = [fitted.cut(n_clusters=k) for k in range(1, leaves + 1)]
    for k, labels in enumerate(cuts, start=1):
        assert (labels.dtype, labels.shape) == (np.int64, (COUNT,))
        assert len(np.unique(labels)) == k
        if k > fitted.n_clusters_:
            assert (np.diff(np.bincount(labels, minlength=k)) <= 0).all(), "the largest first"
            continue
        for group in np.unique(labels):
            assert fitted.labels_[labels == group].min() == group, "its lowest number"
    for coarse, fine in itertools.pairwise(cuts):
        assert _is_union(coarse, fine)
    np.testing.assert_array_equal(cuts[fitted.n_clusters_ - 1], fitted.labels_)
    np.testing.assert_array_equal(fitted.cut(), fitted.labels_)


def test_new_images_follow_the_cut(fitted, features, tmp_path, capsys):
    found = fitted.assign(features)
    np.testing.assert_array_equal(found.labels, fitted.labels_)
    np.testing.assert_allclose(found.distances, fitted.distances_, atol=1e-5)
    tree = fitted._run.placer
    sharp = tree.smoother.project(fitted._run.features)
    for k in (2, 6, 9):
        groups = fitted.cut(n_clusters=k)
        np.testing.assert_array_equal(fitted.predict(features, n_clusters=k), groups)
        np.testing.assert_array_equal(fitted.predict(features[:1], n_clusters=k), groups[:1])
        rows, leaf = sharp[groups == 0], tree.leaves[groups == 0]
        center = tree.smoother.sharp[leaf].mean(axis=0)  # Copies are where their original is.
        wanted = np.linalg.norm(rows - center, axis=1)
        distances = fitted.assign(features[groups == 0], n_clusters=k).distances
        np.testing.assert_allclose(distances, wanted, atol=1e-5)
    np.save(tmp_path / "x.npy", features[:1])
    arguments = [f"--workdir={fitted._run.workdir}", f"--images={tmp_path}/x.npy"]
    predict.main([*arguments, f"--out={tmp_path}/p.csv"])
    said = capsys.readouterr().out
    assert "cluster  0  1  image\nAssigned 1 image to 1 cluster;" in said
    (row,) = toy.table(tmp_path, "p.csv")
    assert int(row["cluster"]) == fitted.labels_[0]


@pytest.mark.parametrize("method", ["none", "tsne"])
def test_the_map_is_only_a_picture(make, fitted, features, workdir, method):
    again = make(workdir=workdir, overrides={"eval.reduce": method}).fit(features)
    shape = (COUNT, fitted._run.placer.smoother.sharp.shape[1] if method == "none" else 2)
    assert again._run.points.shape == shape
    np.testing.assert_array_equal(again.labels_, fitted.labels_)
    for ours, theirs in zip(
        again.assign(features, n_clusters=3), fitted.assign(features, n_clusters=3), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_one_axis_is_drawn_as_it_is(make, features, workdir, monkeypatch):
    fit = functools.partial(representation.fit, n_axes=1)
    monkeypatch.setattr(tree_fit.representation, "fit", fit)
    again = make(workdir=workdir, overrides={"eval.n_neighbors": 12}).fit(features)
    assert again._run.points.shape == (COUNT, 1)
    np.testing.assert_array_equal(again.predict(features), again.labels_)


def test_a_kill_before_the_report(make, fitted, features, workdir, monkeypatch):
    """The same command makes what lacks; an answer of other settings is not taken for this one."""
    other = make(workdir=workdir, overrides={"eval.method": "gridshift"}).fit(features)
    assert other.tree_ is other.probabilities_ is None
    assert "probability" not in (workdir / "assignments.csv").read_text()
    with pytest.raises(InputError, match=r"eval.method must be 'tree' to cut"):
        other.predict(features[:1], n_clusters=2)
    assert (other.predict(features[:9]) == other.labels_[:9]).all()

    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(page, "render", killed)
        with pytest.raises(KeyboardInterrupt):
            make(workdir=workdir).fit(features)
    np.testing.assert_array_equal(cluster_jax.load(workdir).labels_, other.labels_)
    again = make(workdir=workdir).fit(features)
    table, old = toy.table(workdir), toy.table(fitted._run.workdir)
    # Another answer is the next state of the run, whose table also has "found" and "since".
    assert [{name: row[name] for name in old[0]} for row in table] == old
    np.testing.assert_array_equal(again.tree_, fitted.tree_)
    assert again.results_["metrics"] == fitted.results_["metrics"]
    assert io.read_json(workdir / "results.json")["metrics"]["tree"]


def test_a_given_number_has_a_tree(make, fitted, features, workdir, tmp_path):
    other = cluster_jax.load(workdir)
    given = make(workdir=workdir, n_clusters=3).fit(features)
    assert given.n_clusters_ == len(np.unique(given.labels_)) == 3
    assert not given.outliers_.any()
    expected = SmoothTree(n_clusters=3).fit(fitted._run.features)
    # The same clusters; those that a state had before keep their numbers.
    assert _is_union(given.labels_, expected.labels_)
    np.testing.assert_array_equal(given.probabilities_, expected.probabilities_)
    assert (given.predict(features) == given.labels_).mean() > 0.98
    assert len(np.unique(given.cut(n_clusters=2))) == 2
    assert given.results_["provenance"]["number_of_clusters"]["tree"] == "given"
    # An estimator of an earlier state of the workdir shows its own clusters, or nothing.
    record = Page(other.report(tmp_path / "page.html").read_text()).record
    assert {c["id"] for c in record["map"]["clusters"]} == set(other.labels_.tolist())
    with pytest.raises(InputError, match=r"must have state 1,.* newest one; got another: `clus"):
        other.save(tmp_path / "saved")


def test_labels_are_for_scores_only(fitted):
    embedding = io.read_arrays(fitted._run.workdir / "embedding.npz")
    config = parse_config(fitted._run.config).eval
    labels = np.random.default_rng(0).integers(0, 3, COUNT).astype(np.int32)
    found = clusters.find(fitted._run.features, config, seed=0)
    found = found._replace(metrics={"n_large": len(np.unique(found.cluster_labels))})
    without, with_ = (evaluate(embedding, found, t, config, seed=0) for t in (None, labels))
    np.testing.assert_array_equal(found.cluster_labels, fitted.labels_)
    assert with_.metrics["kmeans"]["acc"] is not None
    assert without.metrics["kmeans"]["k_given"] == without.metrics["tree"]["n_large"]


def test_kmeans_runs_on_smooth_rows(fitted):
    embedding = io.read_arrays(fitted._run.workdir / "embedding.npz")
    config = parse_config(fitted._run.config).eval
    config = dataclasses.replace(config, kmeans=dataclasses.replace(config.kmeans, n_clusters=12))
    x = fitted._run.features
    found = clusters.find(x, config, seed=0)
    result = evaluate(embedding, found, None, config, seed=0)
    on_smooth, on_features = (
        kmeans(rows, 12, metric=config.kmeans.metric, n_init=1, seed=0).labels
        for rows in (found.tree.smooth_rows(x), x)
    )
    np.testing.assert_array_equal(result.kmeans_labels, on_smooth)
    assert (np.asarray(on_smooth) != np.asarray(on_features)).any()
