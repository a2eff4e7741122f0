"""Which classes a training may know, and which images are kept for a test."""

import dataclasses
import re

import numpy as np
from numpy.typing import ArrayLike

from cluster_jax.core import checks
from cluster_jax.core.checks import InputError
from cluster_jax.data import datasets
from cluster_jax.data.datasets import DataConfig
from cluster_jax.data.images import Dataset, order, select

# Tells the order of a split from the others that the same seed makes.
SPLIT = 1
# What stands for the class of an image that is not labeled.
UNLABELED = -1


@dataclasses.dataclass(frozen=True)
class NovelConfig:
    """Section `novel`: novel class discovery.

    Attributes:
        classes: how many of the first classes are known; None: not novel class discovery.
        test_split: TFDS split of the test, or None.
        holdout: share of every class that is kept for a test; 0: none.
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
    """The images of a set, and those kept for a test where there are any.

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
        is_new = test.labels >= novel.classes
        if is_new.all() or not is_new.any():
            part = "labeled" if is_new.all() else "novel"
            raise InputError(
                f"the {test.size} images kept for a test have none of a {part} class; keep more"
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
            f"the set {dataset.name} has no labels; novel.classes needs those of the labeled part"
        )
    count = int(dataset.labels.max()) + 1
    if not 1 <= classes < count:
        raise ValueError(
            f"novel.classes, the classes that are labeled, must be 1 to {count - 1} of the "
            f"{count} classes of {dataset.name}; got {classes}"
        )
    known = np.where(dataset.labels < classes, dataset.labels, UNLABELED).astype(np.int32)
    dataset = dataset._replace(known=known)
    _check_names(known_names(dataset))
    return dataset


def with_given(dataset: Dataset, classes: ArrayLike) -> Dataset:
    """The set with classes that the caller gives for some of its images, and no others.

    Args:
        dataset: the images; labels of its own are left out.
        classes: `[n]`, numbers or names, -1 for an image that is not labeled. The sorted ones
            become the classes 0, 1, ...

    Raises:
        ValueError: not one value for each image, of another type, none or all are labeled, or a
            name is that of a novel class.
    """
    given = np.asarray(classes)
    if given.shape != (dataset.size,):
        left = f" ({len(dataset.skipped)} files cannot be read)" if dataset.skipped else ""
        raise ValueError(
            f"y has the shape {given.shape} and there are {dataset.size} images{left}; give one "
            "class for each, -1 where it is not known"
        )
    if given.dtype.kind not in "iuUO":
        raise ValueError(
            f"y is {given.dtype}; give whole numbers or names, -1 where the class is not known"
        )
    if given.dtype.kind in "iu" and given.min() < UNLABELED:
        raise ValueError(f"y has {given.min()}; -1 alone stands for an image without a class")
    if given.dtype.kind == "O":
        given = given.astype(str)
    labeled = given != (str(UNLABELED) if given.dtype.kind == "U" else UNLABELED)
    known = np.full(dataset.size, UNLABELED, np.int32)
    names, known[labeled] = np.unique(given[labeled], return_inverse=True)
    check_known(known)
    names = tuple(map(str, names))
    _check_names(names)
    return dataset._replace(known=known, labels=None, label_names=names)


def novel_name(number: int) -> str:
    """What the novel class of a number, counted from 0, is called beside the known ones."""
    return f"novel {number}"


def _check_names(names: tuple[str, ...]) -> None:
    for name in names:
        if re.fullmatch(novel_name(0).replace("0", r"\d+"), name):
            raise ValueError(
                f"the known class {name!r} has the name of a class that is discovered; give it "
                "another"
            )


def check_known(known: np.ndarray) -> int:
    """Number of known classes, which must be 0, 1, ... without a gap, and not all images.

    Raises:
        ValueError: no image has a known class, or each has one, or a number is missing.
    """
    labeled = known >= 0
    if not labeled.any():
        raise ValueError(
            "no image is labeled; novel class discovery needs images of known classes beside "
            "those with -1"
        )
    if labeled.all():
        raise ValueError(
            "every image is labeled; novel class discovery needs unlabeled ones, marked by -1"
        )
    classes = np.unique(known[labeled])
    if len(classes) != classes[-1] + 1:
        missing = np.setdiff1d(np.arange(classes[-1]), classes)[0]
        raise ValueError(f"class {missing} has no labeled image; number the classes without gaps")
    return len(classes)


def known_names(dataset: Dataset) -> tuple[str, ...]:
    """Names of the known classes; their numbers where the set has no names."""
    count = int(dataset.known.max()) + 1
    return (dataset.label_names or tuple(map(str, range(count))))[:count]


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


def _check_test_split(data: DataConfig, split: str, holdout: float) -> None:
    """Raises an `InputError` where the images of the test could be those of the training."""
    if data.name in ("digits", "folder", "arrays"):
        raise InputError(
            f"novel.test_split = {split!r} needs a TFDS set; {data.name} has no splits, set it "
            "to None and novel.holdout to the share to keep for a test"
        )
    if holdout:
        raise InputError(
            f"novel.test_split = {split!r} and novel.holdout = {holdout} are both set; take one"
        )
    test, train = (
        {part.split("[")[0].strip() for part in str(splits).split("+")}
        for splits in (split, data.split)
    )
    if test & train:
        raise InputError(
            f"novel.test_split = {split!r} may hold images of data.split = {data.split!r}; take "
            "a split of another name, or novel.holdout for a part of the same"
        )
