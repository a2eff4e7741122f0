"""Duplicate images: exact ones by their files, near ones by features and whole pictures."""

import functools
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from cluster_jax.clustering.representation import unit_rows
from cluster_jax.core import arrays, knn, logs
from cluster_jax.data import images as data
from cluster_jax.data.images import FACTS, Dataset
from cluster_jax.report import pictures

# The whole pictures of two images are compared if their distance is below this fraction of the
# median distance to the nearest neighbor, and one is among so many nearest neighbors of the other.
NEARNESS, _NEIGHBORS = 0.5, 20
# Correlation of the outlines of images above which their whole pictures are compared, too.
OUTLINE, _OUTLINE_SIDE = 0.97, 16
# The search compares all pairs: minutes for this many images, hours for ten times as many.
MAX_NEAR_IMAGES = 100_000
_BATCH = 256  # images fetched at a time
# Pictures that are in memory together (0.8 MB each), and pairs between two steps of the bar.
_PICTURES, _PAIRS = 256, 128
# Names of copies, or of folders of copies: "Backup", "copy of", "(1)" at the end.
_COPY = re.compile(
    r"(?<![^\W_])(backups?|copy|copies|kopie|copie|copia)(?![^\W_])|\(\d{1,2}\)(\.\w+)?$",
    re.IGNORECASE,
)
# Of two pictures of nearly as many pixels, or bytes, neither is better: a turned or a tagged file
# has some more than the original. One of less than half the bytes is of lower quality.
_SAME_SIZE, _SAME_BYTES, _SAME_QUALITY = 0.99, 0.9, 0.5
# Size of the random sample of images whose nearest neighbors determine the threshold.
_SAMPLE = 2_000


class Duplicates(NamedTuple):
    """Groups of exact and near-duplicates, with one entry per image of a group.

    Attributes:
        images: int64 `[m]`, indices among all images, ascending in each group.
        groups: int64 `[m]`, ascending, the group of each image, from 0. The largest group comes
            first; of groups of one size, that with the first image.
        is_exact: bool `[m]`, whether another image of the group has a file of the same bytes, or,
            without files, the same pixels.
        similarities: float64 `[m]`, cosine similarity to the features of the group's first image; 1
            for that image and for its exact duplicates.
        threshold: cosine similarity above which pictures were compared; None: only files of the
            same bytes were searched for, see `find`.
        facts: `[m]` of `data.images.FACTS`, of the images; for arrays, bytes are 0.
        keep: bool `[m]`, true for one image of each group: the one that a person has picked, see
            `with_picked`; else that with most pixels, unless it has half the bytes of another one;
            then one whose name is not that of a copy, or of another one with more behind it; then
            that with clearly more bytes, with the earliest date, and the first one of the run.
    """

    images: NDArray
    groups: NDArray
    is_exact: NDArray
    similarities: NDArray
    threshold: float | None
    facts: NDArray
    keep: NDArray

    @property
    def n_groups(self) -> int:
        """Number of groups."""
        return int(self.groups[-1]) + 1 if len(self.groups) else 0


def originals(repeated: Duplicates, count: int) -> NDArray:
    """Returns the image that stands for each of `count` images, the one to keep: int64 `[count]`.

    An image without a duplicate stands for itself.
    """
    result = np.arange(count)
    result[repeated.images] = repeated.images[repeated.keep][repeated.groups]
    return result


def groups_of(repeated: Duplicates | None, count: int) -> NDArray:
    """Returns the group of each of `count` images, int64 `[count]`, -1 for none."""
    result = np.full(count, -1)
    if repeated is not None:
        result[repeated.images] = repeated.groups
    return result


def are_copies(repeated: Duplicates | None, images: NDArray) -> NDArray:
    """Returns which of these images, int `[n]`, are copies of another one that is kept: bool `[n]`.

    `repeated` is None if there are no duplicates.
    """
    copies = np.empty(0, int) if repeated is None else repeated.images[~repeated.keep]
    return np.isin(images, copies)


def with_picked(repeated: Duplicates, kept: Sequence[int]) -> Duplicates:
    """Returns duplicates of which a person has picked images to keep.

    A group without a picked image stays as it is.

    Args:
        repeated: the duplicates.
        kept: indices of picked images among all images. Those in no group have no effect; of
            several in one group the last one is kept.
    """
    keep = repeated.keep.copy()
    place = {image: i for i, image in enumerate(repeated.images.tolist())}
    for i in (place[image] for image in kept if image in place):
        keep[repeated.groups == repeated.groups[i]] = False
        keep[i] = True
    return repeated._replace(keep=keep)


def to_arrays(repeated: Duplicates) -> dict[str, NDArray]:
    """Returns duplicates as arrays by name, for `from_arrays`."""
    threshold = np.nan if repeated.threshold is None else repeated.threshold
    values = {**repeated._asdict(), "threshold": threshold}
    return {name: np.asarray(value) for name, value in values.items()}


def from_arrays(stored: Mapping[str, NDArray]) -> Duplicates:
    """Returns the duplicates from the arrays of `to_arrays`."""
    threshold = stored["threshold"].item()
    values: dict[str, Any] = {**stored, "threshold": None if np.isnan(threshold) else threshold}
    return Duplicates(**values)


def record(
    repeated: Duplicates | None, sources: Sequence[str] | None
) -> list[dict[str, Any]] | None:
    """Returns all groups for the page's script, the largest first.

    Args:
        repeated: the duplicates among the images of a run; None: the result is None, too.
        sources: file name of each image of the run, or None.

    Returns:
        For each group its "kind", "exact" if all its images are the same, and its "images": the
        number of the image ("index"), "name", "width", "height", "bytes", "taken", and whether it
        is the image to "keep".
    """
    if repeated is None:
        return None
    groups = []
    for number in range(repeated.n_groups):
        places = np.flatnonzero(repeated.groups == number)
        images = []
        for place in places.tolist():
            image = int(repeated.images[place])
            facts = repeated.facts[place]
            images.append(
                {
                    "index": image,
                    "name": f"image {image}" if sources is None else sources[image],
                    **{name: facts[name].item() for name in ("width", "height", "bytes")},
                    "taken": facts["taken"].decode(),
                    "keep": bool(repeated.keep[place]),
                }
            )
        # A group may have two pairs of copies, one like the other.
        is_same = repeated.is_exact[places].all() and (repeated.similarities[places] == 1).all()
        kind = "exact" if is_same else "near"
        groups.append({"kind": kind, "images": images})
    return groups


def counts(repeated: Duplicates) -> dict[str, int | float | None]:
    """Returns the entry "duplicates" of the results: numbers of groups and images, threshold."""
    exact = int(repeated.is_exact.sum())
    return {
        "groups": repeated.n_groups,
        "exact_images": exact,
        "near_images": len(repeated.images) - exact,
        "near_above_similarity": repeated.threshold,
    }


def find(dataset: Dataset, features: NDArray, before: NDArray | None = None) -> Duplicates:
    """Returns groups of duplicates: connected components of the graph of duplicate pairs.

    Exact duplicates are files of the same bytes. Near-duplicates are pairs of similar features, see
    `near_threshold`, or of similar outlines, whose whole pictures show the same content, see
    `pictures.show_same`. Images that are not files are compared as the network sees them.
    Near-duplicates are not searched for among more than `MAX_NEAR_IMAGES` distinct images, nor
    among images with a side of less than 16 pixels: too few to tell two handwritten digits apart.

    Args:
        dataset: the n images, at least one.
        features: float `[n, d]`, features of all images.
        before: int `[n]`, the group of each image in an earlier state, -1 for none: of two images
            of which one cannot be read now, the group tells whether they show the same. None: there
            is no earlier state.
    """
    origins = first_copies(dataset)
    distinct = np.unique(origins)
    threshold = None
    pairs = np.empty((0, 2), np.int64)
    if len(distinct) <= MAX_NEAR_IMAGES and min(dataset.shape[:2]) >= _OUTLINE_SIDE:
        threshold = near_threshold(features[distinct])
        # The features of a small picture change if it is made smaller; its outlines do not.
        close = similar_pairs(features[distinct], threshold)
        pairs = np.concatenate([close, similar_pairs(outlines(dataset, distinct), OUTLINE)])
        pairs = distinct[np.unique(pairs, axis=0)]
        pairs = pairs[_are_alike(dataset, pairs, before)]
    edges = np.concatenate([np.stack([np.arange(len(origins)), origins], axis=1), pairs]).T
    graph = coo_array((np.ones(edges.shape[1], bool), tuple(edges)), shape=(len(origins),) * 2)
    _, components = connected_components(graph, directed=False)
    # The first image of each image's group, and the size of the group.
    _, firsts, groups, sizes = np.unique(
        components, return_index=True, return_inverse=True, return_counts=True
    )
    heads, sizes = firsts[groups], sizes[groups]
    images = np.lexsort((heads, -sizes))
    images = images[sizes[images] > 1]
    heads = heads[images]
    groups = np.cumsum(np.diff(heads, prepend=heads[:1]) != 0)
    # In float64: float32 rounds off differences between near-duplicates.
    similarities = (unit_rows(features[images]) * unit_rows(features[heads])).sum(axis=1)
    similarities = np.where(origins[images] == origins[heads], 1, similarities)
    is_exact = np.bincount(origins)[origins[images]] > 1
    if dataset.facts is None:
        facts = np.zeros(len(images), FACTS)
        facts["height"], facts["width"] = dataset.shape[:2]
    else:
        facts = dataset.facts(images)
    names = [""] * len(images)
    if dataset.sources is not None:
        names = [dataset.sources[i] for i in images.tolist()]
    keep = _to_keep(groups, facts, names)
    return Duplicates(images, groups, is_exact, similarities, threshold, facts, keep)


def _to_keep(groups: NDArray, facts: NDArray, names: Sequence[str]) -> NDArray:
    """Returns which image of each group is to be kept, bool `[m]`, by the order in `Duplicates`.

    Args:
        groups: int `[m]`, ascending, the group of each image that is in one.
        facts: about these images, `[m]` of `data.images.FACTS`.
        names: of these images, "" without one.
    """
    size = facts["width"].astype(np.int64) * facts["height"]
    is_full = _is_near_largest(size, groups, _SAME_SIZE)
    weight = np.where(is_full, facts["bytes"], 0)
    is_good = _is_near_largest(weight, groups, _SAME_QUALITY) & is_full
    is_made = np.array([_COPY.search(name) is not None for name in names], bool)
    for group in np.unique(groups).tolist():
        rows = np.flatnonzero(groups == group)
        is_made[rows] |= _are_made_of_others([names[row] for row in rows.tolist()])
    is_large = _is_near_largest(weight, groups, _SAME_BYTES)
    dates = np.where(facts["taken"] == b"", b"~", facts["taken"])  # No date is the latest.
    fewer = (np.where(is_large, 0, -weight), ~is_large)
    smaller = (np.where(is_full, 0, -size), ~is_full)
    # The last key counts first.
    keys = (np.arange(len(groups)), dates, *fewer, is_made, ~is_good, *smaller, groups)
    order = np.lexsort(keys)
    keep = np.zeros(len(groups), bool)
    keep[order] = np.diff(groups[order], prepend=-1) != 0
    return keep


def _is_near_largest(values: NDArray, groups: NDArray, share: float) -> NDArray:
    """Returns which values int `[m]` are at least this share of the largest one of their group."""
    largest = np.zeros(groups.max(initial=-1) + 1, np.int64)
    np.maximum.at(largest, groups, values)
    return values >= share * largest[groups]


def _are_made_of_others(names: Sequence[str]) -> list[bool]:
    """Returns which names are another one with more behind it, as `IMG_1-edited` of `IMG_1`."""
    stems = [os.path.splitext(os.path.basename(name))[0].casefold() for name in names]

    def is_made(stem: str) -> bool:
        shorter = (other for other in stems if other and other != stem and stem.startswith(other))
        return any(not stem[len(other)].isalnum() for other in shorter)

    return [is_made(stem) for stem in stems]


def first_copies(dataset: Dataset) -> NDArray:
    """Returns for each image the index of the first one with equal bytes, int64 `[n]`.

    These are the bytes of its file; of images in memory, which have none, the pixels. An image
    whose file cannot be read is its own first one.
    """
    count = dataset.size
    origins = np.arange(count)
    seen = dict[bytes, int]()
    if dataset.facts is not None:
        for i, digest in enumerate(dataset.facts(np.arange(count))["digest"]):
            if digest.any():
                origins[i] = seen.setdefault(digest.tobytes(), i)
        return origins
    for indices in np.split(origins.copy(), range(_BATCH, count, _BATCH)):
        for i, image in zip(indices.tolist(), dataset.fetch(indices), strict=True):
            origins[i] = seen.setdefault(hashlib.sha256(image.tobytes()).digest(), i)
    return origins


def near_threshold(features: NDArray) -> float:
    """Returns the cosine similarity above which the whole pictures of two images are compared.

    It is 1 - `NEARNESS` d, where d is the median of 1 - cosine between an image and its nearest
    neighbor, over at most `_SAMPLE` random images; it is 1 for a single image. A fraction of the
    median distance suits any network, whatever the scale of its features, and is robust as long as
    most images have no near-duplicate. Nearly all copies of an image are that close, and some other
    images, which the comparison of the pictures leaves out.

    Args:
        features: float `[n, d]` of distinct images, at least one.
    """
    if len(features) == 1:
        return 1.0
    # Not evenly spaced: copies often follow their original at regular places.
    sample = data.subset(len(features), _SAMPLE)
    unit = arrays.normalize_rows(features)
    # The nearest is the row itself or a copy of it.
    distances = knn.nearest(unit[sample], unit, 2, metric="cosine").distances[:, 1]
    return 1 - NEARNESS * float(np.median(distances))


def similar_pairs(features: NDArray, threshold: float) -> NDArray:
    """Returns pairs of rows above a cosine similarity, int64 `[p, 2]`, sorted, with i < j.

    Each row is compared with its 20 nearest rows. No pair occurs twice.

    Args:
        features: float `[n, d]`; a row of zeros is similar to none.
        threshold: the similarity that a pair must exceed; with 1 or more, no pairs are returned.
    """
    rows = np.flatnonzero(features.any(axis=1))
    if threshold >= 1 or not len(rows):  # Similarities round to slightly more.
        return np.empty((0, 2), np.int64)
    x = features[rows]
    near = knn.nearest(x, x, _NEIGHBORS, metric="cosine", exclude_self=True)
    i, place = np.nonzero(1 - near.distances > threshold)
    pairs = rows[np.stack([i, near.indices[i, place]], axis=1)]
    return np.unique(np.sort(pairs, axis=1), axis=0)


def outlines(dataset: Dataset, rows: NDArray) -> NDArray:
    """Returns the gray values of 16 x 16 parts of each image less their mean, float32 `[r, 256]`.

    Args:
        dataset: the images.
        rows: int `[r]`, indices of images.
    """
    result = np.empty((len(rows), _OUTLINE_SIDE**2), np.float32)
    for start in range(0, len(rows), _BATCH):
        for k, values in enumerate(dataset.fetch(rows[start : start + _BATCH]), start):
            small = (
                pictures.as_image(values)
                .convert("L")
                .resize((_OUTLINE_SIDE,) * 2, Image.Resampling.BOX)
            )
            result[k] = np.asarray(small, np.float32).ravel()
    return result - result.mean(axis=1, keepdims=True)


def _are_alike(dataset: Dataset, pairs: NDArray, before: NDArray | None) -> list[bool]:
    """Returns which pairs int `[p, 2]` of images have pictures that show the same content.

    A picture that cannot be read is like those of its group in `before`, see `find`.
    """
    read = functools.lru_cache(_PICTURES)(functools.partial(pictures.read, dataset))

    def compare(k: int) -> bool:
        a, b = map(read, pairs[k].tolist())
        if a is not None and b is not None:
            return pictures.show_same(a, b)
        groups = (-1, -1) if before is None else before[pairs[k]].tolist()
        return groups[0] == groups[1] != -1

    # Not in the threads of images if these fetch the pictures: `fetch` waits for them.
    compute: Any = map if dataset.load is None else data.map_indices
    result = list[bool]()
    steps = range(0, len(pairs), _PAIRS)
    for start in logs.progress_bar(steps, desc="comparing pictures", delay=2.0, leave=False):
        result += compute(compare, range(start, min(start + _PAIRS, len(pairs))))
    return result
