"""Known and novel classes, and the images held out for a test."""

import dataclasses
import re

import numpy as np
from numpy.typing import ArrayLike

from cluster_jax.core import checks
from cluster_jax.core.checks import InputError
from cluster_jax.data import datasets
from cluster_jax.data.datasets import DataConfig
from cluster_jax.data.images import Dataset, order, select

# Part of the seed: the order of a split differs from all others that the same seed makes.
SPLIT = 1
# Class of an unlabeled image.
UNLABELED = -1


@dataclasses.dataclass(frozen=True)
class NovelConfig:
    """Section `novel`: novel class discovery.

    Attributes:
        classes: how many of the first classes are known; None: not novel class discovery.
        test_split: TFDS split of the test, or None.
        holdout: fraction of every class that is held out for testing; 0: none.
        holdout_seed: of the choice.
    """

    classes: int | None
    test_split: str | None
    holdout: float
    holdout_seed: int

    def __post_init__(self) -> None:
        if self.classes is not None:
            checks.whole("novel.classes", self.classes, 1)
        if not 0 <= self.holdout < 1:
            raise InputError(f"novel.holdout must be 0, or between 0 and 1; got {self.holdout}")
        checks.whole("novel.holdout_seed", self.holdout_seed, 0)


def load(data: DataConfig, novel: NovelConfig) -> tuple[Dataset, Dataset | None]:
    """Training images, and those held out for a test if there are any.

    Raises:
        ValueError: the data cannot be used, or the test would have images of the training.
    """
    if novel.classes is None:
        return datasets.load(data), None
    if novel.test_split is not None:
        _check_test_split(data, novel.test_split, novel.holdout)
    dataset, test = datasets.load(data), None
    if novel.test_split is not None:
        test = datasets.load(dataclasses.replace(data, split=novel.test_split))
    elif novel.holdout:
        dataset, test = hold_out(dataset, share=novel.holdout, seed=novel.holdout_seed)
    dataset = with_known(dataset, novel.classes)
    if test is not None and test.labels is not None:
        is_novel = test.labels >= novel.classes
        if is_novel.all() or not is_novel.any():
            kind = "labeled" if is_novel.all() else "novel"
            raise InputError(
                f"the {test.size} test images must include some of a {kind} class; got none, hold "
                "out more"
            )
    return dataset, test


def with_known(dataset: Dataset, classes: int) -> Dataset:
    """The set with the first `classes` classes known, the images of all others unlabeled.

    The order of classes is that of their numbers: sorted names of folders, or the file of the
    set. It is the same in every process.

    Raises:
        ValueError: no class, or none that is left to discover, a set without labels, or a name
            that is that of a novel class.
    """
    if dataset.labels is None:
        raise ValueError(
            f"novel.classes must be None for {dataset.name}, which has no labels; got {classes}"
        )
    count = int(dataset.labels.max()) + 1
    if not 1 <= classes < count:
        raise ValueError(
            f"novel.classes, the number of labeled classes, must be 1 to {count - 1} of the "
            f"{count} classes of {dataset.name}; got {classes}"
        )
    known = np.where(dataset.labels < classes, dataset.labels, UNLABELED).astype(np.int32)
    dataset = dataset._replace(known=known)
    _check_names(known_names(dataset))
    return dataset


def with_partial_labels(dataset: Dataset, y: ArrayLike) -> Dataset:
    """The set with classes for some of its images, the others being unlabeled.

    Args:
        dataset: the images; its own labels are dropped.
        y: `[n]`, classes as integers or names, -1 for an unlabeled image. Sorted, they become the
            classes 0, 1, ...

    Raises:
        ValueError: not one value for each image, of another type, none or all are labeled, or a
            name is that of a novel class.
    """
    classes = np.asarray(y)
    if classes.shape != (dataset.size,):
        unreadable = f" ({len(dataset.skipped)} files cannot be read)" if dataset.skipped else ""
        raise ValueError(
            f"y must have one class for each of the {dataset.size} images{unreadable}, -1 where it "
            f"is not known; got shape {classes.shape}"
        )
    if classes.dtype.kind not in "iuUO":
        raise ValueError(
            "y must be integers or names, -1 where the class is not known; got an array of "
            f"{classes.dtype}"
        )
    if classes.dtype.kind in "iu" and classes.min() < UNLABELED:
        raise ValueError(f"y must be -1 for images without a class; got {classes.min()}")
    if classes.dtype.kind == "O":
        classes = classes.astype(str)
    labeled = classes != (str(UNLABELED) if classes.dtype.kind == "U" else UNLABELED)
    known = np.full(dataset.size, UNLABELED, np.int32)
    values, known[labeled] = np.unique(classes[labeled], return_inverse=True)
    check_known(known)
    names = tuple(map(str, values))
    _check_names(names)
    return dataset._replace(known=known, labels=None, label_names=names)


def novel_name(number: int) -> str:
    """Name of a novel class, numbered from 0."""
    return f"novel {number}"


def _check_names(names: tuple[str, ...]) -> None:
    for name in names:
        if re.fullmatch(novel_name(0).replace("0", r"\d+"), name):
            raise ValueError(
                f"names of known classes must differ from those of novel ones; got {name!r}"
            )


def check_known(known: np.ndarray) -> int:
    """Number of known classes, which must be 0, 1, ... without gaps and leave unlabeled images.

    Raises:
        ValueError: no image has a known class, or each has one, or a number is missing.
    """
    labeled = known >= 0
    if not labeled.any():
        raise ValueError(
            "images must be labeled and unlabeled (-1) for novel class discovery; got no labeled "
            "ones"
        )
    if labeled.all():
        raise ValueError(
            "images must be labeled and unlabeled (-1) for novel class discovery; got no unlabeled "
            "ones"
        )
    classes = np.unique(known[labeled])
    if len(classes) != classes[-1] + 1:
        missing = np.setdiff1d(np.arange(classes[-1]), classes)[0]
        raise ValueError(
            f"known classes must be numbered without gaps; got no image of class {missing}"
        )
    return len(classes)


def known_names(dataset: Dataset) -> tuple[str, ...]:
    """Names of the known classes; their numbers where the set has no names.

    Raises:
        ValueError: no class is known.
    """
    if dataset.known is None:
        raise ValueError(f"the set {dataset.name} must have known classes; got none")
    count = int(dataset.known.max()) + 1
    return (dataset.label_names or tuple(map(str, range(count))))[:count]


def hold_out(dataset: Dataset, *, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """Splits a set into training and test images: `share` of every class, rounded, is held out.

    A pure function of labels, share and seed, the same in every process.

    Raises:
        ValueError: the share is not between 0 and 1, keeps none or all, or there are no labels.
    """
    if not 0 < share < 1:
        raise ValueError(f"novel.holdout must be 0, or between 0 and 1; got {share}")
    if dataset.labels is None:
        raise ValueError(
            f"novel.holdout must be 0 for {dataset.name}, which has no labels; got {share}"
        )
    test_rows = []
    for label in np.unique(dataset.labels):
        members = np.flatnonzero(dataset.labels == label)
        shuffled = members[order(len(members), seed, SPLIT, int(label))]
        test_rows.append(shuffled[: round(share * len(members))])
    is_test = np.zeros(dataset.size, bool)
    is_test[np.concatenate(test_rows)] = True
    if not is_test.any() or is_test.all():
        raise ValueError(
            f"novel.holdout must leave images to train and to test on; got {share}, which holds "
            f"out {'all' if is_test.all() else 'none'} of the {dataset.size} images"
        )
    return select(dataset, np.flatnonzero(~is_test)), select(dataset, np.flatnonzero(is_test))


def _check_test_split(data: DataConfig, split: str, holdout: float) -> None:
    """Raises an `InputError` if test images could be training images."""
    if data.name in ("digits", "folder", "arrays", "features"):
        raise InputError(
            f"novel.test_split must be None for {data.name}, which has no splits; got {split!r}. "
            "Set novel.holdout to the share to hold out instead"
        )
    if holdout:
        raise InputError(
            f"novel.test_split must be None if novel.holdout is set; got {split!r} and {holdout}"
        )
    test, train = (
        {part.split("[")[0].strip() for part in str(splits).split("+")}
        for splits in (split, data.split)
    )
    if test & train:
        raise InputError(
            f"novel.test_split must not overlap data.split, {data.split!r}; got {split!r}. Use a "
            "split of another name, or novel.holdout for a part of the same"
        )
