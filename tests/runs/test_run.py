"""A whole run: what it leaves, how it resumes, and what it refuses."""

import dataclasses
import itertools
import json
import shutil
import threading

import jax
import numpy as np
import pytest

from cluster_jax.clustering.tree import linkage_of_clusters
from cluster_jax.core import arrays, io
from cluster_jax.core import mesh as meshes
from cluster_jax.core.checks import InputError
from cluster_jax.encoding import embed
from cluster_jax.methods import base
from cluster_jax.metrics import ProbeSettings, linear_probe
from cluster_jax.runs import begin as pipeline
from cluster_jax.runs import claims, provenance, trainings
from cluster_jax.runs import run as records
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.run import Run
from cluster_jax.runs.states import correct, undo
from cluster_jax.training import build, checkpoint, loop, progress, watch
from cluster_jax.training import state as states
from cluster_jax.training.checkpoint import Checkpoints
from cluster_jax.training.config import config_json, parse_config
from tests import toy

pytestmark = pytest.mark.usefixtures("two_devices", "traced_once", "compiled_once")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, two_devices, traced_once, compiled_once):
    """A finished run with all that a state can have: its config, workdir and results."""
    folder = tmp_path_factory.mktemp("finished")
    config = toy.config(toy.file(folder), nrcc={"weight": 0.5})
    toy.byol(config)
    return config, folder / "run", pipeline.run_pipeline(config, folder / "run", "toy")


def _arrays(state):
    return jax.device_get(state._replace(key=jax.random.key_data(state.key)))


def _restored(run, workdir):
    saved = Checkpoints(workdir / "checkpoints", keep=2)
    state = saved.restore(build.initial_state(run))
    saved.close()
    return state


def _final(config, workdir):
    return _arrays(_restored(toy.built(config), workdir))


def _train(run, workdir, embed=None):
    return loop.train(run, build.initial_state(run), workdir=workdir, embed=embed)


def _replace_step(monkeypatch, stepped):
    """Trains by `stepped(number, step, state, batch, resident)` in place of the step."""
    make = loop.make_step

    def made(*arguments):
        step, numbers = make(*arguments), itertools.count(1)
        return lambda *values: stepped(next(numbers), step, *values)

    monkeypatch.setattr(loop, "make_step", made)


def _as_it_was(state, loss=1.0):
    """What a step returns, of one that changes nothing: a loop is tested without its program."""
    ones = {"loss": np.float32(loss), "gradient_norm": np.float32(1)}
    return state._replace(step=state.step + 1), ones


def _statistics(config):
    """Mean and standard deviation of images for the section `augment` of a config of others.

    They are constants of the step: where they are those of other tests, so is the program.
    """
    augment = build.build_run(parse_config(config)).config.augment
    return {"mean": augment.mean, "std": augment.std}


def test_what_a_run_leaves(finished):
    config, workdir, results = finished
    told = io.read_json(workdir / "results.json")
    assert {key: told[key] for key in results} == results
    assert told["config"] == config_json(config)
    metrics = results["metrics"]
    for name in ("gridshift", "kmeans"):
        assert metrics[name].keys() >= {"n_clusters", "acc", "nmi", "ari", "ami"}
    assert 0 <= metrics["knn"]["5"] <= 1
    assert 0 < metrics["gradient_share"] < 1
    assert results["images_per_second"] > 0
    assert results["provenance"]["number_of_clusters"] == {"gridshift": "found", "kmeans": "given"}
    assert results["provenance"]["labels_used_for"][0] == "scoring"
    rows = toy.table(workdir)
    assert [int(r["image"]) for r in rows] == list(range(64))
    assert {int(r["cluster"]) for r in rows} == set(range(metrics["gridshift"]["n_clusters"]))
    run = records.read(workdir)
    assert [int(r["cluster"]) for r in rows] == run.labels.tolist()
    assert [int(r["outlier"]) for r in rows] == run.outliers.tolist()
    means = arrays.cluster_means(run.features, run.labels)
    wanted = np.linalg.norm(run.features - means[run.labels], axis=1)
    np.testing.assert_allclose([float(r["distance"]) for r in rows], wanted, rtol=1e-4, atol=1e-6)
    wanted = linkage_of_clusters(run.features, np.arange(64), run.labels)
    np.testing.assert_array_equal(run.linkage, wanted)
    embedding = io.read_arrays(workdir / "embedding.npz")
    assert {k: v.shape for k, v in embedding.items()} == {
        "backbone": (64, 16),
        "projection": (64, 8),
        "labels": (64,),
    }
    np.testing.assert_array_equal(embedding["labels"], toy.images()[1])
    assert metrics["collapse"].keys() == {"backbone", "projection"}
    page = (workdir / "report.html").read_text()
    assert "<html" in page[:500].lower()
    assert "<title>toy.npz, toy</title>" in page
    assert [r["step"] for r in progress.read_log(workdir)] == [2, 4]
    assert list((workdir / "tensorboard").glob("events*"))
    assert io.read_json(workdir / "config.json") == config_json(config)


def test_finished_run_prints_and_trains_nothing(finished, caplog, monkeypatch):
    caplog.set_level("INFO")
    config, workdir, results = finished
    monkeypatch.setattr(build, "build_run", lambda config: pytest.fail("built again"))
    assert pipeline.run_pipeline(config, workdir, "toy") == results
    assert "is finished, and its images were not read again" in caplog.text
    config = config.copy_and_resolve_references()
    config.note = "No result depends on it."
    config.train.log_every = 3
    assert pipeline.run_pipeline(config, workdir, "toy").items() >= results.items()


def test_changed_evaluation_clusters_the_stored_embedding(finished, tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    config, workdir, _ = finished
    workdir = shutil.copytree(workdir, tmp_path / "run")
    correct(workdir, names={"0": "cats", "1": "dogs"})
    undo_command = f"`cluster-jax update --workdir={workdir} --undo`"
    monkeypatch.setattr(loop, "train", lambda *a, **k: pytest.fail("trained again"))
    changed = config.copy_and_resolve_references()
    changed.eval.bandwidth = "1e6"  # as a flag would give it
    again = pipeline.run_pipeline(changed, workdir, "toy")
    assert again["metrics"]["gridshift"]["n_clusters"] == 1
    said = f"{workdir} are of another eval.bandwidth: they are replaced, and {undo_command} brings"
    assert said in caplog.text
    assert "This no longer holds: the cluster 'cats'" in caplog.text
    before, after = records.read(workdir, 2), records.read(workdir)
    assert len(set(after.labels)) == 1
    (now,) = set(after.labels.tolist())
    sizes = np.bincount(before.labels)
    assert now == (sizes.argmax() if 2 * sizes.max() >= 64 else before.next_label)
    undo(workdir)
    assert records.read(workdir).labels.tolist() == before.labels.tolist()
    assert io.read_json(workdir / "config.json") == config_json(config)


def test_what_is_needed_without_the_images(finished):
    """The functions made again from the files are those that were trained."""
    config, workdir, _ = finished
    pixels = toy.images()[0]
    images = io.read_json(workdir / "images.json")
    assert images["shape"] == [8, 8, 1]
    assert images["mean"] == pytest.approx([pixels.mean() / 255])
    assert images["std"] == pytest.approx([pixels.std() / 255])
    run = toy.built(config)
    rebuilt = build.rebuild_run(trainings.read_config(workdir), images)
    again = rebuilt.training
    assert (again.seed, again.total_steps, again.train) == (run.seed, run.total_steps, run.train)
    assert list(rebuilt.config.augment.mean) == images["mean"]
    state = _restored(run, workdir)
    expected = run.embed(state.params, state.model_state, pixels)
    toy.assert_same(expected, again.embed(state.params, state.model_state, pixels))
    with pytest.raises(LookupError, match="a rebuilt run has no images"):
        again.dataset.fetch(np.arange(2))


def test_config_of_an_older_version(finished, tmp_path):
    values = io.read_json(finished[1] / "config.json")
    del values["train"]["batch_size"]
    io.write_json(tmp_path / "config.json", values)
    message = r"older version of cluster_jax \(missing config key train.batch_size\)"
    with pytest.raises(InputError, match=message):
        trainings.read_config(tmp_path)


def test_images_in_hand(finished, monkeypatch):
    """A data set that is given is trained on, and a finished run has to be of that set."""
    config, workdir, results = finished
    dataset = toy.built(config).dataset
    monkeypatch.setattr(build.datasets, "load", lambda config: pytest.fail("loaded"))
    assert pipeline.run_pipeline(config, workdir, "toy", dataset) == results
    other = dataset._replace(images=255 - dataset.images)
    with pytest.raises(InputError, match=r"images.* have changed"):
        pipeline.run_pipeline(config, workdir, "toy", other)


def test_resume_is_bit_exact(finished, tmp_path, monkeypatch):
    """Stopped in the middle and run again: the same state as in one go, and the same log."""
    config, whole, results = finished

    def killed(number, step, *values):
        if number == 4:
            raise KeyboardInterrupt
        return step(*values)

    with monkeypatch.context() as patch:
        _replace_step(patch, killed)
        with pytest.raises(KeyboardInterrupt):
            pipeline.run_pipeline(config, tmp_path / "parts")
    assert not (tmp_path / "parts" / "results.json").exists()
    again = pipeline.run_pipeline(config, tmp_path / "parts")
    assert again["metrics"] == results["metrics"]
    one, other = (_final(config, workdir) for workdir in (whole, tmp_path / "parts"))
    assert one.step == 4
    toy.assert_same(one, other)
    losses = [[r["loss"] for r in progress.read_log(w)] for w in (whole, tmp_path / "parts")]
    assert losses[0] == losses[1]


def test_checkpoints_are_not_touched_by_later_steps(tmp_path):
    """Saving is asynchronous and the step donates its state: the copy must be made in between."""
    config = toy.config(toy.file(tmp_path), train={"checkpoint_every": 1, "keep_checkpoints": 9})
    run = toy.built(config)
    _train(run, tmp_path / "run")
    states_at = []
    for stop in (1, 3):
        short = run._replace(total_steps=stop)
        states_at.append(_arrays(_train(short, tmp_path / f"to{stop}")))
    for stop, state in zip((1, 3), states_at, strict=True):
        target = build.abstract_state(run)
        saved = checkpoint.read(tmp_path / "run" / checkpoint.FOLDER, target, stop)
        toy.assert_same(state, _arrays(saved))


def test_steps_that_are_not_finite(tmp_path, monkeypatch):
    """Three in a row stop the training; the message names the first and what is saved."""
    config = toy.config(toy.file(tmp_path), train={"duration": "8 steps"})

    def poisoned(number, step, state, *values):
        return _as_it_was(state, np.nan if 5 <= number <= 7 else 1.0)

    _replace_step(monkeypatch, poisoned)
    said = r"infinity in 3 steps in a row from step 5: start again in another folder"
    with pytest.raises(progress.NotFinite, match=said):
        pipeline.run_pipeline(config, tmp_path / "run")
    assert sorted(p.name for p in (tmp_path / "run" / "checkpoints").glob("[0-9]*")) == ["4", "6"]


def test_streamed_equals_resident(tmp_path):
    resident = toy.config(toy.file(tmp_path), data={"cache_mb": 100.0})
    streamed = toy.config(toy.file(tmp_path), data={"cache_mb": 0.0})
    assert toy.built(streamed).dataset.images is None
    a, b = (
        pipeline.run_pipeline(resident, tmp_path / "a"),
        pipeline.run_pipeline(streamed, tmp_path / "b"),
    )
    toy.assert_same(_final(resident, tmp_path / "a"), _final(streamed, tmp_path / "b"))
    assert a["metrics"]["kmeans"] == b["metrics"]["kmeans"]


def test_without_labels(tmp_path):
    pixels, _ = toy.images()
    np.savez(tmp_path / "bare.npz", images=pixels)
    config = toy.config(tmp_path / "bare.npz")
    results = pipeline.run_pipeline(config, tmp_path / "run")
    metrics = results["metrics"]
    assert metrics["gridshift"]["acc"] is metrics["kmeans"]["nmi"] is None
    assert metrics["knn"] == {"5": None}
    assert metrics["linear_probe"] is None
    assert metrics["kmeans"]["n_clusters"] == metrics["gridshift"]["n_large"]
    assert results["provenance"]["labels_used_for"] == []


def test_the_linear_probe_is_scored_on_the_test_images(tmp_path):
    augment = _statistics(toy.config(toy.file(tmp_path)))
    config = toy.config(toy.file(tmp_path), novel={"holdout": 0.25}, augment=augment)
    run = build.build_run(parse_config(config))
    results = pipeline.run_pipeline(config, tmp_path / "run")
    train, test = (
        io.read_arrays(tmp_path / "run" / name)["projection"]
        for name in (workdirs.TRAIN_EMBEDDING, workdirs.TEST_EMBEDDING)
    )
    assert (len(train), len(test)) == (run.training.dataset.size, run.test.size)
    found = linear_probe(
        train,
        run.training.dataset.labels,
        settings=ProbeSettings(**config_json(config)["eval"]["linear_probe"]),
        test=(test, run.test.labels),
    )
    assert results["metrics"]["linear_probe"] == found[1]
    assert results["metrics"]["linear_probe_top_5"] is None, "there are four classes"
    assert results["provenance"]["images_scored"] == len(train)


def test_the_choice_of_classes_is_a_use_of_labels(tmp_path):
    config = parse_config(toy.config(toy.file(tmp_path), data={"classes": (3, 0, 2)}))
    truth = build.build_run(config).training.dataset.labels
    run = Run("training", tmp_path, config.values, {}, source={"ignored": {}}, truth=truth)
    found = provenance.describe(run, config.eval, 4)
    assert found["labels_used_for"][1] == "the choice of the images of 3 classes"


@pytest.mark.parametrize("cache_mb", [1.0, 0.0])
def test_planted_duplicates_are_found(tmp_path, cache_mb):
    """In the table, the results and the report, also for images that are streamed."""
    augment = _statistics(toy.config(toy.file(tmp_path)))
    pixels, labels = toy.images()
    pixels[[9, 50]] = pixels[4]
    np.savez(tmp_path / "toy.npz", images=pixels, labels=labels)
    config = toy.config(tmp_path / "toy.npz", data={"cache_mb": cache_mb}, augment=augment)
    results = pipeline.run_pipeline(config, tmp_path / "run", "toy")
    rows = toy.table(tmp_path / "run", "duplicates.csv")
    found = [(row["image"], row["similarity"]) for row in rows if row["kind"] == "exact"]
    assert found == [("4", "1"), ("9", "1"), ("50", "1")]
    assert results["duplicates"]["exact_images"] == 3
    assert 'id="duplicates"' in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(("devices", "cache_mb"), [(2, 100.0), (2, 0.0), (1, 100.0)])
def test_no_label_reaches_a_training_step(tmp_path, monkeypatch, devices, cache_mb):
    """Several CPU devices share a memory: nothing is resident on them, but the set on one."""
    seen = []
    monkeypatch.setattr(meshes, "make", lambda make=meshes.make: make(devices))

    def watched(number, step, state, batch, resident):
        seen.append((set(batch), resident if resident is None else resident.shape))
        return _as_it_was(state)

    _replace_step(monkeypatch, watched)
    config = toy.config(toy.file(tmp_path), data={"cache_mb": cache_mb})
    _train(toy.built(config), tmp_path / "run")
    taken = ({"index"}, (64, 8, 8, 1)) if devices == 1 else ({"index", "image"}, None)
    assert seen == [taken] * 4


def test_the_step_is_traced_once(tmp_path):
    traces = []
    built = toy.built(toy.config(toy.file(tmp_path)))

    def counted(*arguments):
        traces.append(1)
        return built.method.loss(*arguments)

    _train(built._replace(method=built.method._replace(loss=counted)), tmp_path / "run")
    assert len(traces) == 1


def test_the_network_is_traced_once_however_often_it_embeds(tmp_path):
    """As in each E-step of NCC: with new weights the program is the same."""
    built = toy.built(toy.config(toy.file(tmp_path)))
    traces = []

    def counted(*arguments):
        traces.append(1)
        return built.embed(*arguments)

    features = []
    for seed in (built.seed, built.seed + 1):
        state = build.initial_state(built._replace(seed=seed))
        forward = embed.forward_of(counted, state.params, state.model_state, built.mesh)
        features.append(embed.embed(forward, built.dataset, batch_size=32, mesh=built.mesh))
    assert len(traces) == 1
    assert not np.allclose(features[0]["projection"], features[1]["projection"])


def test_the_seed_draws_the_initial_weights(tmp_path):
    built = toy.built(toy.config(toy.file(tmp_path)))
    other = built._replace(seed=built.seed + 1)
    first, second = (build.initial_state(run).params["backbone"] for run in (built, other))
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    assert any(not np.array_equal(x, y) for x, y in pairs)


def test_the_last_step_is_saved(tmp_path):
    """Also where it is not a multiple of `train.checkpoint_every`."""
    built = toy.built(toy.config(toy.file(tmp_path)))
    section = dataclasses.replace(built.train, checkpoint_every=2)
    _train(built._replace(total_steps=3, train=section), tmp_path / "run")
    assert (tmp_path / "run" / checkpoint.FOLDER / "3").is_dir()


@pytest.mark.parametrize("nearest", [None, np.ones((64, 3), np.int64)], ids=["", "neighbors"])
def test_refresh_happens_between_steps(tmp_path, nearest):
    """The host's refresh gets the embedding of the whole set, and its result reaches the step."""
    built = toy.built(toy.config(toy.file(tmp_path)))
    shapes, neighbors = [], []

    def loss(params, model_state, batch, step, key, axis):
        value = sum(x.mean() for x in jax.tree.leaves(params))
        total = model_state["table"][batch["index"]].astype(value.dtype).mean()
        return value, base.Aux(model_state, {"loss": value, "table": total})

    def refresh(model_state, embedding, key, mesh):
        known = embedding()
        shapes.append(known["projection"].shape)
        neighbors.append(known.get("neighbors"))
        return {**model_state, "table": model_state["table"] + 1}

    def init(key, images):
        params, model_state = built.method.init(key, images)
        return params, {"own": model_state, "table": jax.numpy.zeros(64, np.int32)}

    method = built.method._replace(
        init=init,
        loss=loss,
        after=lambda params, model_state, step: (params, model_state),
        kept=lambda params, model_state: built.method.kept(params, model_state["own"]),
        refresh=base.Refresh(lambda step: step % 2 == 0, refresh),
    )
    section = dataclasses.replace(built.train, log_every=1)
    dataset = built.dataset._replace(nearest=nearest)
    run = built.with_method(method)._replace(train=section, dataset=dataset)

    def embed_all(state):
        forward = embed.forward_of(run.embed, state.params, state.model_state, run.mesh)
        return embed.embed(forward, run.dataset, batch_size=32, mesh=run.mesh)

    _train(run, tmp_path / "run", embed_all)
    sums = [r["table"] for r in progress.read_log(tmp_path / "run")]
    assert shapes == [(64, 8), (64, 8)]
    assert all(given is nearest for given in neighbors)
    assert sums == [1, 1, 2, 2]


def test_a_bad_step_is_skipped_and_counted(tmp_path, caplog):
    """It changes nothing but the count of steps, and the next goes on from there."""
    built = toy.built(toy.config(toy.file(tmp_path)))
    bad = built.method._replace(loss=_infinite_at(built.method.loss, 1))
    section = dataclasses.replace(built.train, log_every=50, checkpoint_every=1, keep_checkpoints=9)
    run = built._replace(method=bad, train=section)
    final = _train(run, tmp_path / "run")
    assert "step 2 skipped: its loss or gradient" in caplog.text
    (record,) = [r for r in progress.read_log(tmp_path / "run") if "skipped_steps" in r]
    assert (record["step"], record["skipped_steps"]) == (2, 1)
    first, second = (
        checkpoint.read(tmp_path / "run" / "checkpoints", build.abstract_state(run), step)
        for step in (1, 2)
    )
    toy.assert_same(_arrays(first)._replace(step=0), _arrays(second)._replace(step=0))
    assert int(final.step) == 4
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(_arrays(final)))
    found = watch.findings(progress.read_log(tmp_path / "run"), 4)
    assert [(f.kind, f.since, f.lasts) for f in found] == [("skipped", 2, False)]


def _infinite_at(loss, bad):
    def infinite(params, model_state, batch, step, key, axis):
        value, aux = loss(params, model_state, batch, step, key, axis)
        return jax.numpy.where(step == bad, np.inf, 1) * value, aux

    return infinite


def test_fewer_or_more_devices_can_resume(tmp_path):
    built = toy.built(toy.config(toy.file(tmp_path)))
    saved = checkpoint.Checkpoints(tmp_path / "c", keep=1)
    whole = build.initial_state(built)
    saved.save(whole, 3)
    saved.close()
    saved = checkpoint.Checkpoints(tmp_path / "c", keep=1)
    few = states.create(
        built.method, built.optimizer, seed=1, shape=built.shape, mesh=meshes.make(4)
    )
    found = saved.restore(few)
    saved.close()
    toy.assert_same(_arrays(whole), _arrays(found))
    assert len(jax.tree.leaves(found.params)[0].sharding.device_set) == 4


def test_interrupted_writing_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file.json"
    io.write_json(path, {"a": 1, "b": float("nan")})
    assert io.read_json(path) == {"a": 1, "b": None}
    with pytest.raises(TypeError):
        io.write_json(path, {"a": object()})
    assert io.read_json(path)["a"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"]


def test_default_workdir_depends_on_the_training_only(tmp_path):
    config = config_json(toy.config(toy.file(tmp_path)))
    changed = json.loads(json.dumps(config))
    changed["eval"]["knn"] = [1]
    assert claims.default_workdir(config, "x") == claims.default_workdir(changed, "x")
    changed["seed"] = 1
    assert claims.default_workdir(config, "x") != claims.default_workdir(changed, "x")


def test_signals_in_another_thread_are_left_alone(tmp_path):
    """A notebook may run the pipeline in a worker thread, where signals cannot be set."""
    config = toy.config(toy.file(tmp_path))
    done = []
    thread = threading.Thread(
        target=lambda: done.append(pipeline.run_pipeline(config, tmp_path / "run"))
    )
    thread.start()
    thread.join()
    assert done[0]["metrics"]["kmeans"]["n_clusters"] == 4
