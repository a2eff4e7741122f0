"""What these modules share: a finished run to copy and damage."""

import pathlib
import shutil
import signal
from typing import NamedTuple

import pytest

from cluster_jax.runs import begin as pipeline
from tests import toy
from tests.faults.jobs import kill_all


class Run(NamedTuple):
    """A run: its config and its workdir."""

    config: object
    workdir: pathlib.Path


@pytest.fixture(autouse=True)
def interruptible():
    """Ctrl-C counts, also where the tests run in the background, in which shells ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    terminate = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGINT, before)
    signal.signal(signal.SIGTERM, terminate)


@pytest.fixture(scope="module", autouse=True)
def no_process_is_left():
    """What a module has started and left running ends with it."""
    yield
    kill_all()


@pytest.fixture(scope="session")
def _finished():
    """The finished run, when there is one."""
    return {}


@pytest.fixture(scope="module")
def finished(_finished, tmp_path_factory, one_device, traced_once, compiled_once):
    """A run of four steps, saved at two and four, that was left alone; never to be changed."""
    if "toy" not in _finished:
        folder = tmp_path_factory.mktemp("finished")
        config = toy.config(toy.file(folder))
        pipeline.run_pipeline(config, folder / "run", "toy")
        _finished["toy"] = Run(config, folder / "run")
    return _finished["toy"]


@pytest.fixture
def copy(finished, tmp_path):
    """A copy of it to damage."""
    return Run(finished.config, shutil.copytree(finished.workdir, tmp_path / "run"))


CONFIG = """
from tests import toy

def get_config():
    return toy.config({path!r})
"""


@pytest.fixture
def toy_config(finished, tmp_path):
    """A file with the config of the run that was left alone."""
    file = tmp_path / "toy.py"
    file.write_text(CONFIG.format(path=str(finished.config.data.dir)))
    return file
