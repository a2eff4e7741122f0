"""Batches: the images of a step as a pure function of (seed, step), and prefetching."""

import functools
import math
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np

from cluster_jax.core import checks
from cluster_jax.core.checks import InputError
from cluster_jax.data.images import Dataset, computed_ahead, order

# A dict of arrays, or, with labeled rows, a dict of such dicts.
Batch = dict[str, Any]

# Added to the seed of a part of a batch, so that parts of equal size get different permutations.
SEED_OFFSETS = {"all": 0, "unlabeled": 0, "labeled": 2**32}

# Batches that an evaluation decodes ahead, so that decoding overlaps with computation.
EVALUATION_PREFETCH = 2

# A set that is read in blocks: parts of a batch at most, each from blocks of its own, and images
# in use at a time, among which the order is random.
LANES, WINDOW = 32, 8_192


def steps_per_epoch(size: int, batch_size: int) -> int:
    """Counts the full batches in `size` images; the remaining images of an epoch are dropped.

    Raises:
        InputError: the batch is larger than the set.
    """
    checks.at_most("train.batch_size", batch_size, size, "images of the set")
    return size // batch_size


def epoch_order(
    *, seed: int, size: int, batch_size: int, epoch: int, block_of: np.ndarray | None = None
) -> np.ndarray:
    """Returns the order of the images in an epoch: its batches, one after another.

    It is a pure function of its arguments, and no image occurs twice. Where images are read in
    blocks, a batch has up to `LANES` equal contiguous parts, each from blocks of its own, so that
    processes, which have contiguous rows of a batch, read different blocks. The blocks are in
    random order, and so are the images in a window of each part; the windows of the parts begin
    at different steps, so that the reading of blocks is spread evenly.

    Args:
        seed: of the run.
        size: number of images.
        batch_size: images of the global batch.
        epoch: from 0 on.
        block_of: int `[size]`, ascending, the block in which each image is stored; None: any image
            is read by itself.

    Returns:
        int32 `[steps_per_epoch * batch_size]`, read-only, since it is shared.

    Raises:
        InputError: the batch is larger than the set.
    """
    length = steps_per_epoch(size, batch_size) * batch_size
    if block_of is None:
        rows = order(size, seed, epoch)[:length]
    else:
        rows = _by_blocks(block_of, length, batch_size, seed, epoch)
    rows.flags.writeable = False
    return rows


def _by_blocks(
    block_of: np.ndarray, length: int, batch_size: int, seed: int, epoch: int
) -> np.ndarray:
    """Draws `length` images, whole batches, in the order of `epoch_order` for blocks."""
    _, block_of = np.unique(block_of, return_inverse=True)
    place = np.argsort(order(block_of[-1] + 1, seed, epoch))  # of each block among the blocks
    rows = np.argsort(place[block_of], kind="stable")[:length].astype(np.int32)
    lanes = math.gcd(batch_size, LANES)
    window = WINDOW // lanes
    offsets = np.arange(lanes) * window // lanes
    windows = (np.arange(length // lanes) + offsets[:, None]) // window
    ranks = order(length, seed, epoch, 1).reshape(lanes, -1)
    within = np.argsort(windows * length + ranks, axis=1)
    rows = np.take_along_axis(rows.reshape(lanes, -1), within, axis=1)
    by_step = rows.reshape(lanes, -1, batch_size // lanes).swapaxes(0, 1)
    return np.ascontiguousarray(by_step).ravel()


def parts(dataset: Dataset, batch_size: int, labeled: int | None) -> dict[str, tuple]:
    """Returns the parts of a batch: the images to draw from, and the number of rows.

    Args:
        dataset: the images.
        batch_size: images of the global batch.
        labeled: number of rows with labeled images, the others have unlabeled images; None: one
            part with all images.

    Returns:
        Name -> (indices int32 `[n]`, number of rows): `"all"`; or `"labeled"` and
        `"unlabeled"`, without a part of 0 rows. A part may have fewer images than rows, which is
        not checked.

    Raises:
        InputError: `labeled` is a number, but the set has no `partial_labels`.
    """
    if labeled is None:
        return {"all": (np.arange(dataset.size, dtype=np.int32), batch_size)}
    if dataset.partial_labels is None:
        must = "train.labeled_batch_size must be None where no class is known"
        raise InputError(f"{must}; got {labeled}: set novel.classes, the number of labeled classes")
    is_labeled = dataset.partial_labels >= 0
    found = {
        "labeled": (np.flatnonzero(is_labeled).astype(np.int32), labeled),
        "unlabeled": (np.flatnonzero(~is_labeled).astype(np.int32), batch_size - labeled),
    }
    return {name: part for name, part in found.items() if part[1]}


def with_images(batch: Batch, images: Any) -> Batch:
    """Returns a batch with the images at its indices, `image`, in each part.

    `images` has all images of the set, `[N, H, W, C]`.
    """
    if "index" in batch:
        return {**batch, "image": images[batch["index"]]}
    return {name: with_images(part, images) for name, part in batch.items()}


def stream(
    dataset: Dataset,
    *,
    seed: int,
    batch_size: int,
    labeled: int | None,
    steps: range,
    prefetch: int,
    share: tuple[int, int] = (0, 1),
) -> Generator[Batch]:
    """Yields this process's rows of the batches of some consecutive steps.

    A batch of a cached set is `{"index"}`: the step gathers the images on the device. A batch of a
    streamed set is `{"index", "image"}`, decoded up to `prefetch` batches ahead in threads that
    end when the iterator is closed or exhausted; an error is raised when its batch is reached.

    With `labeled` rows a batch is `{"labeled": {"index", "label"}, "unlabeled": {"index"}}`, and
    `"image"` if streamed. Unlabeled images have no label in it. Each part has its own epochs.

    Args:
        dataset: the images.
        seed: random seed of the permutations.
        batch_size: images of the global batch.
        labeled: see `parts`.
        steps: the numbers of the steps, counted from 0 on since the beginning of the training.
        prefetch: number of batches decoded ahead, at least 1.
        share: rank and number of the processes; each has `1 / number` of the rows of each part,
            contiguous ones.

    Raises:
        InputError: a part of the batch is not divisible by the processes or larger than its set, or
            see `parts`. It is raised at the call, before the first batch.
    """
    sources = parts(dataset, batch_size, labeled)
    lengths = {name: steps_per_epoch(len(of), count) for name, (of, count) in sources.items()}
    rows = {name: _rows(count, *share) for name, (_, count) in sources.items()}

    @functools.lru_cache(maxsize=2 * len(sources))  # Two epochs meet in what is read ahead.
    def images_of(name: str, epoch: int) -> np.ndarray:
        members, count = sources[name]
        blocks = None if dataset.block_of is None else dataset.block_of[members]
        of = {"size": len(members), "batch_size": count, "epoch": epoch, "block_of": blocks}
        return members[epoch_order(seed=seed + SEED_OFFSETS[name], **of)]

    def part_batch(name: str, step: int) -> dict[str, np.ndarray]:
        epoch, position = divmod(step, lengths[name])
        index = images_of(name, epoch)[position * sources[name][1] :][rows[name]]
        arrays = {"index": index}
        if name == "labeled" and dataset.partial_labels is not None:
            arrays["label"] = dataset.partial_labels[index]
        if dataset.images is None:
            arrays["image"] = dataset.fetch(index)
        return arrays

    def batch(step: int) -> Batch:
        by_name = {name: part_batch(name, step) for name in sources}
        return by_name["all"] if labeled is None else by_name

    if dataset.images is not None:
        return (batch(step) for step in steps)
    return computed_ahead(batch, steps, prefetch)


def evaluation(
    dataset: Dataset, *, batch_size: int, share: tuple[int, int] = (0, 1), start: int = 0
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Yields batches of equal size that contain every image once, in order.

    The last batch is padded by repeating the last image. Unreadable images are replaced, see
    `Dataset.unreadable`.

    Args:
        dataset: the images.
        batch_size: images of the global batch; may exceed the size of the set.
        share: rank and number of the processes; each has `batch_size / number` contiguous rows.
        start: first image, a multiple of `batch_size`; for resuming.

    Returns:
        Iterator of (items as of `Dataset.fetch`, such as uint8 `[batch_size / number, H, W, C]`;
        their indices int32; number of valid rows of the global batch, its leading rows).

    Raises:
        InputError: the batch is not divisible by the processes; raised at the call.
    """
    rows = _rows(batch_size, *share)

    def batch(start: int) -> tuple[np.ndarray, np.ndarray, int]:
        positions = np.arange(start, start + batch_size, dtype=np.int32)[rows]
        index = np.minimum(positions, np.int32(dataset.size - 1))
        return dataset.fetch(index), index, min(batch_size, dataset.size - start)

    starts = range(start, dataset.size, batch_size)
    return computed_ahead(batch, starts, EVALUATION_PREFETCH)


def _rows(batch_size: int, process: int, processes: int) -> slice:
    """Returns the rows of a global batch, or of a part of it, that belong to a process.

    Raises:
        InputError: `batch_size` is not a multiple of the number of processes.
    """
    checks.multiple("a batch", batch_size, processes, "the number of processes")
    local = batch_size // processes
    return slice(process * local, (process + 1) * local)
