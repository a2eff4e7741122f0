"""Trainings one after another: what one hands to the next, resuming, and classes discovered."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from scipy import special

from cluster_jax.cli import predictions
from cluster_jax.clustering import placing
from cluster_jax.clustering.label_spreading import label_spreading
from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.discovery import scores as discovery
from cluster_jax.discovery.scores import NetworkOutputs
from cluster_jax.methods.encoders import Target
from cluster_jax.methods.moco import MoCoState
from cluster_jax.metrics import partition
from cluster_jax.report import summary
from cluster_jax.runs import begin as pipeline
from cluster_jax.runs import carry, finish, measured, trainings
from cluster_jax.runs import run as records
from cluster_jax.runs.run import Run
from cluster_jax.training import build, checkpoint, loop, progress, stages
from cluster_jax.training import state as states
from cluster_jax.training.config import config_json, parse_config
from tests import toy

STEPS = 3  # of each stage
FROZEN = [f"{kind}_{i}" for kind in ("Conv", "BatchNorm") for i in range(3)]


pytestmark = pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("stages")


@pytest.fixture(scope="module")
def config(folder):
    """Rotation, supervised, NCL: three steps each, all of NCL's losses from the second one on."""
    config = toy.shrunken("ncl_digits", folder)
    config.train.update(duration=f"{STEPS} steps", checkpoint_every=2, keep_checkpoints=9)
    for stage in config.stages.values():
        stage.train.duration = f"{STEPS} steps"
    config.method.contrast_from = config.method.hng.start = "1 step"
    config.eval.reduce = "pca"
    return config


@pytest.fixture(scope="module")
def whole(folder, config):
    """Workdir and results of a run in one go."""
    return folder / "whole", pipeline.run_pipeline(config, folder / "whole")


@pytest.fixture(scope="module")
def built(config, folder):
    """The three trainings of the run, by name."""
    found = stages.build_stages(parse_config(config, "ncl"), folder / "whole", None)
    return {stage.config.name: stage for stage in found}


def final(stage):
    """State at the end of a training."""
    return checkpoint.read(
        stage.workdir / "checkpoints", build.abstract_state(stage.training), STEPS
    )


def refused(function, *arguments):
    """The one sentence of an `InputError`."""
    with pytest.raises(InputError) as error:
        function(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


# --- a run of three stages -----------------------------------------------------------------------


def test_what_a_run_leaves(whole, built):
    workdir, _ = whole
    stage = built["ncl"]
    dataset, test = stage.training.dataset, stage.test
    # A fifth of each of the four groups is held out.
    wanted = np.rint(0.2 * np.bincount(toy.images()[1])).astype(int)
    np.testing.assert_array_equal(np.bincount(test.labels), wanted)
    new = np.flatnonzero(dataset.partial_labels < 0)
    run, rows = records.read(workdir), toy.table(workdir)
    assert [int(row["image"]) for row in rows] == list(range(dataset.size))
    assert [row["class"] for row in rows] == [
        str(c) if c < 2 else f"novel {c - 2}" for c in run.labels
    ]
    np.testing.assert_array_equal(
        run.labels[dataset.partial_labels >= 0],
        dataset.labels[dataset.partial_labels >= 0],
    )
    assert "cluster" not in rows[0]
    page = (workdir / "report.html").read_text()
    assert "Novel head" in page
    novel = len(set(run.labels[new]))
    found = rf">{novel} novel class(es)?</span> in {len(new)} unlabeled images\."
    assert re.search(found, page), "the novel classes, all of them"
    for name in ("rotation", "supervised"):
        assert progress.read_log(workdir / "stages" / name)[-1]["step"] == STEPS
    assert progress.read_log(workdir)[-1]["step"] == STEPS


def test_a_finished_discovery_is_not_clustered_again(whole, config):
    assert pipeline.run_pipeline(config, whole[0]) == whole[1], "also the seconds that it took"


def test_figures_are_those_of_the_stored_features(whole, built):
    workdir, results = whole
    dataset, test = built["ncl"].training.dataset, built["ncl"].test
    found = results["metrics"]["discovery"]
    assert found["novel_classes"] == 2
    trained, tested = (
        io.read_arrays(workdir / name) for name in ("embedding.npz", "embedding_test.npz")
    )
    assert {k: v.shape for k, v in tested.items()} == {
        "backbone": (test.size, 64), "labeled": (test.size, 2), "novel": (test.size, 2),
        "labels": (test.size,),
    }  # fmt: skip
    np.testing.assert_array_equal(tested["labels"], test.labels)
    old = dataset.partial_labels >= 0
    right = trained["labeled"][old].argmax(axis=1) == dataset.labels[old]
    assert found["labeled_acc"] == pytest.approx(right.mean())
    for features, images, acc in (
        (trained, dataset, found["novel"]["acc"]),
        (tested, test, found["test"]["novel_acc"]),
    ):
        new = images.labels >= 2
        hits = (features["novel"][new].argmax(axis=1) + 2 == images.labels[new]).mean()
        assert acc == pytest.approx(max(hits, 1 - hits))  # two classes can be named in two ways
    share = old.mean()
    mean = share * found["labeled_acc"] + (1 - share) * found["novel"]["acc"]
    assert found["all_acc"] == pytest.approx(mean)
    assert 0.5 <= found["kmeans_before_acc"] <= 1
    assert 0 <= found["test"]["all_acc"] <= 1


def test_an_unlabeled_image_in_a_known_class_is_wrong(whole):
    """Whichever class that is: its number is that of no novel class."""
    run = records.read(whole[0])
    row = np.flatnonzero(~run.has_class)[0]
    before = whole[1]["metrics"]["discovery"]["novel"]
    for known in range(2):
        now = carry.corrected(run, {"labels": {str(row): known}})
        now = measured.measured(now).results["metrics"]["discovery"]
        is_unlabeled = ~run.has_class
        novel = np.delete(run.labels[is_unlabeled], 0)
        truth = np.delete(run.truth[is_unlabeled], 0)
        right = partition.accuracy(truth, novel) * len(novel)
        assert now["novel"]["acc"] == pytest.approx(right / is_unlabeled.sum())
        assert now["novel"]["n_clusters"] == before["n_clusters"]
        assert set(now["novel"]["matching"]) <= {"0", "1"}
    merges = [[novel, 1] for novel in np.unique(run.labels[~run.has_class]).tolist()]
    now = measured.measured(carry.corrected(run, {"merges": merges}))
    now = now.results["metrics"]["discovery"]
    assert now["novel"]["n_clusters"] == 0
    assert now["all_acc"] == pytest.approx(run.has_class.mean() * now["labeled_acc"])


def test_embedding_before_is_that_of_the_weights_at_the_border(whole, built):
    workdir, _ = whole
    stage = built["supervised"]
    state = final(stage)
    wanted = stages.embed_all(stage, stage.training.dataset, state)
    before, after = (
        io.read_arrays(workdir / name) for name in ("embedding_before.npz", "embedding.npz")
    )
    for name in ("backbone", "labeled"):
        np.testing.assert_allclose(before[name], wanted[name], rtol=1e-5, atol=1e-6)
    assert np.abs(before["backbone"] - after["backbone"]).max() > 1e-3


def test_frozen_blocks_are_the_same_before_and_after(built):
    """Those of rotation to the last bit, parameters and statistics; the other blocks move."""
    rotation, supervised, ncl = (final(built[name]) for name in ("rotation", "supervised", "ncl"))
    first = build.initial_state(built["rotation"].training)
    for get in (lambda s: s.params["backbone"], lambda s: s.model_state.batch_stats["backbone"]):
        for module in get(ncl):
            kept = [
                all(np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, pair), strict=True))
                for pair in (
                    (get(first)[module], get(rotation)[module]),
                    (get(rotation)[module], get(supervised)[module]),
                    (get(supervised)[module], get(ncl)[module]),
                )
            ]
            assert kept == [False, *([module in FROZEN] * 2)], module
    toy.assert_same(
        jax.tree.map(np.shape, supervised.params["heads"]["labeled"]),
        jax.tree.map(np.shape, ncl.params["heads"]["labeled"]),
    )


def test_resume_is_bit_exact_in_each_stage_and_at_a_border(whole, config, tmp_path, monkeypatch):
    """Killed within stage 2, before the first checkpoint of stage 3, and within stage 3."""
    step, said = loop.make_step, []
    monkeypatch.setattr(trainings, "say", said.append)

    def killed(after):
        """A process that is gone before this many steps of all stages are made."""
        calls = []

        def make(*arguments):
            function = step(*arguments)

            def stepped(*values):
                calls.append(1)
                if len(calls) == after:
                    raise KeyboardInterrupt
                return function(*values)

            return stepped

        monkeypatch.setattr(loop, "make_step", make)
        with pytest.raises(KeyboardInterrupt):
            pipeline.run_pipeline(config, tmp_path / "run")

    def saved():
        folders = (tmp_path / "run").rglob("checkpoints/[0-9]")
        return sorted(str(f.relative_to(tmp_path / "run")) for f in folders)

    def taken():
        found = [line.split(";")[0] for line in said if " starts from " in line]
        said.clear()
        return found

    run = tmp_path / "run"
    two = [f"stages/{name}/checkpoints" for name in ("rotation", "supervised")]
    supervised = "supervised starts from rotation: took backbone"
    discovers = "run starts from supervised: took backbone, head labeled"
    killed(STEPS + 3)
    assert saved() == [f"{two[0]}/2", f"{two[0]}/3", f"{two[1]}/2"]
    assert taken() == [supervised]
    assert not (run / "embedding_before.npz").exists()
    killed(1 + 1)
    assert saved() == [f"{name}/{i}" for name in two for i in (2, 3)]
    assert taken() == [discovers]
    before = io.read_arrays(run / "embedding_before.npz")
    killed(3)
    assert saved()[:1] == ["checkpoints/2"]
    assert taken() == [discovers]
    monkeypatch.setattr(loop, "make_step", step)
    results = pipeline.run_pipeline(config, run)
    assert taken() == []
    assert results["metrics"] == whole[1]["metrics"]
    for name in ("embedding_before.npz", "embedding.npz", "embedding_test.npz"):
        toy.assert_same(io.read_arrays(run / name), io.read_arrays(whole[0] / name))
    toy.assert_same(*(records.read(path).labels for path in (run, whole[0])))
    toy.assert_same(before, io.read_arrays(run / "embedding_before.npz"))
    parsed = parse_config(config)
    for one, other in zip(
        *(stages.build_stages(parsed, workdir, None) for workdir in (run, whole[0])), strict=True
    ):
        a, b = final(one), final(other)
        assert int(a.step) == STEPS
        toy.assert_same(*(s._replace(key=jax.random.key_data(s.key)) for s in (a, b)))
        losses = [[r["loss"] for r in progress.read_log(s.workdir)] for s in (one, other)]
        assert losses[0] == losses[1]


def test_new_images_get_the_classes_of_the_run(whole, built, tmp_path):
    """A training image its own; known classes by name."""
    workdir, _ = whole
    dataset = built["ncl"].training.dataset
    np.save(tmp_path / "x.npy", dataset.fetch(np.arange(dataset.size)))
    said, _ = predictions.predict(workdir, tmp_path / "x.npy", tmp_path / "p.csv")
    rows = toy.table(tmp_path, "p.csv")
    classes = records.read(workdir).labels
    names = io.read_json(workdir / "images.json")["known"]["names"]
    assert len(names) == 2
    wanted = [names[c] if c < 2 else f"novel {c - 2}" for c in classes]
    assert [row["class"] for row in rows] == wanted
    assert {row["is_novel"] for row in rows} == {"0"}
    count = len(set(wanted))
    assert (
        f"Assigned {dataset.size} images to {count} classes; 0 are unlike all images of the run"
        in said
    )
    np.save(tmp_path / "x.npy", 255 - dataset.fetch(np.arange(9)))
    predictions.predict(workdir, tmp_path / "x.npy", tmp_path / "p.csv")
    assert "1" in {row["is_novel"] for row in toy.table(tmp_path, "p.csv")}


# --- what a training takes from the one before ---------------------------------------------------


def test_start_takes_what_has_the_same_name_and_shapes(built):
    state = build.initial_state(built["ncl"].training)
    source = final(built["supervised"])
    heads = source.params["heads"] | {"spare": source.params["heads"]["labeled"]}
    params = {**source.params, "heads": heads, "projector": {"kernel": np.ones(2)}}
    weights = stages.Weights("first", params, source.model_state.batch_stats)
    started, said = stages.start_from(state, weights, "second")
    assert said == (
        "second starts from first: took backbone, head labeled; new: head novel; "
        "left: projector, head spare"
    )
    toy.assert_same(started.params["backbone"], source.params["backbone"])
    toy.assert_same(started.model_state.batch_stats, source.model_state.batch_stats)
    toy.assert_same(started.params["heads"]["labeled"], source.params["heads"]["labeled"])
    toy.assert_same(started.params["heads"]["novel"], state.params["heads"]["novel"])
    assert set(started.params) == {"backbone", "heads"}
    toy.assert_same(started.model_state.unlabeled, state.model_state.unlabeled)
    toy.assert_same(started.opt, state.opt)
    assert int(started.step) == 0


def test_start_leaves_a_head_of_other_classes(built):
    """The same name with three classes in place of two is another head."""
    state = build.initial_state(built["ncl"].training)
    source = final(built["supervised"])
    other = {"kernel": np.ones((64, 3), np.float32), "bias": np.ones(3, np.float32)}
    weights = stages.Weights(
        "first", {**source.params, "heads": {"labeled": other}}, source.model_state.batch_stats
    )
    started, said = stages.start_from(state, weights, "second")
    assert said.endswith("took backbone; new: head labeled, head novel; left: head labeled")
    toy.assert_same(started.params["heads"], state.params["heads"])


def test_stages_of_different_backbones(config, folder):
    changed = config.copy_and_resolve_references()
    with changed.stages.unlocked():
        changed.stages.rotation.network = {"width": 2, "frozen": None}
    said = refused(stages.build_stages, parse_config(changed), folder / "whole", None)
    assert said == (
        "rotation uses a different backbone from supervised; give both the same network section"
    )


def test_a_moving_average_starts_as_what_it_follows():
    """And no buffer is in a state twice, or in the source: a step donates its state."""

    def arrays(value, *parts):
        return {part: {"x": jnp.full(i, value)} for i, part in enumerate(parts, start=2)}

    old = Target(arrays(1.0, "backbone", "projector"), arrays(1.0, "backbone", "projector"))
    parts = arrays(2.0, "backbone", "projector", "predictor")
    state = states.State(
        jnp.zeros((), jnp.int32), jax.random.key(0), parts,
        MoCoState(parts, old, jnp.full(3, 7.0)), (),
    )  # fmt: skip
    source = arrays(3.0, "backbone", "projector", "predictor"), arrays(4.0, *parts)
    started, said = stages.start_from(state, stages.Weights("first", *source), "second")
    assert said == "second starts from first: took backbone, projector, predictor"
    params, stats = source
    toy.assert_same(started.params, params)
    target = Target(*({p: tree[p] for p in ("backbone", "projector")} for tree in source))
    toy.assert_same(started.model_state, MoCoState(stats, target, np.full(3, 7, np.float32)))
    buffers = [
        leaf.unsafe_buffer_pointer()
        for leaf in jax.tree.leaves(((started.params, started.model_state), source))
    ]
    assert len(set(buffers)) == len(buffers)


# --- the configs of stages -----------------------------------------------------------------------


def test_a_stage_differs_in_the_keys_that_it_names(config):
    last = parse_config(config)
    assert list(last.stages) == ["rotation", "supervised"]
    rotation, supervised = last.stages.values()
    assert rotation.method.name == "rotation"
    assert rotation.network == dataclasses.replace(last.network, frozen=None)
    assert supervised.network == last.network
    assert supervised.network.frozen == "conv3"
    assert rotation.train.labeled_batch_size is None
    assert rotation.train.batch_size == supervised.train.labeled_batch_size == 16
    for stage in (rotation, supervised):
        assert stage.stages == {}
        assert stage.init_from is None
        assert stage.novel == last.novel
    assert parse_config({**config_json(config), "stages": {}}).stages == {}


@pytest.mark.parametrize(
    "section", ["data", "novel", "seed", "eval", "init_from", "stages", "nets"]
)
def test_a_section_that_a_stage_cannot_change(config, section):
    changed = {"one": {"method": {"name": "rotation"}, section: {}}}
    said = refused(parse_config, {**config_json(config), "stages": changed})
    assert said.startswith(f"stages.one.{section} cannot differ in a stage; choose from ")
    assert "train" in said


def test_a_stage_without_a_method(config):
    values = {**config_json(config), "stages": {"one": {"train": {"duration": "1 step"}}}}
    assert refused(parse_config, values) == "missing config key stages.one.method"


def test_an_unknown_key_of_a_stage(config):
    values = config_json(config)
    values["stages"]["rotation"]["train"]["length"] = 3
    said = refused(parse_config, values)
    assert said.startswith("in stages.rotation: unknown config key train.length; valid keys: ")


# --- init_from -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def simclr(folder, config):
    """What a run of another method leaves, with the same backbone and a projector."""
    made = toy.config(config.data.dir, network=toy.CONVOLUTIONS, train={"duration": "2 steps"})
    made.seed = 5
    built = build.build_run(parse_config(made))
    workdir = folder / "simclr"
    saved = checkpoint.Checkpoints(workdir / "checkpoints", keep=1)
    saved.save(build.initial_state(built.training), 2)
    saved.close()
    io.write_json(workdir / "config.json", config_json(made))
    io.write_json(workdir / "images.json", build.describe_images(built.inputs))
    return workdir


def test_a_run_from_a_finished_run(whole, built, config, tmp_path, caplog):
    """It starts from the end of the other's last stage."""
    caplog.set_level("INFO")
    made = config.copy_and_resolve_references()
    made.stages = {}
    made.init_from = str(whole[0])
    pipeline.run_pipeline(made, tmp_path / "run")
    assert f"run starts from {whole[0]}: took backbone, head labeled, head novel\n" in caplog.text
    before = io.read_arrays(tmp_path / "run" / "embedding_before.npz")
    toy.assert_same(before, io.read_arrays(whole[0] / "embedding.npz"))
    source = final(built["ncl"])
    last = checkpoint.read(
        tmp_path / "run" / "checkpoints", build.abstract_state(built["ncl"].training), STEPS
    )
    for module in FROZEN:
        toy.assert_same(last.params["backbone"][module], source.params["backbone"][module])
    assert not np.array_equal(
        last.params["heads"]["novel"]["bias"], source.params["heads"]["novel"]["bias"]
    )


def test_init_from_a_run_of_another_network(simclr, config, tmp_path):
    made = config.copy_and_resolve_references()
    made.stages = {}
    made.init_from = str(simclr)
    made.network.width = 2
    said = refused(pipeline.run_pipeline, made, tmp_path / "run")
    assert said == (
        f"{simclr} uses a different backbone from run; give both the same network section"
    )
    assert not (tmp_path / "run").exists()


def test_init_from_what_is_no_finished_run(simclr, tmp_path):
    said = refused(trainings.read_weights, tmp_path)
    assert said == f"init_from must be the workdir of a finished run; got {tmp_path}"
    for name in ("config.json", "images.json"):
        (tmp_path / name).write_bytes((simclr / name).read_bytes())
    said = refused(trainings.read_weights, tmp_path)
    assert said.startswith(f"there is no checkpoint {tmp_path}/checkpoints/2")


# --- figures by hand -----------------------------------------------------------------------------


def logits(*classes):
    """Of three classes, the highest of the one given."""
    return np.eye(3)[list(classes)] - 0.5


def corners(*numbers):
    """Unit vectors: the same number is the same one."""
    return np.eye(6, dtype=np.float32)[list(numbers)]


TRAIN = NetworkOutputs(
    features=corners(0, 1, 1, 2, 2, 3, 3, 4),
    labeled_logits=logits(0, 1, 0, 2, 2, 2, 2, 2)[:, :2],
    novel_logits=logits(2, 2, 2, 1, 1, 0, 0, 1),
    true_labels=np.array([0, 1, 1, 2, 2, 3, 3, 3], np.int32),
)
KNOWN = np.array([0, 1, 1, -1, -1, -1, -1, -1], np.int32)
TEST = NetworkOutputs(
    features=corners(1, 0, 2, 3, 4, 4),
    labeled_logits=logits(1, 1, 0, 0, 0, 0)[:, :2],
    novel_logits=logits(0, 0, 2, 2, 1, 2),
    true_labels=np.array([1, 0, 2, 2, 3, 3], np.int32),
)


def discover(train=TRAIN, before=None, test=None, scores=None):
    return discovery.discover(train, KNOWN, before, test, scores=scores, n_init=2, seed=0)


def test_figures_by_hand():
    # Three groups of the unlabeled images: 3; 4, 5 and 6; 7.
    before = corners(0, 0, 0, 0, 5, 5, 5, 1)
    found = discover(before=before, test=TEST)
    # The given class of a labeled image, not what its head says (0 for image 2).
    np.testing.assert_array_equal(found.classes, [0, 1, 1, 3, 3, 2, 2, 3])
    assert found.classes.dtype == np.int32
    metrics = found.metrics
    assert metrics["novel_classes"] == 3
    assert metrics["confidence"] == pytest.approx(np.e / (np.e + 2))
    assert metrics["novel"]["acc"] == pytest.approx(4 / 5)
    assert metrics["labeled_acc"] == pytest.approx(2 / 3)
    assert metrics["all_acc"] == pytest.approx((2 + 4) / 8)
    assert metrics["kmeans_before_acc"] == pytest.approx(3 / 5)
    # Novel: columns 2, 2, 1, 2 of classes 2, 2, 3, 3. Labeled: column 1 of classes 1 and 0.
    # Among all: of the same corners the classes 1, 0, 3, 2, 3, 3; 3 is class 2 and 2 class 3 by the
    # training images: 1, 0, 2, 3, 2, 2, of 1, 0, 2, 2, 3, 3.
    assert metrics["test"] == pytest.approx(
        {"novel_acc": 3 / 4, "labeled_acc": 1 / 2, "all_acc": 3 / 6}
    )


def test_the_threshold_of_novelty_is_that_of_all_training_images():
    """Of the unlabeled ones alone, each of which has an equal here, it would be 0."""
    features = corners(0, 1, 2, 3, 3, 4, 4, 4)
    found = discover(TRAIN._replace(features=features)).novelty_threshold
    assert found == placing.novelty_threshold(features) == pytest.approx(1)
    assert placing.novelty_threshold(features[KNOWN < 0]) == 0


def test_the_confidence_is_that_of_the_head_whatever_scores_decide():
    """Scores, as those of label spreading, are no logits: they only say the classes."""
    scores = np.float32([[0, 1], [1, 0], [0, 1], [1, 0], [0, 1]])
    plain, scored = discover(), discover(scores=scores)
    np.testing.assert_array_equal(scored.classes[KNOWN < 0], 2 + scores.argmax(axis=1))
    assert (plain.classes != scored.classes).any()
    assert scored.metrics["confidence"] == plain.metrics["confidence"] != pytest.approx(0.73, 0.1)


def test_without_labels_of_the_unlabeled():
    found = discover(
        TRAIN._replace(true_labels=None), TRAIN.features, TEST._replace(true_labels=None)
    )
    np.testing.assert_array_equal(found.classes, [0, 1, 1, 3, 3, 2, 2, 3])
    metrics = found.metrics
    assert metrics["labeled_acc"] == pytest.approx(2 / 3)
    assert metrics["novel"].pop("n_clusters") == 2
    assert set(metrics["novel"].values()) == {None}
    assert {metrics[k] for k in ("all_acc", "kmeans_before_acc", "test")} == {None}
    # Also of the held-out images alone.
    metrics = discover(test=TEST._replace(true_labels=None)).metrics
    assert metrics["all_acc"] is not None
    assert metrics["test"] is None


def test_a_new_image_is_judged_by_its_fifteen_nearest():
    """The nearest is of known class 0; the fourteen after it, hardly farther, are of class 1."""
    angles = np.array([0.100, *np.linspace(0.101, 0.11, 14), 3.0, 3.1], np.float32)
    known = np.array([0, *[1] * 14, -1, -1], np.int32)
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    outputs = {"labeled_logits": np.zeros((17, 2)), "novel_logits": logits(*[0] * 17)}
    train = NetworkOutputs(rows, true_labels=np.where(known < 0, 2, known), **outputs)
    test = NetworkOutputs(
        np.float32([[1, 0], [-1, 0]]), np.zeros((2, 2)), logits(0, 0), np.array([1, 2])
    )
    found = discovery.discover(train, known, None, test, scores=None, n_init=1, seed=0)
    # The other image has the two novel ones nearest; its other thirteen voters are far away.
    assert found.metrics["test"]["all_acc"] == 1


def test_the_heads_answers_are_spread_over_the_neighbors_of_the_data_set_too():
    """Of the unlabeled images alone; those among all images are renumbered."""
    nearest = np.array([[1, 2], [0, 2], [0, 1], [7, 0], [6, 1], [3, 4], [4, 3], [3, 2]])
    train = TRAIN._replace(novel_logits=4 * np.random.default_rng(0).normal(size=(8, 2)))
    odds = special.softmax(train.novel_logits[3:], axis=1)
    spread = discovery.spread_probabilities(train, KNOWN, nearest)
    others = np.array([[4, -1], [3, -1], [0, 1], [1, 0], [0, -1]])
    np.testing.assert_array_equal(spread, label_spreading(odds, train.features[3:], others))
    alone = discovery.spread_probabilities(train, KNOWN, None)
    np.testing.assert_array_equal(alone, label_spreading(odds, train.features[3:], None))
    assert np.abs(spread - alone).max() > 0.01


def test_an_undecided_head_is_told():
    """Of three classes, from a quarter of the way from 1/3 to 1; labeled images do not count."""
    for highest, undecided in ((0.51, False), (0.49, True)):
        odds = np.full((8, 3), (1 - highest) / 2)
        odds[:, 1], odds[:3] = highest, [1, 1e-9, 1e-9]
        metrics = discover(TRAIN._replace(novel_logits=np.log(odds))).metrics
        assert metrics["confidence"] == pytest.approx(highest)
        assert metrics["undecided"] == undecided
        assert ("the novel head is undecided" in printed(metrics)) == undecided


def test_empty_novel_classes_are_told():
    """One class for all images with certainty is the other way to find nothing."""
    alike = discover(TRAIN._replace(novel_logits=12 * logits(*[1] * 8))).metrics
    assert alike["confidence"] > 0.99
    assert "the novel head uses 1 of its 3 classes: the clusters may be" in printed(alike)
    # Class 0, 1 and 2 have an image each at least; those of TRAIN have none of 2 unlabeled.
    spread = discover(TRAIN._replace(novel_logits=9 * logits(0, 0, 0, 0, 1, 2, 0, 1))).metrics
    assert "the novel head" not in printed(spread)


def test_k_means_has_the_number_of_novel_classes(config):
    values = config_json(config)
    values["eval"]["kmeans"]["n_clusters"] = None
    run = Run("training", epath.Path("nowhere"), values, {"known": None})
    discovering = dataclasses.replace(run, images={"known": {"images": 8, "classes": 2}})
    assert finish._with_n_classes(parse_config(values), discovering).kmeans.n_clusters == 2
    assert finish._with_n_classes(parse_config(values), run).kmeans.n_clusters is None
    values["eval"]["kmeans"]["n_clusters"] = 3
    assert finish._with_n_classes(parse_config(values), discovering).kmeans.n_clusters == 3


def printed(found):
    """What is printed at the end of a run with these figures of a discovery."""
    row = {"n_clusters": 3, "clear": None} | dict.fromkeys(("acc", "nmi", "ari", "ami"))
    metrics = {"gridshift": row, "kmeans": row, "knn": {}, "linear_probe": None}
    counts = {"gridshift": "found", "kmeans": "given"}
    origin = {"number_of_clusters": counts, "data": {"name": "digits"}}
    return summary.run_table(
        {"metrics": metrics | {"discovery": found}, "provenance": origin, "images_per_second": None}
    )


def test_labels_of_labeled_images_change_no_novel_figure():
    """And labels of the unlabeled ones change no class."""
    first = discover()
    labels = TRAIN.true_labels.copy()
    labels[:3] = [1, 0, 0]
    assert discover(TRAIN._replace(true_labels=labels)).metrics == first.metrics
    labels[3:] = [2, 3, 2, 3, 2]
    other = discover(TRAIN._replace(true_labels=labels))
    np.testing.assert_array_equal(other.classes, first.classes)
    assert other.metrics["novel"]["acc"] != first.metrics["novel"]["acc"]
