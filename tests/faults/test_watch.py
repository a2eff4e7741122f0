"""A training that fails without an error is told of: in the log, the results and the report."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.methods.base import Watched
from cluster_jax.runs import begin as pipeline
from cluster_jax.runs import claims
from cluster_jax.training import loop, progress, watch
from cluster_jax.training.config import config_json
from tests.methods import cases


def _records(kind, values, every=10):
    usual = {watch.GAP: 0.5, watch.SPREAD: 0.9}
    return [{**usual, "step": every * (i + 1), kind: v} for i, v in enumerate(values)]


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (watch.SPREAD, [0.9, 0.1, 0.1, 0.1], ("collapse", 20, 40, True)),
        (watch.SPREAD, [0.1, 0.1, 0.9, 0.9], ("collapse", 10, 20, False)),
        (watch.SPREAD, [0.9, 0.1, 0.9, 0.9], None),
        (watch.SPREAD, [0.9, 0.9, 0.9, 0.2], ("collapse", 40, 40, True)),
        (watch.RANK, [30.0, 2.6, 2.6, 2.6], ("collapse", 20, 40, True)),
        (watch.RANK, [30.0, 20.0, 20.0, 20.0], None),
        (watch.CLUSTERS, [9.0, 1.2, 1.2, 9.0], ("clusters", 20, 30, False)),
        (watch.GAP, [0.001, 0.3, 0.3, 0.3], None),  # every training starts there
        (watch.GAP, [0.3, 0.001, 0.001, 0.001], ("loss", 20, 40, True)),
        (watch.SPREAD, [0.9, 0.0, 0.0, 0.0], ("collapse", 20, 40, True)),
        (watch.SPREAD, [0.9, None, None, 0.9], None),
        (watch.GAP, [0.3, 0.0, 0.0, 0.0], ("loss", 20, 40, True)),
        (watch.SKIPPED, [0, 1, 0, 0], ("skipped", 20, 20, False)),
    ],
)
def test_what_the_log_shows(kind, values, expected):
    found = watch.findings(_records(kind, values), 60)
    assert [tuple(f[:4]) for f in found] == ([] if expected is None else [expected])
    assert all("\n" not in f.text and "another folder" in f.text for f in found)


def test_figures_of_a_look():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 32))
    plain = Watched(chance=("loss", np.log(31)))
    good = watch.look({"projection": rows, "backbone": None}, None, {"loss": 1.0}, plain)
    assert good[watch.SPREAD] == pytest.approx(1, abs=0.05)
    assert good[watch.RANK] > 25
    assert good[watch.GAP] > 0.5
    line = rows[:, :1] * np.ones(32) + 100
    bad = watch.look({"backbone": line}, None, {"loss": np.log(31)}, plain)
    assert bad[watch.SPREAD] < 0.1
    assert bad[watch.GAP] == 0
    assert watch.GAP not in watch.look({"backbone": line}, None, {"loss": 3.4}, Watched())


def test_the_figures_of_a_queue_and_of_pseudo_labels():
    """With the states of the methods themselves: their fields are not guessed."""
    rows = {"backbone": np.random.default_rng(0).normal(size=(200, 4))}
    run = cases.build("moco", False)
    state = cases.initial("moco", False, 3).model_state
    chance = np.log(len(state.queue.rows) + 1)
    means = {"loss": 1.001 * chance}
    values = watch.look(rows, state, means, run.method.watched)
    assert values[watch.GAP] == pytest.approx(1e-3, rel=1e-6)
    assert watch.RANK not in values
    run = cases.build("ncc", False)
    state = cases.initial("ncc", False, 3).model_state
    assert watch.CLUSTERS not in watch.look(rows, state, {}, run.method.watched)
    state = state._replace(labels=np.array([0] * 63 + [1], np.int32))
    values = watch.look(rows, state, {}, run.method.watched)
    assert values[watch.CLUSTERS] == pytest.approx(1.084, abs=1e-3)


def test_looks_are_spread_over_the_training():
    for total, log_every in ((1500, 50), (4, 2), (1000, 7), (3, 50), (100_000, 50)):
        due = [s for s in range(1, total + 1) if watch.is_due(s, total, log_every)]
        assert due[-1] == total
        assert 1 <= len(due) <= watch.LOOKS + 1


def _steps_to(params, **values):
    """In place of `make_step`: each step gives these parameters and metrics."""
    metrics = dict.fromkeys(("loss", "base_loss", "gradient_norm"), 1.0) | values

    def step(state, *batch):
        return state._replace(step=state.step + 1, params=params(state.params)), metrics

    return lambda *arguments: step


@pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")
def test_a_collapse_is_told(finished, tmp_path, monkeypatch, caplog):
    """All kernels become zero."""
    caplog.set_level("INFO")
    zeros = functools.partial(jax.tree.map, jnp.zeros_like)
    monkeypatch.setattr(loop, "make_step", _steps_to(zeros))
    results = pipeline.run_pipeline(finished.config, tmp_path / "run")
    assert results["watch"][0]["kind"] == "collapse"
    assert results["watch"][0]["lasts"]
    assert "the embedding collapses: spread" in caplog.text
    assert "watch: the embedding collapses" in caplog.text
    report = (tmp_path / "run" / "report.html").read_text()
    assert "Of the training: the embedding collapses" in report
    assert io.read_json(tmp_path / "run" / "results.json")["watch"] == results["watch"]
    assert any(r.get(watch.SPREAD) is not None for r in progress.read_log(tmp_path / "run"))


@pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")
def test_the_advice_after_nan_is_possible(finished, tmp_path, monkeypatch):
    """A lower rate is refused in that workdir, and trains in another, as the message says."""
    config = finished.config.copy_and_resolve_references()
    config.optimizer.learning_rate *= 10

    advice = "start again in another folder with a lower optimizer.learning_rate"
    workdir = tmp_path / "run"
    with monkeypatch.context() as patch:
        nan = dict.fromkeys(("loss", "base_loss", "gradient_norm"), np.nan)
        patch.setattr(loop, "make_step", _steps_to(lambda params: params, **nan))
        with pytest.raises(progress.NotFinite, match=advice):
            pipeline.run_pipeline(config, workdir)
    with pytest.raises(InputError, match=r"another optimizer.learning_rate; choose another folder"):
        pipeline.run_pipeline(finished.config, workdir)
    other = [claims.default_workdir(config_json(c), "toy") for c in (config, finished.config)]
    assert other[0] != other[1]
    results = pipeline.run_pipeline(finished.config, tmp_path / "other")
    assert results["watch"] == []
