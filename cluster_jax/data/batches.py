"""Which images a step sees, and their delivery; the order is a function of (seed, step)."""

import functools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from cluster_jax.data.images import Dataset, order

# A dict of arrays, or, with labeled rows, a dict of such dicts.
Batch = dict[str, Any]

# Added to the seed of a part: parts of one size must not be permuted alike.
SHIFT = {"all": 0, "unlabeled": 0, "labeled": 2**32}

# Batches of an evaluation decoded ahead: one while the device works on another.
EVALUATION_PREFETCH = 2


def steps_per_epoch(size: int, batch_size: int) -> int:
    """Whole batches in `size` images; the rest of an epoch's permutation is dropped.

    Raises:
        ValueError: a batch below one image, or fewer images than a batch.
    """
    if batch_size < 1:
        raise ValueError(f"the batch size is {batch_size}; expected a positive number of images")
    if size < batch_size:
        raise ValueError(
            f"the set has {size} images, fewer than a batch of {batch_size}; lower train.batch_size"
        )
    return size // batch_size


def indices(*, seed: int, size: int, batch_size: int, step: int) -> np.ndarray:
    """Images of one global batch: a pure function of seed and step, no state.

    Each epoch has a permutation of its own, so that an image is seen at most once in it.

    Returns:
        int32 `[batch_size]`.
    """
    epoch, position = divmod(step, steps_per_epoch(size, batch_size))
    start = position * batch_size
    return _permutation(seed, size, epoch)[start : start + batch_size]


def parts(dataset: Dataset, batch_size: int, labeled: int | None) -> dict[str, tuple]:
    """Which images each part of a batch is drawn from, and how many.

    Args:
        dataset: the images.
        batch_size: images of the global batch.
        labeled: how many of them come from the images of known classes, the others from the
            unlabeled ones; None: a batch has one part, drawn from all images.

    Returns:
        Name -> (indices int32 `[n]`, number of rows): `"all"`; or `"labeled"` and
        `"unlabeled"`, without a part of no rows.

    Raises:
        ValueError: more labeled rows than the batch has, or no class is known.
    """
    if labeled is None:
        return {"all": (np.arange(dataset.size, dtype=np.int32), batch_size)}
    if dataset.known is None:
        raise ValueError(
            f"train.labeled_batch_size = {labeled}, but no class is known; set novel.classes, the "
            "number of labeled classes"
        )
    if not 1 <= labeled <= batch_size:
        raise ValueError(
            f"train.labeled_batch_size must be 1 to the batch of {batch_size} images; got {labeled}"
        )
    counts = {"labeled": labeled, "unlabeled": batch_size - labeled}
    members = {"labeled": dataset.known >= 0, "unlabeled": dataset.known < 0}
    return {
        name: (np.flatnonzero(members[name]).astype(np.int32), count)
        for name, count in counts.items()
        if count
    }


def with_images(batch: Batch, images: Any) -> Batch:
    """A batch of indices with their rows of `images` `[N, H, W, C]`, in each of its parts."""
    if "index" in batch:
        return {**batch, "image": images[batch["index"]]}
    return {name: with_images(part, images) for name, part in batch.items()}


def stream(
    dataset: Dataset,
    *,
    seed: int,
    batch_size: int,
    labeled: int | None,
    start: int,
    stop: int,
    process: int,
    processes: int,
    prefetch: int,
) -> Generator[Batch]:
    """This process's rows of the batches of steps `start` to `stop - 1`.

    A resident set gives `{"index"}` only: the step gathers on the device. A streamed one gives
    `{"index", "image"}`, decoded up to `prefetch` batches ahead, in threads that end when
    the iterator is closed or used up; what they raise is raised here, at its batch.

    With `labeled` rows a batch is `{"labeled": {"index", "label"}, "unlabeled": {"index"}}`
    (and images): no label of an unlabeled image is in it. Each part has epochs of its own.

    Args:
        dataset: the images.
        seed: of the order.
        batch_size: images of the global batch.
        labeled: see `parts`.
        start: first step; any step can be the first.
        stop: the step after the last.
        process: rank of this process.
        processes: number of processes; each has `batch_size / processes` contiguous rows.
        prefetch: number of batches decoded ahead, at least 1.

    Raises:
        ValueError: the batch cannot be divided or filled, or nothing may be prefetched.
    """
    drawn_from = parts(dataset, batch_size, labeled)
    for members, count in drawn_from.values():
        steps_per_epoch(len(members), count)
    rows = {name: _rows(count, process, processes) for name, (_, count) in drawn_from.items()}
    if prefetch < 1:
        raise ValueError(f"train.prefetch = {prefetch}; expected at least 1 batch")

    def part(name: str, step: int) -> dict[str, np.ndarray]:
        members, count = drawn_from[name]
        own = seed + SHIFT[name]
        place = indices(seed=own, size=len(members), batch_size=count, step=step)[rows[name]]
        found = {"index": members[place]}
        if name == "labeled":
            found["label"] = dataset.known[found["index"]]
        if dataset.images is None:
            found["image"] = dataset.fetch(found["index"])
        return found

    def batch(step: int) -> Batch:
        found = {name: part(name, step) for name in drawn_from}
        return found["all"] if labeled is None else found

    steps = range(start, stop)
    if dataset.images is not None:
        return (batch(step) for step in steps)
    return _ahead(batch, steps, prefetch)


def evaluation(
    dataset: Dataset, *, batch_size: int, process: int, processes: int
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Every image once, in order, in batches of one size: none is dropped.

    The last batch is filled up by repeating the last image.

    Args:
        dataset: the images.
        batch_size: images of the global batch; may exceed the size of the set.
        process: rank of this process.
        processes: number of processes; each has `batch_size / processes` contiguous rows.

    Returns:
        Iterator of (uint8 `[batch_size / processes, H, W, C]`, their indices int32, number of
        valid rows in the global batch: its first ones).

    Raises:
        ValueError: the batch cannot be divided.
    """
    if batch_size < 1:
        raise ValueError(f"the batch size is {batch_size}; expected a positive number of images")
    rows = _rows(batch_size, process, processes)

    def batch(start: int) -> tuple[np.ndarray, np.ndarray, int]:
        wanted = np.arange(start, start + batch_size, dtype=np.int32)[rows]
        index = np.minimum(wanted, np.int32(dataset.size - 1))
        return dataset.fetch(index), index, min(batch_size, dataset.size - start)

    return _ahead(batch, range(0, dataset.size, batch_size), EVALUATION_PREFETCH)


def _ahead(function: Callable[[int], Any], items: Iterable[int], depth: int) -> Iterator:
    """`function` of each item in order, computed by a thread at most `depth` items ahead."""
    items = iter(items)
    waiting: deque = deque()
    pool = ThreadPoolExecutor(max_workers=1)
    try:
        for _, item in zip(range(depth), items, strict=False):
            waiting.append(pool.submit(function, item))
        while waiting:
            result = waiting.popleft().result()
            for item in items:
                waiting.append(pool.submit(function, item))
                break
            yield result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@functools.lru_cache(maxsize=2)
def _permutation(seed: int, size: int, epoch: int) -> np.ndarray:
    """Order of the images in an epoch, int32 `[size]`; read-only, since it is cached."""
    permutation = order(size, seed, epoch)
    permutation.flags.writeable = False
    return permutation


def _rows(batch_size: int, process: int, processes: int) -> slice:
    """Rows of a global batch that a process holds."""
    if batch_size % processes:
        raise ValueError(
            f"a batch of {batch_size} images cannot be divided among {processes} processes; "
            f"choose a multiple of {processes}"
        )
    each = batch_size // processes
    return slice(process * each, (process + 1) * each)
