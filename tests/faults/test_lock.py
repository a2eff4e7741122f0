"""One run in a workdir at a time; a crashed one leaves nothing that stops the next."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest
from etils import epath

from cluster_jax.core import lock
from cluster_jax.core.checks import InputError
from cluster_jax.pipeline import run as pipeline
from tests import toy
from tests.faults.runs import assert_same, before_step

pytestmark = pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    monkeypatch.setattr(lock, "BEAT", 0.05)
    monkeypatch.setattr(lock, "PATIENCE", 0.4)


def _write(folder, **changes):
    """The lock of another process on this machine, with changes."""
    pid = changes.get("pid", os.getppid())
    owner = {**lock.machine(), "pid": pid, "started": lock.started(pid), "token": "x", "beat": 1}
    (folder / lock.NAME).write_text(json.dumps({**owner, **changes}))


def _take(folder):
    with lock.locked(epath.Path(folder)) as held:
        held.check()


def test_it_is_held_and_released(tmp_path):
    with lock.locked(epath.Path(tmp_path)) as held:
        first = json.loads((tmp_path / lock.NAME).read_text())
        assert first["pid"] == os.getpid()
        time.sleep(0.3)
        assert json.loads((tmp_path / lock.NAME).read_text())["beat"] > first["beat"]
        held.check()
        with pytest.raises(InputError, match=rf"is used by another run, process {os.getpid()} on"):
            _take(tmp_path)
    assert list(tmp_path.iterdir()) == []
    _take(tmp_path)


def test_the_owner_on_this_machine(tmp_path):
    _write(tmp_path)
    with pytest.raises(InputError, match="wait for it, or choose another --workdir"):
        _take(tmp_path)
    _write(tmp_path, started="long ago")  # the number belongs to another process by now
    _take(tmp_path)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    while lock.started(dead.pid):  # a zombie from here on, which is dead
        time.sleep(0.01)
    _write(tmp_path, pid=dead.pid, started="1")
    start = time.monotonic()
    _take(tmp_path)
    assert time.monotonic() - start < 0.3
    dead.wait()


def test_an_owner_elsewhere(tmp_path, caplog):
    """Whose process numbers mean nothing here: it is watched for a sign of life."""
    for other in ({"host": "elsewhere"}, {"boot": "before"}, {"space": "a container"}):
        _write(tmp_path, pid=1, **other)
        _take(tmp_path)
    assert "waiting 0 s for a sign of life" in caplog.text
    _write(tmp_path, host="elsewhere")

    def live():
        for beat in range(2, 20):
            _write(tmp_path, host="elsewhere", beat=beat)
            time.sleep(0.05)

    thread = threading.Thread(target=live)
    thread.start()
    with pytest.raises(InputError, match=r"process \d+ on elsewhere; wait for it"):
        _take(tmp_path)
    thread.join()


@pytest.mark.parametrize("content", ["", "[1]", '{"pid": "x"}', '{"pid": 1e400}', "[" * 100_000])
def test_a_damaged_lock_is_taken_over(tmp_path, content):
    (tmp_path / lock.NAME).write_text(content)
    _take(tmp_path)


def test_two_that_start_at_once(tmp_path):
    """At most one gets it, whoever wrote last."""
    got, refused = [], []

    def start():
        try:
            with lock.locked(epath.Path(tmp_path)) as held:
                time.sleep(0.3)
                held.check()
                got.append(1)
        except InputError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1
    assert len(refused) == 7


def test_a_lost_lock(tmp_path):
    with lock.locked(epath.Path(tmp_path)) as held:
        _write(tmp_path, token="y")
        with pytest.raises(lock.Lost, match="is used by another run"):
            held.check()
    assert json.loads((tmp_path / lock.NAME).read_text())["token"] == "y"
    (tmp_path / lock.NAME).unlink()
    folder = tmp_path / "run"
    folder.mkdir()
    with lock.locked(epath.Path(folder)) as held:
        shutil.rmtree(folder)
        time.sleep(0.2)
        with pytest.raises(lock.Lost, match="got it deleted or emptied"):
            held.check()
    assert not folder.exists()


def test_two_runs_at_once(finished, tmp_path, monkeypatch):
    """The second is refused before any work, and the first ends as if it had been alone."""
    config, said = finished.config, []

    def second():
        with pytest.raises(InputError) as error:
            pipeline.run_pipeline(config, tmp_path / "run")
        said.append(str(error.value))

    before_step(monkeypatch, 2, second)
    built, build_stages = [], pipeline.stages.build_stages
    monkeypatch.setattr(
        pipeline.stages, "build_stages", lambda *a: built.append(1) or build_stages(*a)
    )
    pipeline.run_pipeline(config, tmp_path / "run")
    assert f"{tmp_path}/run is used by another run, process {os.getpid()}" in said[0]
    assert built == [1]
    assert_same(tmp_path / "run", finished.workdir)
    assert not (tmp_path / "run" / lock.NAME).exists()


def test_a_workdir_deleted_in_mid_run(tmp_path, monkeypatch):
    config = toy.config(toy.file(tmp_path))

    def delete():
        while not (tmp_path / "run" / "checkpoints" / "2").exists():
            time.sleep(0.01)
        shutil.rmtree(tmp_path / "run")

    before_step(monkeypatch, 3, delete)
    with pytest.raises(InputError, match=r"/run must stay as it is during a run; got it deleted"):
        pipeline.run_pipeline(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
