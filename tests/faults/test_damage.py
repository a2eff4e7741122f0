"""Damaged files: named, put aside, and made again; never a wrong state, never a traceback."""

import contextlib
import random
import shutil

import jax
import numpy as np
import pytest

from cluster_jax import estimators
from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.pipeline import build
from cluster_jax.pipeline import run as pipeline
from cluster_jax.training import checkpoint, loop
from tests import toy
from tests.faults.runs import assert_same

pytestmark = [
    pytest.mark.usefixtures("one_device", "traced_once", "compiled_once"),
    # Coroutines that Orbax leaves of a failed restore, whenever they are collected.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

# Files that a run reads again and makes again.
MADE_AGAIN = ("results.json", "images.json", "embedding.npz", "clusters.npz")


@pytest.fixture(scope="module")
def training(finished):
    return toy.built(finished.config)


def _flip(file, where=None, rng=random):
    """One bit of one byte."""
    content = bytearray(file.read_bytes())
    where = rng.randrange(len(content)) if where is None else where % len(content)
    content[where] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def _truncate(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _folder(file):
    file.unlink()
    file.mkdir()


KINDS = {
    # Where a bit always counts: that of a number may change its last digit alone.
    "flip": lambda file: _flip(file, file.stat().st_size // 2, random.Random(0)),
    "truncated": _truncate,
    "empty": lambda file: file.write_bytes(b""),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "text": lambda file: file.write_text("not what it was"),
    "folder": _folder,
    "pickle": lambda file: file.write_bytes(b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR."),
}


def _data_files(folder):
    return sorted(f for f in (folder / "checkpoints" / "4").rglob("*") if f.is_file())


def _restored(training, workdir):
    saved = checkpoint.Checkpoints(workdir / "checkpoints", keep=2, method=training.name)
    with contextlib.closing(saved):
        return saved.restore(build.initial_state(training))


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
    _flip(rng.choice(files), rng=rng)
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
    _flip(rng.choice(_data_files(workdir)), rng=rng)
    try:
        state = _restored(training, workdir)
    except InputError as error:
        said = str(error)
    else:
        said = None
    if said is not None:
        assert not older
        assert "checkpoints/4, the only checkpoint, is damaged" in said
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
            _flip(file, where=file.stat().st_size // 2)


CHECKPOINT_KINDS = {"renamed": _rename, "a file": _replace_by_file, "flipped": _flip_values}


@pytest.mark.parametrize("kind", CHECKPOINT_KINDS)
def test_a_finished_run_with_a_damaged_checkpoint(copy, finished, caplog, kind):
    """The older checkpoint is trained to the end, and nothing else is different afterward."""
    config, workdir = copy
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
    shutil.rmtree(workdir / "checkpoints" / "2")
    CHECKPOINT_KINDS[kind](workdir)
    with pytest.raises(InputError, match=r"the only checkpoint, is damaged \(it.*\)") as error:
        pipeline.run_pipeline(config, workdir, "toy")
    assert "\n" not in str(error.value)


def _cases():
    reduced = {("flip", name) for name in MADE_AGAIN} | {("folder", "clusters.npz")}
    for kind in KINDS:
        for name in MADE_AGAIN:
            slow = () if (kind, name) in reduced else (pytest.mark.slow,)
            yield pytest.param(kind, name, marks=slow)


@pytest.mark.parametrize(("kind", "name"), [*_cases()])
def test_what_can_be_made_again(copy, finished, monkeypatch, caplog, kind, name):
    """The command puts the damaged file aside and makes it again; nothing is trained."""
    config, workdir = copy
    KINDS[kind](workdir / name)
    with pytest.raises(InputError, match=r"is damaged|not finished"):
        estimators.load(workdir)
    monkeypatch.setattr(loop, "make_step", lambda *_: pytest.fail("trained again"))
    pipeline.run_pipeline(config, workdir, "toy")
    assert f"{name} is damaged" in caplog.text
    assert (workdir / "damaged" / name).exists()
    assert_same(workdir, finished.workdir)
    estimators.load(workdir)


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_config(copy, kind):
    config, workdir = copy
    KINDS[kind](workdir / "config.json")
    for use in (lambda: pipeline.run_pipeline(config, workdir), lambda: estimators.load(workdir)):
        with pytest.raises(InputError, match=r"config\.json is damaged \(.*\); restore it"):
            use()


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", "[" * 100_000, '{"a": NaN}'])
def test_what_is_no_config(copy, content):
    config, workdir = copy
    (workdir / "config.json").write_text(content)
    for use in (lambda: pipeline.run_pipeline(config, workdir), lambda: estimators.load(workdir)):
        with pytest.raises(InputError) as error:
            use()
        assert "\n" not in str(error.value)


def test_a_config_that_was_deleted(copy):
    """Nothing else says what the embedding is of; it was published under another config."""
    config, workdir = copy
    (workdir / "config.json").unlink()
    config = config.copy_and_resolve_references()
    config.network.width = 2
    with pytest.raises(InputError, match=r"must have config\.json beside .*; got none"):
        pipeline.run_pipeline(config, workdir, "toy")


def test_an_embedding_of_another_run(copy, finished, tmp_path):
    config, workdir = copy
    (workdir / "results.json").unlink()
    config = config.copy_and_resolve_references()
    config.seed = 1
    values = io.read_json(workdir / "config.json") | {"seed": 1}
    io.write_json(workdir / "config.json", values, checksum=True)
    with pytest.raises(InputError, match=r"embedding\.npz must be the embedding of this run"):
        pipeline.run_pipeline(config, workdir, "toy")


def test_a_checksum_of_json_covers_every_byte_that_counts(tmp_path):
    value = {"a": [1, 2.5, "x\udcff"], "b": None}
    io.write_json(tmp_path / "x.json", value, checksum=True)
    assert io.read_json(tmp_path / "x.json") == value
    content = (tmp_path / "x.json").read_bytes()
    for where in range(len(content)):
        changed = bytearray(content)
        changed[where] ^= 1
        (tmp_path / "x.json").write_bytes(changed)
        with contextlib.suppress(io.DamagedFile):
            # White space and the name of the checksum itself are no content.
            read = io.read_json(tmp_path / "x.json")
            assert {key: read[key] for key in value} == value


def test_a_checksum_of_arrays_covers_every_byte(tmp_path):
    file = tmp_path / "x.npz"
    io.write_arrays(file, {"a": np.arange(3.0)}, "made:3")
    assert io.read_fingerprint(file) == "made:3"
    np.testing.assert_array_equal(np.load(file)["a"], np.arange(3.0))
    content = file.read_bytes()
    for where in range(len(content)):
        changed = bytearray(content)
        changed[where] ^= 4
        file.write_bytes(changed)
        for read in (io.read_arrays, io.read_fingerprint):
            with pytest.raises(io.DamagedFile):
                read(file)
