"""Damaged files are named, and made again once they are removed; never a wrong state."""

import contextlib
import os
import struct
import zipfile
from io import FileIO

import numpy as np
import pytest
from etils import epath

from cluster_jax import estimators
from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.data import arrays as data_arrays
from cluster_jax.runs import begin as pipeline
from cluster_jax.runs import states
from cluster_jax.runs import workdir as workdirs
from cluster_jax.training import loop
from tests.faults.runs import assert_same

pytestmark = pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")

# Files that a run reads again and makes again.
MADE_AGAIN = ("images.json", "embedding.npz", "run-1.npz")


def _damage(file):
    """Half of a JSON file is lost; of the largest array, which has a checksum, one bit."""
    content = bytearray(file.read_bytes())
    middle = len(content) // 4
    if file.suffix == ".json":
        content = content[: len(content) // 2]
    elif file.suffix == ".npz":  # A bit of what is between the arrays would change nothing.
        with zipfile.ZipFile(file) as archive:
            largest = max(archive.infolist(), key=lambda entry: entry.compress_size)
        lengths = struct.unpack_from("<HH", content, largest.header_offset + 26)
        middle = largest.header_offset + 30 + sum(lengths) + largest.compress_size // 2
    content[middle] ^= 4
    file.write_bytes(content)


@pytest.mark.parametrize("name", MADE_AGAIN)
def test_what_can_be_made_again(copy, finished, monkeypatch, name):
    """The command says what to do, and makes a removed file again; nothing is trained."""
    config, workdir = copy
    _damage(workdir / name)
    if name == "images.json":
        (workdir / "run-1.npz").unlink()  # A state has its content.
    if name in ("embedding.npz", "run-1.npz"):
        with pytest.raises(InputError, match="is damaged"):
            estimators.load(workdir)
    monkeypatch.setattr(loop, "make_step", lambda *_: pytest.fail("trained again"))
    with pytest.raises(InputError, match=f"{name} is damaged .*, or run the command"):
        pipeline.run_pipeline(config, workdir, "toy")
    (workdir / name).unlink()
    pipeline.run_pipeline(config, workdir, "toy")
    assert_same(workdir, finished.workdir)
    estimators.load(workdir)


@pytest.mark.parametrize("has_page", [True, False])
def test_pictures_are_made_again(copy, finished, monkeypatch, has_page):
    """Where the page is there, nothing has read them: what asks for them says what to do."""
    config, workdir = copy
    monkeypatch.setattr(loop, "make_step", lambda *_: pytest.fail("trained again"))
    file, page = workdir / "store-0.npz", workdir / "report.html"
    before = io.read_arrays(file)
    _damage(file)
    said = r"store-0.npz is damaged .*, or run the command of the run again without that file"
    if has_page:
        with pytest.raises(InputError, match=said):
            states.correct(workdir, names={"0": "a"})
    else:
        page.unlink()
        with pytest.raises(InputError, match=said):
            pipeline.run_pipeline(config, workdir, "toy")
    file.unlink()
    pipeline.run_pipeline(config, workdir, "toy")
    np.testing.assert_equal(io.read_arrays(file), before)
    assert_same(workdir, finished.workdir)
    assert page.exists()


@pytest.mark.parametrize("count", [39, 65])
def test_an_embedding_of_other_rows(copy, count):
    stored = io.read_arrays(copy.workdir / "embedding.npz")
    rows = {name: np.concatenate([values, values])[:count] for name, values in stored.items()}
    io.write_arrays(copy.workdir / "embedding.npz", rows)
    with pytest.raises(InputError, match=r"embedding.npz is damaged \(it has other rows\)"):
        estimators.load(copy.workdir)


def test_arrays_for_a_pipe_do_not_replace_it(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    io.write_arrays(pipe, {"a": np.arange(3)})
    assert pipe.is_fifo()
    (tmp_path / "x.npz").write_bytes(os.read(reader, 10_000))
    os.close(reader)
    assert io.read_arrays(tmp_path / "x.npz")["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("content", ["", "[1, 2]", "[" * 100_000, '{"a": NaN}'])
def test_what_is_no_config(copy, content):
    config, workdir = copy
    (workdir / "run-1.npz").unlink()  # A finished run has its config in its state.
    (workdir / "config.json").write_text(content)
    for use in (lambda: pipeline.run_pipeline(config, workdir), lambda: estimators.load(workdir)):
        with pytest.raises(InputError) as error:
            use()
        assert "\n" not in str(error.value)


def test_a_file_that_does_not_fit_into_memory_is_not_damaged(tmp_path, monkeypatch):
    file = tmp_path / "x.npz"
    io.write_arrays(file, {"features": np.zeros((3, 2)), "about": np.array("{}")})
    (tmp_path / "run-1.npz").write_bytes(file.read_bytes())

    def load(*_, **__):
        raise MemoryError

    monkeypatch.setattr(np, "load", load)
    for read in (io.read_arrays, lambda path: data_arrays.read_arrays(str(path), ["features"])):
        with pytest.raises(MemoryError, match=r"too little memory to read .*x\.npz: free some"):
            read(file)
    with pytest.raises(MemoryError, match=r"to read .*run-1\.npz"):
        workdirs.about(tmp_path)


def test_damage_of_arrays_never_gives_other_values(tmp_path):
    file, arrays = tmp_path / "x.npz", {"a": np.arange(3.0), "b": np.array(["x"])}
    io.write_arrays(file, arrays, "made:3")
    assert io.read_fingerprint(file) == "made:3"
    assert io.read_arrays(file, ["a"])["a"].tolist() == [0, 1, 2]
    assert io.read_arrays(file, ["c"]) == {}
    content = file.read_bytes()
    damaged = 0
    for where in range(len(content)):
        changed = bytearray(content)
        changed[where] ^= 4
        file.write_bytes(changed)
        try:
            read = io.read_arrays(file)
        except InputError:
            damaged += 1
        else:
            same = [np.array_equal(read[name], arrays[name]) for name in read]
            assert all(same), where
        with contextlib.suppress(InputError):
            one = io.read_arrays(file, ["a"])
            assert not one or np.array_equal(one["a"], arrays["a"]), where
    assert damaged > len(content) / 3
    for size in (0, 40, len(content) // 2, len(content) - 9):
        file.write_bytes(content[:size])
        for read in (io.read_fingerprint, io.read_arrays, lambda path: io.read_arrays(path, ["a"])):
            with pytest.raises(io.DamagedFile):
                read(file)


def test_of_a_large_file_only_what_is_asked_for_is_read(tmp_path, monkeypatch):
    """All hosts of a pod ask an embedding of gigabytes for its fingerprint."""
    file = epath.Path(tmp_path / "x.npz")
    features = np.random.default_rng(0).normal(size=(1000, 1000))
    io.write_arrays(file, {"features": features, "labels": np.arange(9)}, "made:3")
    counts = []

    class Counted(FileIO):
        def read(self, size=-1):
            counts.append(len(content := super().read(size)))
            return content

    monkeypatch.setattr(type(file), "open", lambda path, mode: Counted(path))
    monkeypatch.setattr(type(file), "read_bytes", lambda path: pytest.fail("read as a whole"))
    assert io.read_fingerprint(file) == "made:3"
    assert io.read_arrays(file, ["labels"])["labels"].tolist() == list(range(9))
    assert 0 < sum(counts) < features.nbytes / 20
