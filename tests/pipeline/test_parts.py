"""Parts of an embedding: what goes on from them, and what does not."""

import numpy as np
import pytest
from etils import epath

from cluster_jax.core import interrupt
from cluster_jax.pipeline import parts
from cluster_jax.pipeline.parts import Parts

ROWS = np.arange(20.0).reshape(10, 2)


def _collect(kept, stop=None, error=KeyboardInterrupt):
    """Rows in batches of three, and the row that the batches started with."""
    started = []

    def embed_from(start):
        started.append(start)
        for first in range(start, 10, 3):
            if stop is not None and first >= stop:
                raise error
            yield {"a": ROWS[first : first + 3], "b": ROWS[first : first + 3, :1]}

    rows = parts.collect(kept, embed_from)
    np.testing.assert_array_equal(rows["a"], ROWS)
    np.testing.assert_array_equal(rows["b"], ROWS[:, :1])
    return started


@pytest.fixture
def kept(tmp_path):
    return Parts(epath.Path(tmp_path) / "x.npz.parts", "made from this")


def test_an_embedding_that_takes_no_time_writes_nothing(kept):
    assert _collect(kept) == [0]
    assert not kept.folder.exists()
    assert _collect(None) == [0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, interrupt.Terminated])
def test_an_interruption_keeps_all_batches(kept, error):
    with pytest.raises(error):
        _collect(kept, 6, error)
    assert list(kept.folder.glob("part_*"))
    with pytest.raises(error):
        _collect(kept, 9, error)
    assert _collect(kept) == [9]
    parts.remove(kept.folder)
    assert not kept.folder.exists()
    with pytest.raises(error):
        _collect(None, 6, error)


def test_a_kill_keeps_what_was_written_by_time(kept, monkeypatch):
    with pytest.raises(ZeroDivisionError):
        _collect(kept, 6, ZeroDivisionError)
    assert not kept.folder.exists()
    monkeypatch.setattr(parts, "SECONDS", -1.0)
    with pytest.raises(ZeroDivisionError):
        _collect(kept, 6, ZeroDivisionError)
    assert _collect(kept) == [6]
    assert _collect(kept) == [10]


@pytest.mark.parametrize("changed", ["fingerprint", "content", "gap"])
def test_other_parts_are_made_again(kept, monkeypatch, changed):
    with monkeypatch.context() as patch:
        patch.setattr(parts, "SECONDS", -1.0)
        with pytest.raises(KeyboardInterrupt):
            _collect(kept, 9)
    _, second, _ = sorted(kept.folder.iterdir())
    if changed == "fingerprint":
        kept = kept._replace(fingerprint="made from that")
    elif changed == "content":
        content = bytearray(second.read_bytes())
        content[50] ^= 1
        second.write_bytes(content)
    else:
        second.unlink()
    assert _collect(kept) == [0 if changed == "fingerprint" else 3]


def test_nothing_is_written_into_a_folder_that_is_lost(kept):
    def lost():
        raise OSError("lost")

    with pytest.raises(OSError, match="lost"):
        _collect(kept._replace(guard=lost), 6)
    assert not kept.folder.exists()


def test_files_of_others_are_left(kept):
    with pytest.raises(KeyboardInterrupt):
        _collect(kept, 6)
    (kept.folder / "mine.txt").write_text("mine")
    parts.remove(kept.folder)
    assert [f.name for f in kept.folder.iterdir()] == ["mine.txt"]
