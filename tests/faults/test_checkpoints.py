"""Damaged checkpoints: named and put aside; an older one goes on; never a wrong state."""

import contextlib
import gc
import random
import re
import shutil
import sys

import jax
import numpy as np
import pytest

from cluster_jax.core import logs
from cluster_jax.core.checks import InputError
from cluster_jax.pipeline import build
from cluster_jax.pipeline import run as pipeline
from cluster_jax.training import checkpoint
from tests import toy
from tests.faults.damage import KINDS, flip
from tests.faults.runs import assert_same

pytestmark = pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")

# A coroutine that raises where it waits, when Python frees it unfinished.
UNFINISHED = """
class Wait:
    def __await__(self):
        yield

async def read():
    try:
        await Wait()
    except BaseException as error:
        raise Exception("error while reading") from error
"""


@pytest.fixture(scope="module")
def training(finished):
    return toy.built(finished.config)


def _data_files(folder):
    return sorted(f for f in (folder / "checkpoints" / "4").rglob("*") if f.is_file())


def _restored(training, workdir):
    saved = checkpoint.Checkpoints(workdir / "checkpoints", keep=2)
    with contextlib.closing(saved):
        return saved.restore(build.initial_state(training))


def _outcome(training, workdir):
    """The state, or None, and what is said of a state that cannot be restored, or None."""
    with logs.without_leftovers():
        try:
            return _restored(training, workdir), None
        except InputError as error:
            return None, str(error)


def _assert_equal_states(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_array_equal(x, y)


@pytest.fixture(scope="module")
def saved(finished, training, tmp_path_factory):
    """Step -> the state that was saved at it."""
    older = shutil.copytree(finished.workdir, tmp_path_factory.mktemp("older") / "run")
    shutil.rmtree(older / "checkpoints" / "4")
    return {4: _restored(training, finished.workdir), 2: _restored(training, older)}


@pytest.mark.parametrize("seed", range(6))
def test_a_flipped_bit_of_a_checkpoint(copy, training, saved, seed):
    """Either it changes no value, or the older checkpoint is used and the damaged one named."""
    _, workdir = copy
    rng = random.Random(seed)
    # Large files have the values.
    files = [f for f in _data_files(workdir) if f.stat().st_size > 1000]
    flip(rng.choice(files), rng=rng)
    state = _restored(training, workdir)
    step = int(state.step)
    _assert_equal_states(state, saved[step])
    assert (workdir / "damaged" / "4").exists() == (step == 2)


@pytest.mark.slow
@pytest.mark.parametrize("older", [True, False])
@pytest.mark.parametrize("seed", range(24))
def test_many_flipped_bits(copy, training, saved, seed, older):
    """As above over all files, also with no older checkpoint: then one sentence."""
    _, workdir = copy
    rng = random.Random(seed)
    if not older:
        shutil.rmtree(workdir / "checkpoints" / "2")
    flip(rng.choice(_data_files(workdir)), rng=rng)
    state, said = _outcome(training, workdir)
    if said is not None:
        assert not older
        assert "checkpoints/4 is damaged" in said
    else:
        step = int(state.step)
        assert step == 4 or older
        _assert_equal_states(state, saved[step])
        assert (workdir / "damaged" / "4").exists() == (step == 2)


def _rename(workdir):
    (workdir / "checkpoints" / "4").rename(workdir / "checkpoints" / "999")


def _replace_by_file(workdir):
    shutil.rmtree(workdir / "checkpoints" / "4")
    (workdir / "checkpoints" / "4").write_text("x")


def _flip_values(workdir):
    for file in _data_files(workdir):
        if file.stat().st_size > 20_000:
            flip(file, where=file.stat().st_size // 2)


# Files of a checkpoint -> how to find them.
PARTS = {
    "metadata": "_CHECKPOINT_METADATA",
    "commit": "default/commit_success.txt",
    "tree": "default/_METADATA",
    "sharding": "default/_sharding",
    "arrays": "default/array_metadatas/process_0",
    "manifest": "default/manifest.ocdbt",
    "manifest of the process": "default/ocdbt.process_0/manifest.ocdbt",
    "index": "default/d/*",
    "values": "default/ocdbt.process_0/d/*",
}
WAYS = {
    **{kind: KINDS[kind] for kind in ("flip", "truncated", "empty", "zeros")},
    "removed": lambda file: file.unlink(),
}


def _empty_folder(workdir):
    shutil.rmtree(workdir / "checkpoints" / "4" / "default")


def _foreign(workdir):
    """Values of the other checkpoint under this one's number."""
    step = workdir / "checkpoints" / "4"
    shutil.rmtree(step)
    shutil.copytree(workdir / "checkpoints" / "2", step)


def _damage(part, way):
    def act(workdir):
        for file in [*(workdir / "checkpoints" / "4").glob(PARTS[part])]:
            WAYS[way](file)

    return act


CHECKPOINT_KINDS = {"renamed": _rename, "flipped": _flip_values}
FORTY = {
    **{f"{part}: {way}": _damage(part, way) for part in PARTS for way in WAYS},
    **CHECKPOINT_KINDS,
    "a file": _replace_by_file,
    "emptied": _empty_folder,
    "another's": _foreign,
}


# Where Orbax gives other types, and where it leaves tasks that nobody waits for.
REDUCED = {("arrays: removed", True), ("values: removed", False)}


@pytest.mark.parametrize(
    ("kind", "older"),
    [
        pytest.param(kind, older, marks=() if (kind, older) in REDUCED else pytest.mark.slow)
        for kind in FORTY
        for older in (True, False)
    ],
)
def test_any_damage_of_a_checkpoint(copy, finished, training, saved, capsys, caplog, kind, older):
    """A state that was saved, or one sentence; and the run ends as the one left alone."""
    config, workdir = copy
    FORTY[kind](workdir)
    if not older:
        shutil.rmtree(workdir / "checkpoints" / "2")
    state, said = _outcome(training, workdir)
    if said is not None:
        assert not older
        assert re.fullmatch(r".* is damaged \(.*\)[;,] .*", said)
    elif state is None:  # Orbax sees no checkpoint at all, and the training starts over.
        assert (kind, older) == ("a file", False)
    else:
        step = int(state.step)
        assert step == 4 or older
        _assert_equal_states(state, saved[step])
        pipeline.run_pipeline(config, workdir, "toy")
        assert_same(workdir, finished.workdir)
    assert "Traceback" not in capsys.readouterr().err + caplog.text


@pytest.mark.parametrize(("library", "told"), [("orbax", 0), ("other", 1)])
def test_unfinished_reads_of_orbax_are_silent(monkeypatch, library, told):
    """They raise whenever Python frees them, in whatever else runs then."""
    errors = []
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: errors.append(raised.exc_value))
    with logs.without_leftovers():
        names = {}
        exec(compile(UNFINISHED, f"/lib/{library}/checkpoint/read.py", "exec"), names)
        reading = names["read"]()
        reading.send(None)
        del reading
        gc.collect()
    assert len(errors) == told


def _not_embedded(workdir):
    for name in ("results.json", "embedding.npz"):
        (workdir / name).unlink()


@pytest.mark.parametrize("kind", CHECKPOINT_KINDS)
def test_a_run_with_a_damaged_checkpoint(copy, finished, caplog, kind):
    """The older checkpoint is trained to the end, and nothing else is different afterward."""
    config, workdir = copy
    _not_embedded(workdir)
    CHECKPOINT_KINDS[kind](workdir)
    pipeline.run_pipeline(config, workdir, "toy")
    assert "is damaged" in caplog.text
    assert "pybind11" not in caplog.text
    assert list((workdir / "damaged").iterdir())
    assert (workdir / "checkpoints" / "4").is_dir()
    assert_same(workdir, finished.workdir)


@pytest.mark.parametrize("kind", CHECKPOINT_KINDS)
def test_the_only_checkpoint_damaged(copy, kind):
    config, workdir = copy
    _not_embedded(workdir)
    shutil.rmtree(workdir / "checkpoints" / "2")
    CHECKPOINT_KINDS[kind](workdir)
    with pytest.raises(InputError, match=r"is damaged \(it.*\), and no other") as error:
        pipeline.run_pipeline(config, workdir, "toy")
    assert "\n" not in str(error.value)
