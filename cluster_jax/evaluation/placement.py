"""A page of new images beside typical ones of the clusters that they were assigned to."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cluster_jax.evaluation import pages, thumbnails

THUMBNAIL_SIDE = 80  # pixels
N_TYPICAL, N_NEW = 6, 60  # images shown of a cluster, and of those assigned to it

Fetch = Callable[[NDArray], NDArray]


def page(
    title: str,
    fact: str,
    labels: NDArray,
    is_novel: NDArray,
    names: Sequence[str],
    fetch: Fetch,
    typical: Mapping[int, tuple[str, NDArray | None]],
) -> str:
    """New images by cluster or class, the largest first, as a page of HTML that opens offline.

    Args:
        title: of the page.
        fact: how many images there are, without a full stop.
        labels: int or str `[m]`, cluster or class of each new image.
        is_novel: bool `[m]`, images that are unlike those of the run; they come last.
        names: of the new images.
        fetch: indices of new images -> uint8 `[b, height, width, 1 or 3]`.
        typical: cluster -> its title, and typical images of it, uint8
            `[b, height, width, 1 or 3]`, or None; a class is its own title.
    """
    groups = []
    for label, size in sorted(
        Counter(labels.tolist()).items(), key=lambda item: (-item[1], item[0])
    ):
        members = np.flatnonzero(labels == label)
        shown = members[np.argsort(is_novel[members], kind="stable")][:N_NEW]
        new = zip(shown.tolist(), _uris(fetch, shown), strict=True)
        name, images = typical.get(label, (label, None))
        own = [] if images is None else _uris(images.__getitem__, np.arange(len(images)))
        groups.append((name, size, own, [(names[i], uri, bool(is_novel[i])) for i, uri in new]))
    pixelated = thumbnails.is_small(fetch(np.arange(1))[0])
    return pages.fill("placement.html", title=title, fact=fact, groups=groups, pixelated=pixelated)


def _uris(fetch: Fetch, indices: NDArray) -> list[str]:
    return list(map(thumbnails.data_uri, thumbnails.thumbnails(fetch, indices, THUMBNAIL_SIDE)))
