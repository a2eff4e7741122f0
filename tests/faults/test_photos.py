"""Killed while photos are embedded or clustered, in a first run and in an update alike."""

import contextlib
import shutil

import numpy as np
import pytest

from cluster_jax.cli import images, update
from cluster_jax.encoding import embed
from cluster_jax.runs import finish
from cluster_jax.runs import run as records
from cluster_jax.runs import store as stores
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.run import Run
from tests import toy
from tests.cli.test_images import QUICK
from tests.faults.runs import left_by_a_kill

pytestmark = pytest.mark.usefixtures("one_device", "shallow_lite", "found_once")
# Photos of the run before, and new ones, which are embedded in three batches.
N_OLD, N_NEW = 24, 40
# Moment -> the function before whose call the process is killed, and which call. Then the number of
# batches that are left to embed.
MOMENTS = {
    "embedding": ((stores, "encoded", 3), 1),
    "clustering": ((finish, "next_of_images", 1), 0),
    "writing": ((Run, "write", 1), 0),
}


class Killed(BaseException):
    """Ends a call where a kill would; nothing of the package catches it."""


def command(kind, folder, run):
    """Runs the command of a folder in another workdir; returns how many batches it embeds."""
    batches, encoded = [], stores.encoded
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embed, "SECONDS", -1.0)  # Each batch is kept.
        patch.setattr(stores, "encoded", lambda pixels: batches.append(1) or encoded(pixels))
        if kind == "images":
            images.main([str(folder / "photos"), f"--workdir={run}", *QUICK, "--report=no"])
        else:
            update.main([f"--workdir={run}", "--report=no"])
    return len(batches)


def killed(kind, folder, moment):
    """What is on the disk at a moment of the command."""
    (owner, name, last), _ = MOMENTS[moment]
    calls, function, run = [], getattr(owner, name), folder / "run"

    def counted(*values):
        calls.append(1)
        if len(calls) == last:
            left_by_a_kill(run, folder / moment)
            raise Killed
        return function(*values)

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr(owner, name, counted)
        command(kind, folder, run)
    assert len(calls) == last


@pytest.fixture(scope="module", params=["images", "update"])
def made(request, tmp_path_factory, one_device, shallow_lite, found_once):
    """A folder in which `whole` is a run that nothing happened to, and others are killed ones."""
    folder, kind = tmp_path_factory.mktemp(request.param), request.param
    pixels = toy.photos(N_OLD + N_NEW)[0]
    if kind == "update":
        toy.save(folder / "photos", pixels[:N_OLD])
        command("images", folder, folder / "before")
    toy.save(folder / "photos", pixels[N_OLD:], prefix="new")
    for moment in MOMENTS:
        if kind == "update":
            shutil.copytree(folder / "before", folder / "run")
        killed(kind, folder, moment)
        shutil.rmtree(folder / "run")
    if kind == "update":
        shutil.copytree(folder / "before", folder / "whole")
    assert command(kind, folder, folder / "whole") == 3
    return kind, folder


def assert_same(one, two):
    """The same photos, features, pictures and tables of two finished runs, bit for bit."""
    first, second = map(records.read, (one, two))
    assert first.names == second.names
    np.testing.assert_array_equal(first.facts, second.facts)
    np.testing.assert_array_equal(first.all_features, second.all_features)
    table = (two / "assignments.csv").read_bytes()
    assert (one / "assignments.csv").read_bytes() == table
    assert not list(one.glob("*.parts"))


@pytest.mark.parametrize("moment", MOMENTS)
def test_no_photo_is_embedded_twice(made, moment):
    kind, folder = made
    run = shutil.copytree(folder / moment, folder / f"{moment} again")
    assert workdirs.states(run) == ([1] if kind == "update" else [])
    assert command(kind, folder, run) == MOMENTS[moment][1]
    assert_same(run, folder / "whole")


def test_a_photo_that_is_gone_since_the_kill(made):
    """It was the last one: the batches before are taken."""
    kind, folder = made
    if kind == "images":
        pytest.skip("a first run that has begun refuses other photos")
    run = shutil.copytree(folder / "clustering", folder / "fewer")
    (folder / "photos" / "new39.png").rename(folder / "new39.png")
    try:
        assert command(kind, folder, run) == 1
    finally:
        (folder / "new39.png").rename(folder / "photos" / "new39.png")
    assert [name[-9:] for name in records.read(run).names[-2:]] == ["new37.png", "new38.png"]


def test_a_photo_that_has_changed_since_the_kill_is_embedded_as_it_is(made):
    """It was in the second batch, of which nothing is taken then."""
    kind, folder = made
    file = folder / "photos" / "new20.png"
    before = file.read_bytes()
    shutil.copytree(folder / "embedding", folder / "changed")
    try:
        toy.save(folder / "photos", toy.photos(1, seed=1)[0], 20, prefix="new")
        assert command(kind, folder, folder / "changed") == 2
    finally:
        file.write_bytes(before)
    now, then = (records.read(folder / name) for name in ("changed", "whole"))
    assert now.names == then.names
    distances = np.abs(now.all_features - then.all_features).max(axis=1)
    assert np.array(now.names)[distances > 1e-3].tolist() == ["new20.png"]
