"""Duplicate images: exact duplicates by pixels, and near-duplicates by features."""

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from cluster_jax.clustering import knn
from cluster_jax.clustering.smooth import unit_rows
from cluster_jax.core import arrays
from cluster_jax.data.images import subset
from cluster_jax.data.photo_facts import PhotoFacts

# Near-duplicates are closer than this fraction of the median distance to the nearest neighbor.
NEARNESS = 0.1
# The search compares all pairs: minutes for this many images, hours for ten times as many.
MAX_NEAR_IMAGES = 100_000
# Images fetched at a time, and rows of one block of similarities (float64: 32 MB).
_BATCH, _BLOCK = 256, 2_048
# Size of the random sample of images whose nearest neighbors determine the threshold.
_SAMPLE = 2_000


class Duplicates(NamedTuple):
    """Groups of exact and near-duplicates, with one entry per image of a group.

    Attributes:
        images: int64 `[m]`, indices, ascending in each group.
        groups: int64 `[m]`, from 0, the largest group first, ties by the first image.
        is_exact: bool `[m]`, whether another image of the group has the same pixels.
        similarities: float64 `[m]`, cosine similarity to the features of the group's first
            image; 1 where the pixels are the same.
        threshold: cosine similarity above which images are near-duplicates; None: only exact
            duplicates were searched for, because there are more than `MAX_NEAR_IMAGES` images.
    """

    images: NDArray
    groups: NDArray
    is_exact: NDArray
    similarities: NDArray
    threshold: float | None

    @property
    def n_groups(self) -> int:
        """Number of groups."""
        return int(self.groups[-1]) + 1 if len(self.groups) else 0


class Shown(NamedTuple):
    """Duplicates, and the images to show of them in a report.

    Attributes:
        found: duplicates of at least one group.
        fetch_images: indices -> uint8 `[b, height, width, 1 or 3]`.
        sources: file name of each image, or None.
        rows: int64 `[n]`, the image of each point of the report; None: they are the same.
        facts: sizes and dates of the files of all images, or None.
    """

    found: Duplicates
    fetch_images: Callable[[NDArray], NDArray]
    sources: tuple[str, ...] | None
    rows: NDArray | None = None
    facts: PhotoFacts | None = None


def record(shown: Shown) -> list[dict[str, Any]]:
    """All groups for the page's script, the largest first.

    Returns:
        For each group its "kind", "exact" if all its images are the same, and its "images": the
        number of the point in the report ("index", -1 for none), "name", "width", "height",
        "bytes", "taken", and whether it is the copy to "keep".
    """
    found, facts = shown.found, shown.facts
    point_of = None if shown.rows is None else {row: i for i, row in enumerate(shown.rows.tolist())}
    kept, groups = set(best_copies(found, facts).tolist()), []
    for number in range(found.n_groups):
        places = np.flatnonzero(found.groups == number)
        images = [
            {
                "index": image if point_of is None else point_of.get(image, -1),
                "name": f"image {image}" if shown.sources is None else shown.sources[image],
                "width": 0 if facts is None else int(facts.width[image]),
                "height": 0 if facts is None else int(facts.height[image]),
                "bytes": 0 if facts is None else int(facts.bytes[image]),
                "taken": "" if facts is None else facts.taken[image],
                "keep": image in kept,
            }
            for image in found.images[places].tolist()
        ]
        kind = "exact" if found.is_exact[places].all() else "near"
        groups.append({"kind": kind, "images": images})
    return groups


def best_copies(found: Duplicates, facts: PhotoFacts | None) -> NDArray:
    """The image to keep of each group, int64 `[g]`: of most pixels, then most bytes, the first."""
    images = found.images
    pixels = bytes_ = np.zeros(len(images))
    if facts is not None:
        pixels = facts.width[images].astype(np.int64) * facts.height[images]
        bytes_ = facts.bytes[images]
    order = np.lexsort((images, -bytes_, -pixels, found.groups))
    return images[order[np.unique(found.groups[order], return_index=True)[1]]]


def counts(found: Duplicates) -> dict[str, int | float | None]:
    """The entry of `results.json`: numbers of groups and of images in them, and the threshold."""
    exact = int(found.is_exact.sum())
    return {
        "groups": found.n_groups,
        "exact_images": exact,
        "near_images": len(found.images) - exact,
        "near_above_similarity": found.threshold,
    }


def find(fetch_images: Callable[[NDArray], NDArray], features: NDArray) -> Duplicates:
    """Finds groups of duplicates: connected components of the graph of duplicate pairs.

    Exact duplicates have the same pixels as the network saw them, after resizing and cropping:
    files of the same bytes, and the same picture in two lossless formats. Near-duplicates are
    pairs of features above `near_threshold`. Images are fetched a few at a time, and similarities
    computed block by block.

    Args:
        fetch_images: indices -> uint8 `[b, height, width, channels]`.
        features: float `[n, d]`.
    """
    origins = first_copies(fetch_images, len(features))
    distinct, codes = np.unique(origins, return_inverse=True)
    threshold, components = None, np.arange(len(distinct))
    if len(distinct) <= MAX_NEAR_IMAGES:
        threshold = near_threshold(features[distinct])
        components = near_components(features[distinct], threshold)
    # The first image of each image's group, and the size of the group.
    _, firsts, groups, counts = np.unique(
        components[codes], return_index=True, return_inverse=True, return_counts=True
    )
    heads, sizes = firsts[groups], counts[groups]
    images = np.lexsort((heads, -sizes))
    images = images[sizes[images] > 1]
    heads = heads[images]
    groups = np.cumsum(np.diff(heads, prepend=heads[:1]) != 0)
    # In float64: float32 rounds off differences between near-duplicates.
    similarities = (unit_rows(features[images]) * unit_rows(features[heads])).sum(axis=1)
    similarities = np.where(origins[images] == origins[heads], 1, similarities)
    is_exact = np.bincount(codes)[codes[images]] > 1
    return Duplicates(images, groups, is_exact, similarities, threshold)


def first_copies(fetch_images: Callable[[NDArray], NDArray], count: int) -> NDArray:
    """The first image with the same pixels as each image, by SHA-256, int64 `[count]`."""
    seen: dict[bytes, int] = {}
    origins = np.empty(count, np.int64)
    for indices in np.split(np.arange(count), range(_BATCH, count, _BATCH)):
        for i, image in zip(indices.tolist(), fetch_images(indices), strict=True):
            origins[i] = seen.setdefault(hashlib.sha256(image.tobytes()).digest(), i)
    return origins


def near_threshold(features: NDArray) -> float:
    """The cosine similarity above which two images count as near-duplicates.

    It is 1 - `NEARNESS` d, where d is the median of 1 - cosine between an image and its nearest
    neighbor, over at most `_SAMPLE` random images. A fraction of the median distance suits any
    network, whatever the scale of its features, and different images are rarely that close. The
    median is robust as long as most images have no near-duplicate. On photographs with planted
    duplicates, 97 to 100 % of the pairs found were right, with 85 to 100 % of the re-encoded and
    resized copies and 27 to 35 % of those with 5 % cut off two sides; see
    `experiments/duplicates.md`.

    Args:
        features: float `[n, d]` of distinct images; 1 for a single one.
    """
    if len(features) == 1:
        return 1.0
    # Not evenly spaced: copies often follow their original at regular places.
    sample = subset(len(features), _SAMPLE)
    unit = arrays.normalize_rows(features)
    # The nearest is the row itself or a copy of it.
    distances = knn.nearest(unit[sample], unit, 2, metric="cosine").distances[:, 1]
    return 1 - NEARNESS * float(np.median(distances))


def near_components(features: NDArray, threshold: float) -> NDArray:
    """Connected components of the pairs with a cosine similarity above a threshold, int `[n]`.

    Args:
        features: float `[n, d]`; a row of zeros is similar to none.
        threshold: of 1, as for features that are all the same: no pairs.
    """
    n = len(features)
    labels = np.arange(n)
    if threshold >= 1:  # Similarities round to slightly more.
        return labels
    for start in range(0, n, _BLOCK):
        rows = unit_rows(features[start : start + _BLOCK])
        for other in range(start, n, _BLOCK):
            others = unit_rows(features[other : other + _BLOCK])
            pairs = np.nonzero(rows @ others.T > threshold)
            # Joins the components so far, so that only one block of pairs is in memory.
            edges = labels[pairs[0] + start], labels[pairs[1] + other]
            graph = coo_array((np.ones(len(edges[0]), bool), edges), shape=(n, n))
            labels = connected_components(graph, directed=False)[1][labels]
    return labels
