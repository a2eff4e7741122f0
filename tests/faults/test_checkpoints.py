"""Damaged checkpoints: named and put aside, and the one before is taken; never a wrong state."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax.core.checks import InputError
from cluster_jax.runs import begin as pipeline
from cluster_jax.training import checkpoint
from cluster_jax.training import state as states
from tests.faults.runs import assert_same

pytestmark = pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")


def test_any_changed_bit_changes_the_checksum():
    """Of every type of a state; so do another name, another shape and two rows that swap places."""
    rng = np.random.default_rng(0)
    floats = rng.normal(size=(3, 4))
    state = {
        "key": jax.random.key(3), "float32": jnp.asarray(floats, jnp.float32),
        "bfloat16": jnp.asarray(floats, jnp.bfloat16), "int32": jnp.arange(5), "one": jnp.ones(()),
        "bool": jnp.array([True, False]), "empty": jnp.zeros((0, 3)),
    }  # fmt: skip
    plain = states.checksum(state)
    assert plain == states.checksum({**state, "int32": np.arange(5, dtype=np.int32)})
    for name in ("float32", "bfloat16", "int32", "one", "bool"):
        values = np.array(state[name])
        content = bytearray(values.tobytes())
        for where in range(len(content)):
            changed = content.copy()
            changed[where] ^= 1
            other = np.frombuffer(changed, values.dtype).reshape(values.shape)
            assert states.checksum({**state, name: other}) != plain, name
    assert states.checksum({**state, "key": jax.random.key(4)}) != plain
    assert states.checksum({**state, "float32": state["float32"][::-1]}) != plain
    many = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    assert len({states.checksum({"a": c * many}) for c in (1, 2, -1)}) == 3  # all words change
    assert states.checksum({**state, "float32": state["float32"].reshape(4, 3)}) != plain


def test_a_checksum_copies_one_number_of_each_array_to_the_host(monkeypatch):
    fetched, fetch = [], jax.device_get
    monkeypatch.setattr(jax, "device_get", lambda x: fetched.append(x) or fetch(x))
    states.checksum({"a": jnp.ones((256, 256)), "b": jnp.ones(3)})
    assert [x.size for x in jax.tree.leaves(fetched)] == [1, 1]


def _damage(workdir):
    """Values that TensorStore reads without an error: those of the other checkpoint."""
    for name in ("run-1.npz", "embedding.npz"):
        (workdir / name).unlink()
    step = workdir / "checkpoints" / "4"
    shutil.rmtree(step / "default")
    shutil.copytree(workdir / "checkpoints" / "2" / "default", step / "default")


def test_a_damaged_checkpoint(copy, finished, caplog):
    """The older one is trained to the end, and nothing else is different afterward."""
    config, workdir = copy
    _damage(workdir)
    pipeline.run_pipeline(config, workdir, "toy")
    assert "4 is damaged (its values do not match their checksum)" in caplog.text
    assert (workdir / "checkpoints" / "4").is_dir()
    assert_same(workdir, finished.workdir)


def test_one_process_alone_sees_the_damage(copy, finished, monkeypatch):
    """All of them take the checkpoint before."""
    config, workdir = copy
    for name in ("run-1.npz", "embedding.npz"):
        (workdir / name).unlink()
    said = [False, True]  # of another process: about step 4, and about 2
    monkeypatch.setattr(
        checkpoint.multihost_utils, "process_allgather", lambda mine: np.array([mine, said.pop(0)])
    )
    pipeline.run_pipeline(config, workdir, "toy")
    assert said == []
    assert_same(workdir, finished.workdir)


def test_a_checkpoint_that_cannot_be_read_is_not_damaged(copy):
    config, workdir = copy
    for name in ("run-1.npz", "embedding.npz"):
        (workdir / name).unlink()
    for file in (workdir / "checkpoints" / "4").rglob("d/*"):
        file.unlink()
    with pytest.raises(OSError, match=r"4 must be a checkpoint of .* that can be read"):
        pipeline.run_pipeline(config, workdir, "toy")
    assert (workdir / "checkpoints" / "4").is_dir()


@pytest.mark.parametrize("name", ["jax_enable_x64", "jax_threefry_partitionable"])
def test_a_training_does_not_go_on_with_other_numbers(copy, monkeypatch, name):
    config, workdir = copy
    for file in ("run-1.npz", "embedding.npz"):
        (workdir / file).unlink()
    saved = {**checkpoint._settings(), name: not checkpoint._settings()[name]}
    monkeypatch.setattr(checkpoint, "_settings", lambda: saved)
    with pytest.raises(InputError, match=rf"{name.upper()} must be \d to go on with .*checkpoints"):
        pipeline.run_pipeline(config, workdir, "toy")


def test_a_long_message_keeps_its_cause():
    """Of a bucket the cause comes last, before the places in TensorStore's code."""
    first = 'UNAVAILABLE: Error writing "kvstore" at gs://bucket/' + "folder/" * 40
    cause = "CURL error[6] Could not resolve hostname: Could not resolve host: storage.test"
    places = " [source locations='tensorstore/internal/" + "x" * 300 + "']"
    text = checkpoint._reason(RuntimeError(f"{first}\n  {cause}{places}"))
    assert text.startswith("UNAVAILABLE: Error writing")
    assert text.endswith(cause)
    assert len(text) < 300
    assert checkpoint._reason(RuntimeError("no space\nleft")) == "no space left"
