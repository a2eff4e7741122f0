"""Killed while photos are embedded or clustered, in a first run and in an update alike."""

import contextlib
import shutil

import jax
import numpy as np
import pytest

from cluster_jax.cli import images, report, update
from cluster_jax.core import hosts, io
from cluster_jax.encoding import embed
from cluster_jax.runs import finish, photos
from cluster_jax.runs import run as records
from cluster_jax.runs import store as stores
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.run import Run
from tests import toy
from tests.cli.test_images import QUICK
from tests.faults.runs import left_by_a_kill
from tests.runs.heaps import digests

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


def command(kind, folder, run, photos="photos"):
    """Runs the command of a folder in another workdir; returns how many batches it embeds."""
    batches, encoded = [], stores.encoded
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embed, "SECONDS", -1.0)  # Each batch is kept.
        patch.setattr(stores, "encoded", lambda pixels: batches.append(1) or encoded(pixels))
        if kind == "images":
            images.main([str(folder / photos), f"--workdir={run}", *QUICK, "--report=no"])
        else:
            update.main([f"--workdir={run}", "--report=no"])
    return len(batches)


def killed(kind, folder, moment, photos="photos"):
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
        command(kind, folder, run, photos)
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
    np.testing.assert_array_equal(first.features, second.features)
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
    distances = np.abs(now.features - then.features).max(axis=1)
    assert np.array(now.names)[distances > 1e-3].tolist() == ["new20.png"]


@pytest.mark.parametrize("made", ["images"], indirect=True)  # An update has other photos.
def test_features_of_a_first_run_are_made_again(made, tmp_path, capsys):
    """Names and corrections stay; other photos are refused, and nothing is written."""
    kind, folder = made
    run = shutil.copytree(folder / "whole", tmp_path / "run")
    report.main([str(run), "--name=0=cats"])
    (run / "store-0.npz").unlink()
    before = digests(run)
    file = folder / "photos" / "new20.png"
    content = file.read_bytes()
    try:
        toy.save(folder / "photos", toy.photos(1, seed=1)[0], 20, prefix="new")
        with pytest.raises(SystemExit):
            command(kind, folder, run)
        assert "put those photos back and run the same command" in capsys.readouterr().err
    finally:
        file.write_bytes(content)
    assert not (run / "store-0.npz").exists()
    assert command(kind, folder, run) == 2, "the first batch was embedded before"
    assert records.read(run).named == {0: "cats"}
    del before["images.json"]  # It says where the run is.
    assert before.items() <= digests(run).items()


def test_lost_pictures_are_made_again_and_none_is_taken_for_another(made, tmp_path, capsys):
    kind, folder = made
    run = shutil.copytree(folder / "whole", tmp_path / "run")
    (run / "store-0.npz").unlink()
    with pytest.raises(SystemExit):
        update.main([f"--workdir={run}", "--refit", "--report=no"])
    assert "store-0.npz is damaged (it is not there)" in capsys.readouterr().err
    if kind == "images":
        command(kind, folder, run)
        then, now = (io.read_arrays(x / "store-0.npz") for x in (folder / "whole", run))
        jax.tree.map(np.testing.assert_array_equal, now, then)


def test_a_file_of_another_run_in_the_store(made, tmp_path):
    """However many rows it has, and if they are those of the same photos by another network.

    That of a first run can be made again.
    """
    kind, folder = made
    run = shutil.copytree(folder / "whole", tmp_path / "run")
    first = N_OLD if kind == "update" else 0
    own = records.read(run).store[first:]
    for rows in (own, own[1:], np.concatenate([own, own])):
        stores.write(run, first, -rows)
        said = rf"store-{first}.npz is damaged \(it has other rows\)"
        with pytest.raises(io.DamagedFile, match=said) as error:
            records.read(run)
        again = "go back to the state before" if kind == "update" else "run the command of the run"
        assert again in str(error.value)


@pytest.mark.parametrize("made", ["images"], indirect=True)
def test_features_that_an_undone_update_has_left_behind_are_made_again(made, tmp_path):
    kind, folder = made
    run = shutil.copytree(folder / "whole", tmp_path / "run")
    toy.save(folder / "photos", toy.photos(1, seed=2)[0], 90, prefix="new")
    try:
        update.main([f"--workdir={run}", "--report=no"])
        update.main([f"--workdir={run}", "--undo", "--report=no"])
    finally:
        (folder / "photos" / "new90.png").unlink()
    (run / "store-0.npz").unlink()
    command(kind, folder, run)
    then, now = (records.read(x).features for x in (folder / "whole", run))
    np.testing.assert_array_equal(now, then)


def test_features_of_an_array_are_not_made_of_another_one(tmp_path, capsys):
    np.save(tmp_path / "photos.npy", toy.photos(N_NEW)[0])
    run = tmp_path / "run"
    command("images", tmp_path, run, "photos.npy")
    whole = records.read(run).features.copy()
    (run / "store-0.npz").unlink()
    before = digests(run)
    np.save(tmp_path / "photos.npy", toy.photos(N_NEW, seed=1)[0])
    with pytest.raises(SystemExit):
        command("images", tmp_path, run, "photos.npy")
    assert "put those photos back" in capsys.readouterr().err
    assert digests(run) == before
    np.save(tmp_path / "photos.npy", toy.photos(N_NEW)[0])
    command("images", tmp_path, run, "photos.npy")
    np.testing.assert_array_equal(records.read(run).features, whole)


def test_another_array_of_as_many_images(tmp_path):
    """The pixels tell it, where there are no files."""
    np.save(tmp_path / "photos.npy", toy.photos(N_NEW)[0])
    killed("images", tmp_path, "clustering", "photos.npy")
    shutil.copytree(tmp_path / "run", tmp_path / "same")
    assert command("images", tmp_path, tmp_path / "same", "photos.npy") == 0
    np.save(tmp_path / "photos.npy", toy.photos(N_NEW, seed=1)[0])
    assert command("images", tmp_path, tmp_path / "run", "photos.npy") == 3
    then, now = (records.read(tmp_path / name).features for name in ("same", "run"))
    assert (np.abs(then - now).max(axis=1) > 1e-3).all()


def test_another_process_that_is_faster(tmp_path, monkeypatch):
    """Its run is taken: nothing is embedded again, and there is one state."""
    toy.save(tmp_path / "photos", toy.photos(N_NEW)[0])
    batches, load = [], photos.load

    def slow(*values):
        if not batches:
            batches.append(0)
            batches.append(command("images", tmp_path, tmp_path / "run"))
        return load(*values)

    monkeypatch.setattr(photos, "load", slow)
    assert command("images", tmp_path, tmp_path / "run") == batches[-1] == 3
    assert workdirs.states(tmp_path / "run") == [1]


def test_several_processes_are_refused(tmp_path, refused, monkeypatch):
    toy.save(tmp_path / "photos", toy.photos(N_NEW)[0])
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(hosts, "wait_for_all", lambda name: None)
    said = refused(images.main, str(tmp_path / "photos"), f"--workdir={tmp_path}/run", *QUICK)
    assert "photos must be clustered in one process; got 2 processes: write their" in said
    assert not (tmp_path / "run").exists()
