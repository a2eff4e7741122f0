"""Disks that are full, read-only or absent: one sentence, and the same command goes on."""

import contextlib
import os
import re
import subprocess
import time

import pytest

from cluster_jax.core import disk
from cluster_jax.core.checks import InputError
from cluster_jax.pipeline import run as pipeline
from cluster_jax.pipeline import trainings
from cluster_jax.training import loop
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


def _refused(config, workdir, **options):
    with pytest.raises((InputError, disk.WriteError)) as error:
        pipeline.run_pipeline(config, workdir, **options)
    assert "\n" not in str(error.value)
    assert "Errno" not in str(error.value)
    return str(error.value)


def test_a_disk_that_fills_between_checkpoints(tmp_path, monkeypatch, caplog):
    config = toy.config(toy.file(tmp_path))
    with _mounted(tmp_path / "disk", "size=20m") as folder:

        def fill():
            while not (folder / "run" / "checkpoints" / "2").exists():
                time.sleep(0.01)
            _fill(folder)

        before_step(monkeypatch, 4, fill)
        said = _refused(config, folder / "run")
        assert "cannot be written (No space left on device): free space" in said
        assert "Traceback" not in caplog.text
        (folder / "filler").unlink()
        monkeypatch.undo()
        assert pipeline.run_pipeline(config, folder / "run")["metrics"]


def test_a_disk_that_fills_before_the_report(tmp_path, monkeypatch):
    config = toy.config(toy.file(tmp_path))
    write = pipeline.outputs.report.write_report
    with _mounted(tmp_path / "disk", "size=20m") as folder:

        def full(*arguments):
            _fill(folder)
            write(*arguments)

        monkeypatch.setattr(pipeline.outputs.report, "write_report", full)
        said = _refused(config, folder / "run")
        assert "cannot be written (No space left on device): free space" in said
        assert not (folder / "run" / "results.json").exists()


def test_a_read_only_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(trainings, "build_stages", lambda *_: pytest.fail("long work first"))
    config = toy.config(toy.file(tmp_path))
    with _mounted(tmp_path / "disk", "size=20m,ro") as folder:
        for workdir in (folder, folder / "new" / "run"):
            assert "must be a folder that can be written" in _refused(config, workdir)


def test_a_workdir_that_is_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(trainings, "build_stages", lambda *_: pytest.fail("long work first"))
    config = toy.config(toy.file(tmp_path))
    (tmp_path / "file").write_text("mine")
    for workdir in (tmp_path / "file", tmp_path / "file" / "run"):
        assert "is a file; choose another folder" in _refused(config, workdir)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_disk_too_small_for_the_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "make_step", lambda *_: pytest.fail("long work first"))
    config = toy.config(toy.file(tmp_path))
    with _mounted(tmp_path / "disk", "size=300k") as folder:
        said = _refused(config, folder / "run")
        assert re.search(r"must have \d+\.\d MB free for 3 checkpoints; got 0\.\d MB", said)
