"""Which classes a training may know, and which images are kept for a test."""

import numpy as np

from cluster_jax.data.images import Dataset, order, select

# Tells the order of a split from the others that the same seed makes.
SPLIT = 1


def with_known(dataset: Dataset, classes: int) -> Dataset:
    """The set with the first `classes` classes known, the images of all others unlabelled.

    The order of classes is that of their numbers: sorted names of folders, or the file of the
    set. It is the same in every process.

    Raises:
        ValueError: no class, or none that is left to discover, or a set without labels.
    """
    if dataset.labels is None:
        raise ValueError(
            f"the set {dataset.name} has no labels; novel.classes needs those of the labelled part"
        )
    count = int(dataset.labels.max()) + 1
    if not 1 <= classes < count:
        raise ValueError(
            f"novel.classes, the classes that are labelled, must be 1 to {count - 1} of the "
            f"{count} classes of {dataset.name}; got {classes}"
        )
    known = np.where(dataset.labels < classes, dataset.labels, -1).astype(np.int32)
    return dataset._replace(known=known)


def check_known(known: np.ndarray) -> int:
    """Number of known classes, which must be 0, 1, ... without a gap, and not all images.

    Raises:
        ValueError: no image has a known class, or each has one, or a number is missing.
    """
    labelled = known >= 0
    if not labelled.any():
        raise ValueError(
            "no image is labelled; novel class discovery needs images of known classes beside "
            "those with -1"
        )
    if labelled.all():
        raise ValueError(
            "every image is labelled; novel class discovery needs unlabelled ones, marked by -1"
        )
    classes = np.unique(known[labelled])
    if len(classes) != classes[-1] + 1:
        missing = np.setdiff1d(np.arange(classes[-1]), classes)[0]
        raise ValueError(f"class {missing} has no labelled image; number the classes without gaps")
    return len(classes)


def hold_out(dataset: Dataset, *, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """Two parts of a set, each in its order: the rest, and `share` of every class, rounded.

    A pure function of labels, share and seed, the same in every process.

    Raises:
        ValueError: the share is not between 0 and 1, keeps none or all, or there are no labels.
    """
    if not 0 < share < 1:
        raise ValueError(f"novel.holdout must be 0, or between 0 and 1; got {share}")
    if dataset.labels is None:
        raise ValueError(f"the set {dataset.name} has no labels, so none can be held out by class")
    held = []
    for label in np.unique(dataset.labels):
        of_class = np.flatnonzero(dataset.labels == label)
        shuffled = of_class[order(len(of_class), seed, SPLIT, int(label))]
        held.append(shuffled[: round(share * len(of_class))])
    out = np.zeros(dataset.size, bool)
    out[np.concatenate(held)] = True
    if not out.any() or out.all():
        raise ValueError(
            f"novel.holdout = {share} keeps {'all' if out.all() else 'none'} of the {dataset.size} "
            "images for the test; choose another share"
        )
    return select(dataset, np.flatnonzero(~out)), select(dataset, np.flatnonzero(out))
