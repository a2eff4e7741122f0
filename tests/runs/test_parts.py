"""An embedding under way: what goes on from its rows, and what does not."""

import jax
import numpy as np
import pytest
from etils import epath

from cluster_jax.core import hosts
from cluster_jax.core.checks import InputError
from cluster_jax.encoding import embed
from cluster_jax.encoding.embed import Parts
from cluster_jax.runs import features

ROWS = np.arange(20.0).reshape(10, 2)


def _collect(kept, stop=None, error=KeyboardInterrupt):
    """Rows in batches of three, and the row that the batches started with."""
    started = []

    def embed_from(start):
        started.append(start)
        for first in range(start, 10, 3):
            if stop is not None and first >= stop:
                raise error
            yield {"a": ROWS[first : first + 3], "b": ROWS[first : first + 3, :1] > 8}

    rows = embed.collect(kept, embed_from)
    np.testing.assert_array_equal(rows["a"], ROWS)
    np.testing.assert_array_equal(rows["b"], ROWS[:, :1] > 8)
    return started


@pytest.fixture
def kept(tmp_path):
    return Parts(epath.Path(tmp_path) / "x.npz", "made from this")


def test_an_interruption_keeps_all_batches(kept):
    with pytest.raises(KeyboardInterrupt):
        _collect(kept, 6)
    with pytest.raises(ZeroDivisionError):
        _collect(kept, 9, ZeroDivisionError)
    assert _collect(kept) == [9]
    assert _collect(kept) == [10]
    kept.remove()
    assert not kept.folder.exists()
    assert _collect(None) == [0]
    assert _collect(Parts(epath.Path("gs://bucket/x.npz"), "")) == [0]


def test_a_kill_keeps_what_was_written(kept, monkeypatch):
    monkeypatch.setattr(embed, "SECONDS", -1.0)
    written, add = [], Parts.add

    def added(parts, first, rows):  # A kill leaves the file of the second batch.
        written.append(first)
        if len(written) <= 2:
            add(parts, first, rows)

    with monkeypatch.context() as patch:
        patch.setattr(Parts, "add", added)
        assert _collect(kept) == [0]
    assert written == [0, 3, 6, 9]
    assert _collect(kept) == [6]


@pytest.mark.parametrize("changed", ["fingerprint", "rows", "damaged"])
def test_other_rows_are_made_again(kept, changed):
    with pytest.raises(KeyboardInterrupt):
        _collect(kept, 6)
    with pytest.raises(KeyboardInterrupt):
        _collect(kept, 9)
    assert {file.name for file in kept.folder.iterdir()} == {"rows_0.npz", "rows_6.npz"}
    if changed == "fingerprint":
        kept = kept._replace(fingerprint="made from that")
    elif changed == "rows":
        (kept.folder / "rows_0.npz").unlink()
    else:
        (kept.folder / "rows_0.npz").write_bytes(b"PK")
    assert _collect(kept) == [0]


def test_nothing_is_written_into_a_folder_that_is_lost(kept):
    lost = kept._replace(file=kept.file.parent / "lost" / "x.npz")
    with pytest.raises(FileNotFoundError):
        _collect(lost, 6)
    assert not lost.file.parent.exists()


def test_files_of_others_are_left(kept):
    with pytest.raises(KeyboardInterrupt):
        _collect(kept, 6)
    for name in ("mine.txt", "part_1.npz"):
        (kept.folder / name).write_text("mine")
    kept.remove()
    assert sorted(f.name for f in kept.folder.iterdir()) == ["mine.txt", "part_1.npz"]


@pytest.fixture
def as_process(monkeypatch):
    """A function that makes this process one of a job."""
    monkeypatch.setattr(hosts, "wait_for_all", lambda name: None)

    def set_to(number, count=2):
        monkeypatch.setattr(jax, "process_index", lambda: number)
        monkeypatch.setattr(jax, "process_count", lambda: count)

    return set_to


@pytest.mark.parametrize(("count", "step"), [(40, 8), (39, 8), (7, 8), (3, 1), (17, 5), (9, 64)])
def test_shares_hold_every_row_once_in_whole_steps(as_process, count, step):
    found = []
    for number in range(3):
        as_process(number, 3)
        found.append(features.share(count, step))
    assert [i for share in found for i in share] == list(range(count))
    assert min(map(len, found)) > 0
    assert all(share.start % min(step, count // 3) == 0 for share in found)


def test_more_processes_than_rows(as_process):
    as_process(0, 3)
    with pytest.raises(InputError, match="at least one for each of 3 processes; got 2"):
        features.share(2, 8)
