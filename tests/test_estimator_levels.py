"""ImageClusterer with `eval.method` "modes": the tree of groups, its cuts, and probabilities."""

import csv
import itertools
import shutil

import numpy as np
import pytest

import cluster_jax
from cluster_jax.cli import predict
from cluster_jax.clustering import grouping, modes
from cluster_jax.clustering.signal import Signal
from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.estimators import ImageClusterer
from cluster_jax.evaluation import cluster_features, report
from cluster_jax.evaluation.cluster_options import ClusterOptions
from cluster_jax.evaluation.evaluate import evaluate
from tests import toy

pytestmark = pytest.mark.usefixtures("one_device", "traced_once")

COUNT = 300
OVERRIDES = {
    "eval.features": "backbone",
    "eval.kmeans.n_init": 1,
    "eval.reduce.method": "pca",
    "network.width": 32,
    "train.duration": "1 step",
}


@pytest.fixture(scope="module", autouse=True)
def doubts():
    """Probabilities that differ, whatever the rows."""
    assign = modes.assign

    def doubtful(*arguments):
        found = assign(*arguments)
        sure = np.linspace(0.5, 1, len(found.labels))
        return found._replace(probabilities=sure, runner_up_probabilities=1 - sure)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modes, "assign", doubtful)
        yield


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


def _is_union(coarse, fine):
    return len(set(zip(fine.tolist(), coarse.tolist(), strict=True))) == len(np.unique(fine))


def test_what_fit_leaves(fitted):
    metrics = fitted.results_["metrics"]
    assert "gridshift" not in metrics
    assert fitted.n_clusters_ == metrics["modes"]["n_large"] > 1
    assert fitted.results_["provenance"]["number_of_clusters"]["modes"] == "found"
    assert fitted.results_["provenance"]["bandwidth"] is None
    # As they were made, in another order of the rows.
    np.testing.assert_array_equal(np.sort(fitted.probabilities_), np.linspace(0.5, 1, COUNT))
    assert len(fitted.linkage_) == len(np.unique(fitted.labels_)) - 1
    assert "the more apart they are" in (fitted._run.workdir / "report.html").read_text()
    k = len(np.unique(fitted.labels_)) - 1
    groups = cluster_jax.cut_tree(fitted.linkage_, k)
    assert _is_union(groups[fitted.labels_], fitted.cut(k=k))
    rows = list(csv.DictReader((fitted._run.workdir / "assignments.csv").read_text().splitlines()))
    assert list(rows[0]) == [
        *("image", "cluster", "distance", "outlier", "probability", "runner_up"),
        *("runner_up_probability", "kmeans_cluster"),
    ]
    assert [int(row["cluster"]) for row in rows] == fitted.labels_.tolist()
    found = [float(row["probability"]) for row in rows]
    np.testing.assert_allclose(found, fitted.probabilities_, rtol=1e-5)
    found = [float(row["runner_up_probability"]) for row in rows]
    np.testing.assert_allclose(found, 1 - fitted.probabilities_, rtol=1e-5)


def test_the_command_cluster_finds_the_same(fitted):
    reduce = fitted.results_["config"]["eval"]["reduce"]
    names = ("n_components", "n_neighbors", "min_dist", "metric")
    options = ClusterOptions(
        method="modes", k=None, reduce=reduce["method"], bandwidth="auto", n_init=1, max_iter=1,
        seed=fitted.results_["provenance"]["seed"], **{name: reduce[name] for name in names},
    )  # fmt: skip
    result = cluster_features.cluster(fitted._run.features, None, options, lambda text: None)
    np.testing.assert_array_equal(result.cluster_labels, fitted.labels_)
    np.testing.assert_allclose(result.membership.probabilities, fitted.probabilities_, atol=1e-6)
    for k in range(1, len(fitted.tree_.merges) + 2):
        np.testing.assert_array_equal(result.modes.cut(k=k), fitted.cut(k=k))
    shared = set(fitted.results_["metrics"]["modes"]) & set(result.metrics)
    assert {"verdict", "agreement", "stable_k", "certainty", "n_found"} <= shared


def test_cuts_are_nested_partitions(fitted, monkeypatch):
    n_leaves = len(fitted.tree_.merges) + 1
    n_clusters = len(np.unique(fitted.labels_))
    assert n_leaves > n_clusters, "one cut is finer than the answer"
    cuts = [fitted.cut(k=k) for k in range(1, n_leaves + 1)]
    for k, labels in enumerate(cuts, start=1):
        assert (labels.dtype, labels.shape) == (np.int64, (COUNT,))
        assert np.unique(labels).tolist() == list(range(k))
    for coarse, fine in itertools.pairwise(cuts[:n_clusters]):
        assert _is_union(coarse, fine)
    np.testing.assert_array_equal(cuts[n_clusters - 1], fitted.labels_)
    np.testing.assert_array_equal(fitted.cut(level=0.0), cuts[-1])
    # Coarser ones are unions: no row is assigned anew.
    monkeypatch.setattr(grouping, "assign", lambda *_: pytest.fail("assigned"))
    assert not fitted.cut(level=1.0).any()
    np.testing.assert_array_equal(fitted.cut(k=2), cuts[1])


def test_saved_and_loaded(fitted, tmp_path):
    again = cluster_jax.load(fitted.save(tmp_path / "kept"))
    for ours, theirs in zip(fitted.tree_, again.tree_, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for name in ("labels_", "probabilities_", "distances_", "linkage_"):
        np.testing.assert_array_equal(getattr(fitted, name), getattr(again, name))
    for k in range(1, len(fitted.tree_.merges) + 2):
        np.testing.assert_array_equal(fitted.cut(k=k), again.cut(k=k))


def test_new_images_follow_the_cut(fitted, features, tmp_path, capsys):
    found = fitted.locate(features)
    np.testing.assert_array_equal(found.labels, fitted.labels_)
    np.testing.assert_allclose(found.distances, fitted.distances_, atol=1e-5)
    for k in (2, len(fitted.tree_.merges) + 1):
        groups = fitted.cut(k=k)
        np.testing.assert_array_equal(fitted.predict(features, k=k), groups)
        np.testing.assert_array_equal(fitted.predict(features[:1], k=k), groups[:1])
    assert not fitted.predict(features, level=1.0).any()
    points = fitted._run.clusters.points[groups == 0]
    wanted = np.linalg.norm(points - points.mean(axis=0), axis=1)
    distances = fitted.locate(features[groups == 0], k=k).distances
    np.testing.assert_allclose(distances, wanted, atol=1e-5)
    np.save(tmp_path / "x.npy", features[:1])
    arguments = [f"--workdir={fitted._run.workdir}", f"--images={tmp_path}/x.npy"]
    predict.main([*arguments, f"--out={tmp_path}/p.csv"])
    said = capsys.readouterr().out
    assert "       1 image\nAssigned 1 image to 1 cluster;" in said
    (row,) = csv.DictReader((tmp_path / "p.csv").read_text().splitlines())
    assert int(row["cluster"]) == fitted.labels_[0]


def test_without_a_map(make, features, workdir, monkeypatch):
    """One column of features that stands out is clustered and drawn as it is."""

    def first_column(x):
        return Signal(x.mean(axis=0), np.eye(x.shape[1])[:, :1])

    monkeypatch.setattr(grouping.signal, "fit", first_column)
    again = make(workdir=workdir, overrides={"eval.reduce.method": "none"}).fit(features)
    assert again._run.clusters.points.shape == (COUNT, 1)
    np.testing.assert_array_equal(again.predict(features), again.labels_)


def test_a_kill_before_the_report(make, fitted, features, workdir, monkeypatch):
    """The same command makes what lacks; an answer of other settings is not taken for this one."""
    other = make(workdir=workdir, overrides={"eval.method": "gridshift"}).fit(features)
    assert other.tree_ is other.probabilities_ is None
    assert "probability" not in (workdir / "assignments.csv").read_text()
    with pytest.raises(InputError, match=r"eval.method must be 'modes' to cut"):
        other.predict(features[:1], level=0.5)
    assert (other.predict(features[:9]) == other.labels_[:9]).all()

    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(report, "write_report", killed)
        with pytest.raises(KeyboardInterrupt):
            make(workdir=workdir).fit(features)
    with pytest.raises(InputError, match="is not finished"):
        cluster_jax.load(workdir)
    again = make(workdir=workdir).fit(features)
    old = fitted._run.workdir
    for name in ("assignments.csv", "clusters.npz"):
        assert (workdir / name).read_bytes() == (old / name).read_bytes(), name
    assert again.results_["metrics"] == fitted.results_["metrics"]
    assert io.read_json(workdir / "results.json")["metrics"]["modes"]


def test_a_damaged_tree_is_made_again(make, features, workdir):
    file = workdir / "clusters.npz"
    before = file.read_bytes()
    file.write_bytes(before[:-100] + bytes(100))
    with pytest.raises(InputError, match=r"clusters.npz is damaged"):
        cluster_jax.load(workdir)
    make(workdir=workdir).fit(features)
    assert file.read_bytes() == before


def test_levels_where_there_are_none(make, fitted, features, workdir):
    with pytest.raises(InputError, match=r"k must be between 1 and .*, the finest groups; got 999"):
        fitted.predict(features[:1], k=999)
    with pytest.raises(InputError, match="k or level must be given, not both"):
        fitted.cut(k=2, level=0.5)
    given = make(workdir=workdir, n_clusters=3).fit(features)
    assert len(np.unique(given.labels_)) == 3
    assert given.tree_ is given.probabilities_ is None
    with pytest.raises(InputError, match="n_clusters and the classes must be None to cut the tree"):
        given.cut(k=2)


def test_labels_are_for_scores_only(fitted):
    embedding = io.read_arrays(fitted._run.workdir / "embedding.npz")
    config = fitted._run.config.eval
    labels = np.random.default_rng(0).integers(0, 3, COUNT).astype(np.int32)
    without, with_ = (evaluate(embedding, t, config, seed=0) for t in (None, labels))
    np.testing.assert_array_equal(without.cluster_labels, with_.cluster_labels)
    np.testing.assert_array_equal(without.cluster_labels, fitted.labels_)
    assert with_.metrics["modes"]["acc"] is not None
    assert without.metrics["kmeans"]["k_given"] == without.metrics["modes"]["n_large"]
