"""Splits for novel class discovery: known and novel classes, training and test images."""

import dataclasses
import numbers

import numpy as np
from numpy.typing import ArrayLike

from cluster_jax.core import checks
from cluster_jax.core.checks import BelowOne, Count, CountOrZero, InputError
from cluster_jax.data import datasets, tfds
from cluster_jax.data.images import DataConfig, Dataset, order, readable, select

# Part of the random seed, so that splits and batches of one seed get different permutations.
SPLIT = 1
# Class of an unlabeled image.
UNLABELED = -1


@dataclasses.dataclass(frozen=True)
class NovelConfig:
    """Section `novel`: novel class discovery, and images to test on.

    Attributes:
        classes: number of known classes, the first ones; None: no novel class discovery, and the
            test images score the linear probe.
        test_split: TFDS split of the test images, or None.
        holdout: fraction of every class that is held out for testing; 0: none.
        holdout_seed: random seed of the held-out images.
    """

    classes: Count | None
    test_split: str | None
    holdout: BelowOne
    holdout_seed: CountOrZero


def load(
    data: DataConfig, novel: NovelConfig, kept: tfds.Labels | None = None
) -> tuple[Dataset, Dataset | None]:
    """Returns training images and test images; None for the latter without a test.

    Args:
        data: the section `data`.
        novel: the section `novel`.
        kept: see `tfds.load`.

    Raises:
        InputError: the data cannot be used, or training and test images overlap.
    """
    if novel.test_split is not None:
        _check_test_split(data, novel.test_split, novel.holdout)
    dataset = datasets.load(data, kept=kept)
    test = None
    if novel.test_split is not None:
        tested = dataclasses.replace(data, split=novel.test_split)
        test = datasets.load(tested, kept=kept)
    elif novel.holdout:
        dataset, test = hold_out(dataset, share=novel.holdout, seed=novel.holdout_seed)
    if novel.classes is None:
        return dataset, test
    dataset = with_known(dataset, novel.classes)
    if test is not None and test.labels is not None:
        is_novel = test.labels >= novel.classes
        if is_novel.all() or not is_novel.any():
            wanted = f"include some of a {'labeled' if is_novel.all() else 'novel'} class"
            raise InputError(f"the {test.size} test images must {wanted}; got none, hold out more")
    return dataset, test


def with_known(dataset: Dataset, classes: int) -> Dataset:
    """Makes the first `classes` classes known; images of the other classes are unlabeled.

    Classes are ordered by number, as the data set defines them (sorted names, for folders). The
    order is the same in every process.

    Raises:
        InputError: no known class, no novel class, or no labels.
    """
    if dataset.labels is None and dataset.name == "folder":
        raise InputError(
            f"data.dir must have a subfolder of its own for each of the {classes} known classes, "
            "before those of other images by name; got images without such subfolders"
        )
    if dataset.labels is None:
        must = f"novel.classes must be None for {dataset.name}, which has no labels"
        raise InputError(f"{must}; got {classes}")
    count = int(dataset.labels.max()) + 1
    checks.whole("novel.classes, the number of labeled classes,", classes, 1, count - 1)
    partial_labels = np.where(dataset.labels < classes, dataset.labels, UNLABELED).astype(np.int32)
    return dataset._replace(partial_labels=partial_labels)


def with_partial_labels(dataset: Dataset, y: ArrayLike) -> Dataset:
    """Adds known classes to a set for some of its images; other images are unlabeled.

    Args:
        dataset: the images; labels of the data set are dropped.
        y: `[n]`, classes of the readable images as integers or names, -1 for an unlabeled image.
            The sorted classes are numbered 0, 1, ...

    Raises:
        InputError: `y` has another length or dtype, or labels no or all images.
    """
    classes = np.asarray(y)
    dataset = readable(dataset)
    kind = classes.dtype.kind
    if classes.shape != (dataset.size,):
        must = f"y must have one class for each of the {dataset.size} images that can be read"
        raise InputError(f"{must}, -1 where it is not known; got shape {classes.shape}")
    if kind not in "iuUO":
        wanted = "integers or names, -1 where the class is not known"
        raise InputError(f"y must be {wanted}; got an array of {classes.dtype}")
    if kind in "iu" and classes.min() < UNLABELED:
        raise InputError(f"y must be -1 for images without a class; got {classes.min()}")
    if kind == "O":  # Such as a column of a data frame, in which NaN stands for no class.
        for each in classes.tolist():
            if not isinstance(each, str | numbers.Integral):
                must = "y must be integers or names, -1 for an image without a class"
                raise InputError(f"{must}; got {each!r}, a {type(each).__name__}")
    classes = classes if kind in "iu" else classes.astype(str)
    labeled = classes != (UNLABELED if kind in "iu" else str(UNLABELED))
    codes = np.full(dataset.size, UNLABELED, np.int32)
    values, codes[labeled] = np.unique(classes[labeled], return_inverse=True)
    check_known(codes)
    names = tuple(map(str, values))
    return dataset._replace(partial_labels=codes, labels=None, label_names=names)


def novel_name(number: int) -> str:
    """Returns the name of a novel class, numbered from 0."""
    return f"novel {number}"


def check_known(partial_labels: np.ndarray) -> int:
    """Returns the number of known classes, if they are 0, 1, ... and there are unlabeled images.

    Raises:
        InputError: no or every image is labeled, or a class has no image.
    """
    labeled = partial_labels >= 0
    if labeled.all() or not labeled.any():
        must = "images must be labeled and unlabeled (-1) for novel class discovery"
        raise InputError(f"{must}; got no {'unlabeled' if labeled.all() else 'labeled'} ones")
    sizes = np.bincount(partial_labels[labeled])
    if not sizes.all():
        gap = sizes.argmin()
        must = "known classes must be numbered without gaps"
        raise InputError(f"{must}; got no image of class {gap}")
    return len(sizes)


def known_names(dataset: Dataset) -> tuple[str, ...]:
    """Returns the names of the known classes, by their numbers if the set has no names.

    Raises:
        InputError: no class is known.
    """
    if dataset.partial_labels is None:
        raise InputError(f"the set {dataset.name} must have known classes; got none")
    count = int(dataset.partial_labels.max()) + 1
    return (dataset.label_names or tuple(map(str, range(count))))[:count]


def hold_out(dataset: Dataset, *, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """Splits images, stratified, for training and test: `share` of every class, rounded, for test.

    The split is a pure function of labels, share and seed, the same in every process.

    Raises:
        InputError: a split is empty, or there are no labels.
    """
    if dataset.labels is None:
        must = f"novel.holdout must be 0 for {dataset.name}, which has no labels"
        raise InputError(f"{must}; got {share}")
    is_test = np.zeros(dataset.size, bool)
    for label in np.unique(dataset.labels):
        members = np.flatnonzero(dataset.labels == label)
        shuffled = members[order(len(members), seed, SPLIT, int(label))]
        is_test[shuffled[: round(share * len(members))]] = True
    if not is_test.any() or is_test.all():
        which = f"{'all' if is_test.all() else 'none'} of the {dataset.size} images"
        must = "novel.holdout must leave images to train and to test on"
        raise InputError(f"{must}; got {share}, which holds out {which}")
    return select(dataset, np.flatnonzero(~is_test)), select(dataset, np.flatnonzero(is_test))


def _check_test_split(data: DataConfig, split: str, holdout: float) -> None:
    """Raises an `InputError` if training and test images may overlap."""
    must = "novel.test_split must be None"
    if data.name in ("digits", "folder", "arrays", "features"):
        raise InputError(
            f"{must} for {data.name}, which has no splits; got {split!r}. Set novel.holdout to the "
            "share to hold out instead"
        )
    if holdout:
        raise InputError(f"{must} if novel.holdout is set; got {split!r} and {holdout}")
    test, train = (
        {part.split("[")[0].strip() for part in str(splits).split("+")}
        for splits in (split, data.split)
    )
    if test & train:
        raise InputError(
            f"novel.test_split must not overlap data.split, {data.split!r}; got {split!r}. Use a "
            "split of another name, or novel.holdout for a part of the same"
        )
