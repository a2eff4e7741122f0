"""Disks that are full or read-only: one sentence, and the same command goes on."""

import contextlib
import os
import resource
import subprocess
import time

import pytest

from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.runs import begin as pipeline
from cluster_jax.runs import trainings
from tests import toy
from tests.faults.runs import before_step

pytestmark = pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")


@contextlib.contextmanager
def _mounted(folder, options):
    """A disk of its own in memory, which only root can make."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs the right to mount a disk")
    try:
        yield folder
    finally:
        time.sleep(0.5)  # Orbax clears its folder in the background.
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _fill(folder):
    """Leaves less than a page of the disk."""
    with contextlib.suppress(OSError), (folder / "filler").open("wb") as file:
        while True:
            file.write(bytes(4096))
            file.flush()


@pytest.mark.slow
def test_a_disk_that_fills_between_checkpoints(tmp_path, monkeypatch):
    config = toy.config(toy.file(tmp_path))
    with _mounted(tmp_path / "disk", "size=20m") as folder:

        def fill():
            while not (folder / "run" / "checkpoints" / "2").exists():
                time.sleep(0.01)
            _fill(folder)

        before_step(monkeypatch, 4, fill)
        with pytest.raises(OSError, match=r"cannot be written \(.*: free space") as error:
            pipeline.run_pipeline(config, folder / "run")
        assert "\n" not in str(error.value)
        (folder / "filler").unlink()
        monkeypatch.undo()
        assert pipeline.run_pipeline(config, folder / "run")["metrics"]


def test_what_cannot_be_written_is_told_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(trainings, "build_stages", lambda *_: pytest.fail("long work first"))
    config = toy.config(toy.file(tmp_path))
    with _mounted(tmp_path / "disk", "size=20m,ro") as folder:
        for workdir in (folder, folder / "new" / "run"):
            with pytest.raises(InputError, match="must be a folder that can be written; got one"):
                pipeline.run_pipeline(config, workdir)


def test_a_file_on_a_disk_that_is_read_only_is_named(tmp_path):
    """Where a link of a store leads to; and not the temporary file beside it."""
    with _mounted(tmp_path / "disk", "size=1m,ro") as folder:
        with pytest.raises(OSError, match=r"Read-only") as error:
            io.write(folder / "x.npz", b"x")
        assert error.value.filename == str(folder / "x.npz")


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"x\.npz"):
            io.write(tmp_path / "x.npz", bytes(5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())
