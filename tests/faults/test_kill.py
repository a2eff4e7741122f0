"""Killed at any moment: the same command ends bit for bit as the run that was left alone."""

import time

import pytest

from cluster_jax.encoding import embed
from cluster_jax.runs import begin as pipeline
from cluster_jax.runs import page
from tests.faults import jobs
from tests.faults.runs import assert_same, before_step, left_by_a_kill

pytestmark = pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")
# Moments of one run, of which each test goes on from what a kill would have left.
MOMENTS = ("saving", "training", "embedding", "report")


@pytest.fixture(scope="module")
def killed(finished, tmp_path_factory, one_device, traced_once, compiled_once):
    """Moment -> what was on the disk at it."""
    folder, left = tmp_path_factory.mktemp("killed"), {}

    def kill(moment):
        left[moment] = left_by_a_kill(folder / "run", folder / moment)

    def kill_after_saving():
        while not (folder / "run" / "checkpoints" / "2").exists():
            time.sleep(0.01)
        kill("training")

    def before(module, name, moment):
        function = getattr(module, name)

        def act(*values, **named):
            kill(moment)
            return function(*values, **named)

        patch.setattr(module, name, act)

    with pytest.MonkeyPatch.context() as patch:
        before_step(patch, 3, lambda: kill("saving"))
        before_step(patch, 4, kill_after_saving)
        before(embed.Parts, "finish", "embedding")
        before(page.report, "render", "report")
        pipeline.run_pipeline(finished.config, folder / "run", "toy")
    return left


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_once(finished, killed, moment):
    """Without a second process: the disk is all that a kill leaves."""
    workdir = killed[moment]
    assert not (workdir / "results.json").exists()
    assert (workdir / "embedding.npz").exists() == (moment == "report")
    assert (workdir / "checkpoints" / "4").exists() == (moment in ("embedding", "report"))
    pipeline.run_pipeline(finished.config, workdir, "toy")
    assert_same(workdir, finished.workdir)


def test_a_process_by_sigkill(toy_config, finished, tmp_path):
    """While it trains, from outside; the config is that of the run left alone."""
    process = jobs.compiling(toy_config, tmp_path / "run")
    process.kill()
    _, said = process.communicate()
    assert process.returncode == -9, said
    assert not (tmp_path / "run" / "results.json").exists()
    pipeline.run_pipeline(finished.config, tmp_path / "run", "toy")
    assert_same(tmp_path / "run", finished.workdir)
