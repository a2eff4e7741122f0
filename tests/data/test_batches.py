"""Order, sharding, delivery and padding of batches."""

import threading
import time

import numpy as np
import pytest

from cluster_jax.data import batches
from cluster_jax.data.images import Dataset
from tests.rows import every_row

SIZE = 23


def make(resident: bool, fetch=None) -> Dataset:
    pixels = np.arange(SIZE * 4, dtype=np.uint8).reshape(SIZE, 2, 2, 1)
    fetch = fetch or pixels.__getitem__
    return Dataset(
        "made", SIZE, (2, 2, 1), pixels if resident else None, fetch, None, None, None, ()
    )


def collect(dataset, **changes):
    arguments = {
        "seed": 3, "batch_size": 6, "labeled": None, "steps": range(8),
        "prefetch": 2,
    }  # fmt: skip
    return batches.stream(dataset, **arguments | changes)


def order(epoch: int, seed: int = 3, **more) -> np.ndarray:
    arguments = {"size": SIZE, "batch_size": 6, "seed": seed, "epoch": epoch}
    return batches.epoch_order(**arguments | more)


def at(step: int, seed: int = 3) -> np.ndarray:
    epoch, position = divmod(step, 3)
    return order(epoch, seed)[6 * position : 6 * position + 6]


def test_parts_of_equal_size_have_orders_of_their_own():
    """Else a labeled image would always be beside the same unlabeled one."""
    known = np.repeat([0, -1], 12)
    dataset = make(resident=True)._replace(
        size=24, images=np.zeros((24, 2, 2, 1), np.uint8), partial_labels=known
    )
    for batch in collect(dataset, batch_size=8, labeled=4, steps=range(3)):
        labeled, unlabeled = batch["labeled"]["index"], batch["unlabeled"]["index"] - 12
        assert not np.array_equal(labeled, unlabeled)


def test_an_epoch_sees_no_image_twice_and_epochs_differ():
    epochs = [np.concatenate([at(3 * e + s) for s in range(3)]) for e in range(40)]
    for epoch in epochs:
        assert epoch.dtype == np.int32
        assert len(set(epoch.tolist())) == 18
        assert 0 <= epoch.min() <= epoch.max() < SIZE
    assert len({tuple(epoch) for epoch in epochs}) == 40
    # Each image is left out of 5 / 23 of the epochs; 40 of them leave none out always.
    assert set(np.concatenate(epochs).tolist()) == set(range(SIZE))


def test_indices_are_a_function_of_seed_and_step():
    batch = next(collect(make(resident=True), steps=range(7, 8)))
    np.testing.assert_array_equal(batch["index"], at(7))
    assert not np.array_equal(at(0, seed=4), at(0, seed=3))
    with pytest.raises(ValueError, match="read-only"):
        at(0)[0] = 1


# 100 blocks of 30 images, and one of 11.
BLOCK_OF = np.append(np.repeat(np.arange(100), 30), [100] * 11).astype(np.int32)


def by_blocks(epoch: int, **more) -> np.ndarray:
    """The order of an epoch, a batch a row: 32 parts of four images."""
    some = order(epoch, size=3011, batch_size=128, block_of=BLOCK_OF, **more)
    return some.reshape(-1, 128)


def test_an_epoch_in_blocks_sees_no_image_twice_and_epochs_differ():
    epochs = [by_blocks(epoch) for epoch in range(5)]
    for epoch in epochs:
        assert epoch.dtype == np.int32
        assert epoch.shape == (23, 128)
        assert len(set(epoch.ravel().tolist())) == epoch.size
        assert 0 <= epoch.min() <= epoch.max() < 3011
    assert len({epoch.tobytes() for epoch in epochs}) == 5
    np.testing.assert_array_equal(by_blocks(2), epochs[2])
    assert not np.array_equal(by_blocks(2, seed=4), epochs[2])
    assert set(np.concatenate(epochs).ravel().tolist()) == set(range(3011))


def test_each_part_of_a_batch_has_blocks_of_its_own(monkeypatch):
    """So that a process reads its share of the blocks, and few of them at a time."""
    monkeypatch.setattr(batches, "LANES", 4)
    monkeypatch.setattr(batches, "WINDOW", 4 * 120)
    rows = BLOCK_OF[by_blocks(0)].reshape(23, 4, 32)
    blocks = [set(rows[:, lane].ravel().tolist()) for lane in range(4)]
    assert sum(map(len, blocks)) <= 101 + 3  # A block can lie on the border of two parts.
    new = np.zeros(23, int)
    for lane in range(4):
        steps = {block: np.flatnonzero((rows[:, lane] == block).any(1)) for block in blocks[lane]}
        # An image is at most two windows of 120 from others of its block: eight steps of 32.
        assert max(at.max() - at.min() for at in steps.values()) <= 8
        assert np.mean([len(set(row)) for row in rows[:, lane].tolist()]) > 3
        np.add.at(new, [at.min() for at in steps.values()], 1)
    # A window has four blocks: all parts would begin new ones in the same steps, 16 at once.
    assert new[1:].max() <= 10


@pytest.mark.parametrize("resident", [True, False])
def test_stream_is_indices_and_starts_anywhere(resident):
    dataset = make(resident)
    got = list(collect(dataset, steps=range(2, 9)))
    assert len(got) == 7
    for step, batch in zip(range(2, 9), got, strict=True):
        np.testing.assert_array_equal(batch["index"], at(step))
        assert set(batch) == ({"index"} if resident else {"index", "image"})
        if not resident:
            np.testing.assert_array_equal(batch["image"], dataset.fetch(at(step)))


@pytest.mark.parametrize("resident", [True, False])
def test_processes_share_a_batch(resident):
    dataset = make(resident)
    parts = [list(collect(dataset, share=(p, 3))) for p in range(3)]
    for step in range(8):
        rows = [part[step]["index"] for part in parts]
        assert [len(r) for r in rows] == [2, 2, 2]
        np.testing.assert_array_equal(np.concatenate(rows), at(step))


def test_worker_error_comes_out_at_its_batch():
    pixels = make(True).images
    bad = at(3)[2]

    def fetch(index):
        if bad in index and np.array_equal(index, at(3)):
            raise RuntimeError("picture 17 is broken")
        return pixels[index]

    stream = collect(make(False, fetch))
    assert [next(stream)["index"].tolist() for _ in range(3)] == [at(s).tolist() for s in range(3)]
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="picture 17 is broken"):
        next(stream)
    assert threading.active_count() < before


@pytest.mark.parametrize("prefetch", [1, 3])
def test_no_more_than_prefetch_batches_wait(prefetch):
    fetched = []
    pixels = make(True).images

    def fetch(index):
        fetched.append(len(index))
        return pixels[index]

    stream = collect(make(False, fetch), prefetch=prefetch, steps=range(20))
    for taken in range(1, 6):
        next(stream)
        deadline = time.monotonic() + 5
        while len(fetched) < taken + prefetch and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.02)  # time enough for a worker without a bound to run on
        assert len(fetched) == taken + prefetch
    stream.close()
    assert len(fetched) == 5 + prefetch


def test_early_close_ends_the_thread():
    before = threading.active_count()
    running, go_on = threading.Event(), threading.Event()
    pixels = make(True).images
    calls = []

    def fetch(index):
        calls.append(1)
        if len(calls) == 3:
            running.set()
            assert go_on.wait(5)
        return pixels[index]

    stream = collect(make(False, fetch), prefetch=4, steps=range(50))
    next(stream)
    assert running.wait(5)
    threading.Timer(0.05, go_on.set).start()
    stream.close()  # while a batch is being fetched and others wait
    assert len(calls) == 3
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.001)
    assert threading.active_count() == before


@every_row("batch_size", [6, 23, 40, 1])
@every_row("resident", [True, False])
def test_evaluation_gives_every_image_once_in_order(resident, batch_size):
    dataset = make(resident)
    seen = []
    for pixels, index, count in batches.evaluation(dataset, batch_size=batch_size):
        assert pixels.shape == (batch_size, 2, 2, 1)
        assert index.dtype == np.int32
        np.testing.assert_array_equal(pixels, dataset.fetch(index))
        assert (index[count:] == SIZE - 1).all()
        seen += index[:count].tolist()
    assert seen == list(range(SIZE))


def test_evaluation_of_two_processes_makes_one_batch():
    dataset = make(False)
    whole = list(batches.evaluation(dataset, batch_size=8))
    halves = [list(batches.evaluation(dataset, batch_size=8, share=(p, 2))) for p in (0, 1)]
    for (pixels, index, count), left, right in zip(whole, *halves, strict=True):
        np.testing.assert_array_equal(pixels, np.concatenate([left[0], right[0]]))
        np.testing.assert_array_equal(index, np.concatenate([left[1], right[1]]))
        assert count == left[2] == right[2]
