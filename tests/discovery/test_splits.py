"""Known classes, held-out images, and batches of labeled and unlabeled rows."""

import jax
import numpy as np
import pytest

from cluster_jax.core.checks import InputError
from cluster_jax.core.config import parse_section
from cluster_jax.data import batches
from cluster_jax.data.datasets import DataConfig
from cluster_jax.data.images import Dataset, select
from cluster_jax.discovery import splits
from cluster_jax.discovery.splits import NovelConfig
from tests.rows import every_row

# Of four classes: 7, 5, 6 and 5 images.
LABELS = np.array([2, 0, 1, 3, 0, 2, 1, 0, 2, 3, 0, 1, 2, 0, 3, 1, 0, 2, 3, 0, 2, 1, 3], np.int32)
SIZE = len(LABELS)
PIXELS = np.arange(SIZE * 4, dtype=np.uint8).reshape(SIZE, 2, 2, 1)


def made(resident: bool = True, labels: np.ndarray | None = LABELS) -> Dataset:
    names = tuple(f"{i}.png" for i in range(SIZE))
    images = PIXELS if resident else None
    return Dataset(
        "made", SIZE, (2, 2, 1), images, PIXELS.__getitem__, labels, ("a", "b", "c", "d"), names, ()
    )


def collect(dataset, **changes):
    arguments = {
        "seed": 3, "batch_size": 10, "labeled": 4, "steps": range(9),
        "prefetch": 2,
    }  # fmt: skip
    return list(batches.stream(dataset, **arguments | changes))


def leaves(batch):
    return {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(batch)}


# --- splits --------------------------------------------------------------------------------------


@every_row("classes", [1, 2, 3])
def test_the_first_classes_are_known(classes):
    dataset = splits.with_known(made(), classes)
    assert dataset.partial_labels.dtype == np.int32
    for label, known in zip(LABELS, dataset.partial_labels, strict=True):
        assert known == (label if label < classes else -1)
    np.testing.assert_array_equal(dataset.labels, LABELS)
    assert splits.check_known(dataset.partial_labels) == classes


@every_row("classes", [-1, 0, 4, 5])
def test_a_class_must_be_known_and_one_must_be_left(classes):
    with pytest.raises(
        ValueError, match=rf"labeled classes, must be at (least 1|most 3); got {classes}$"
    ):
        splits.with_known(made(), classes)


def test_known_classes_need_labels():
    with pytest.raises(ValueError, match=r"^novel.classes must be None for made"):
        splits.with_known(made(labels=None), 2)


@every_row(
    ("known", "message"),
    [
        ([-1, -1, -1], r"^images must be .* got no labeled ones$"),
        ([0, 1, 0], r"^images must be .* got no unlabeled ones$"),
        ([0, -1, 3, 1], "without gaps; got no image of class 2$"),
        ([1, -1, 1], "without gaps; got no image of class 0$"),
    ],
)
def test_known_without_labeled_or_unlabeled_images_or_with_a_gap(known, message):
    with pytest.raises(ValueError, match=message):
        splits.check_known(np.array(known, np.int32))


def test_hold_out_takes_a_share_of_every_class():
    rest, held = splits.hold_out(splits.with_known(made(), 2), share=0.4, seed=5)
    # 0.4 of 7, 5, 6 and 5 images.
    np.testing.assert_array_equal(np.bincount(held.labels), [3, 2, 2, 2])
    assert (rest.size, held.size) == (14, 9)
    numbers = [[int(name.split(".")[0]) for name in part.sources] for part in (rest, held)]
    assert all(part == sorted(part) for part in numbers)
    assert sorted(numbers[0] + numbers[1]) == list(range(SIZE))
    for part, chosen in zip((rest, held), numbers, strict=True):
        np.testing.assert_array_equal(part.images, PIXELS[chosen])
        np.testing.assert_array_equal(part.labels, LABELS[chosen])
        np.testing.assert_array_equal(part.partial_labels, np.where(LABELS < 2, LABELS, -1)[chosen])
        assert part.label_names == ("a", "b", "c", "d")


def test_hold_out_is_a_function_of_the_seed():
    """Literal indices: the same in every process and version, or a split of old runs is lost."""
    found = [splits.hold_out(made(), share=0.3, seed=seed)[1].sources for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    assert [int(name.split(".")[0]) for name in found[0]] == [3, 6, 8, 10, 11, 12, 13, 18]


@every_row("share", [-0.1, 1.0, 1.5])
def test_hold_out_of_a_share_out_of_range(share):
    values = {"classes": 2, "test_split": None, "holdout": share, "holdout_seed": 0}
    message = f"^novel.holdout must be at least 0 and below 1; got {share}$"
    with pytest.raises(ValueError, match=message):
        parse_section(NovelConfig, "novel", values)


@pytest.mark.parametrize(("share", "what"), [(0.01, "none"), (0.99, "all")])
def test_hold_out_leaves_images_on_both_sides(share, what):
    with pytest.raises(
        ValueError,
        match=rf"^novel.holdout must .*got {share}, which holds out {what} of",
    ):
        splits.hold_out(made(), share=share, seed=0)


@pytest.mark.parametrize("resident", [True, False])
def test_select(resident):
    chosen = np.array([7, 2, 2, 20])
    part = select(splits.with_known(made(resident), 2), chosen)
    assert (part.size, part.name, part.shape) == (4, "made", (2, 2, 1))
    assert part.sources == ("7.png", "2.png", "2.png", "20.png")
    np.testing.assert_array_equal(part.labels, [0, 1, 1, 2])
    np.testing.assert_array_equal(part.partial_labels, [0, 1, 1, -1])
    np.testing.assert_array_equal(part.fetch(np.array([3, 0])), PIXELS[[20, 7]])
    if resident:
        np.testing.assert_array_equal(part.images, PIXELS[chosen])
    else:
        assert part.images is None
    bare = select(made()._replace(labels=None, sources=None), chosen)
    assert bare.labels is bare.sources is bare.partial_labels is None


# --- batches of two parts ------------------------------------------------------------------------


@pytest.mark.parametrize("resident", [True, False])
def test_labels_of_the_labeled_part_only(resident):
    """Exactly these leaves; labels are those of known classes, and images belong to indices."""
    dataset = splits.with_known(made(resident), 2)
    poisoned = np.where(dataset.partial_labels < 0, -77, LABELS)
    found = collect(dataset)
    again = collect(dataset._replace(labels=poisoned))
    image = set() if resident else {"['labeled']['image']", "['unlabeled']['image']"}
    for batch in found:
        assert leaves(batch) == image | {
            "['labeled']['index']", "['labeled']['label']", "['unlabeled']['index']",
        }  # fmt: skip
        old, new = batch["labeled"], batch["unlabeled"]
        assert (len(old["index"]), len(new["index"])) == (4, 6)
        np.testing.assert_array_equal(old["label"], LABELS[old["index"]])
        assert (LABELS[old["index"]] < 2).all()
        assert (LABELS[new["index"]] >= 2).all()
        whole = batches.with_images(batch, PIXELS) if resident else batch
        for part in whole.values():
            np.testing.assert_array_equal(part["image"], PIXELS[part["index"]])
    jax.tree.map(np.testing.assert_array_equal, found, again)


def test_without_labeled_rows_no_label_is_delivered():
    for batch in collect(splits.with_known(made(), 2), labeled=None):
        assert leaves(batch) == {"['index']"}


def test_each_part_has_epochs_of_its_own():
    """12 labeled images make 3 batches of 4; 11 unlabeled ones make 1 of 6."""
    found = collect(splits.with_known(made(), 2))
    old = np.stack([batch["labeled"]["index"] for batch in found]).reshape(3, 12)
    new = np.stack([batch["unlabeled"]["index"] for batch in found])
    for epoch in old:
        assert sorted(epoch) == np.flatnonzero(LABELS < 2).tolist()
    assert len({tuple(epoch) for epoch in old}) == 3
    assert all(len(set(epoch)) == 6 for epoch in new)
    assert len({tuple(epoch) for epoch in new}) == 9


@every_row(
    ("changes", "message"),
    [
        ({"batch_size": 24, "labeled": 13}, "12 images of the set; got 13"),
        ({"batch_size": 24, "labeled": 12}, "11 images of the set; got 12"),
        ({"labeled": 3, "share": (0, 2)}, "multiple of the number of processes, 2; got 3"),
    ],
)
def test_parts_that_cannot_be_filled(changes, message):
    with pytest.raises(ValueError, match=message):
        collect(splits.with_known(made(), 2), **changes)


def test_labeled_rows_without_known_classes():
    with pytest.raises(
        ValueError,
        match=r"^train.labeled_batch_size must be None where no class",
    ):
        collect(made())


def test_a_test_has_other_images_than_the_training():
    data = {
        "name": "digits", "dir": None, "split": None, "label": "label", "image_size": None,
        "interpolation": "bicubic", "cache_mb": 100.0, "max_corrupt_fraction": 0.0, "limit": None,
    }  # fmt: skip
    novel = {"classes": 5, "test_split": "test", "holdout": 0.0, "holdout_seed": 0}
    with pytest.raises(InputError, match=r"^novel.test_split must be None for digits"):
        splits.load(DataConfig(**data), NovelConfig(**novel))
    cifar = {**data, "name": "cifar10", "split": "train+test"}
    with pytest.raises(InputError, match=r"must not overlap data.split, 'train\+test'; got"):
        splits.load(DataConfig(**cifar), NovelConfig(**novel))
    with pytest.raises(InputError, match=r"must not overlap .*got 'train\[:10%\]'"):
        splits.load(
            DataConfig(**{**cifar, "split": "train"}),
            NovelConfig(**novel | {"test_split": "train[:10%]"}),
        )
    with pytest.raises(InputError, match=r"must be None if novel.holdout is set"):
        splits.load(
            DataConfig(**{**cifar, "split": "train"}), NovelConfig(**novel | {"holdout": 0.2})
        )
    train, test = splits.load(
        DataConfig(**data), NovelConfig(**novel | {"test_split": None, "holdout": 0.2})
    )
    assert (train.size, test.size) == (1438, 359)


# --- classes that the caller gives ---------------------------------------------------------------


@every_row("kind", ["numbers", "names", "objects"])
def test_given_classes(kind):
    given = np.where(LABELS % 2 == 1, LABELS + 7, -1)  # classes 8 and 10
    if kind == "names":
        given = np.where(given < 0, "-1", given.astype(str))  # "10" before "8"
    elif kind == "objects":
        given = np.array([-1 if g < 0 else f"of {g}" for g in given], object)
    dataset = splits.with_partial_labels(made(), given)
    names = {"numbers": ("8", "10"), "names": ("10", "8"), "objects": ("of 10", "of 8")}[kind]
    assert dataset.label_names == splits.known_names(dataset) == names
    assert dataset.partial_labels.dtype == np.int32
    assert dataset.labels is None
    for label, known in zip(LABELS, dataset.partial_labels, strict=True):
        if label % 2 == 0:
            assert known == -1
        else:
            assert names[known].removeprefix("of ") == str(label + 7)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (LABELS[:-1], r"^y must have one class for each of .*got shape"),
        (LABELS + 0.5, r"^y must be integers or names, .*got an array of float64$"),
        (LABELS - 2, r"^y must be -1 for images without a class; got -2$"),
        (
            np.array([*LABELS[1:].astype(str), np.nan], object),
            r"^y must be integers or names, -1 for an image without a class; got nan, a float$",
        ),
        (np.full(SIZE, -1), r"got no labeled ones"),
        (LABELS, r"got no unlabeled ones"),
    ],
)
def test_given_classes_that_cannot_be_used(given, message):
    with pytest.raises(ValueError, match=message):
        splits.with_partial_labels(made(), given)
