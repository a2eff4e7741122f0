"""Duplicates: exact ones by pixels, near ones by features, the table, and the report's groups."""

import csv
import types

import numpy as np
import pytest

from cluster_jax.data.images import in_memory, subset
from cluster_jax.report import assignments, duplicates
from tests.rows import every_row

IN_MEMORY = types.SimpleNamespace(resize=None)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """Several blocks, the last one not full."""
    monkeypatch.setattr(duplicates, "_BATCH", 7)


def _distinct(n, d=12, seed=0):
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (n, 16, 16, 3), dtype=np.uint8)
    return images, rng.normal(size=(n, d)).astype(np.float32)


def _groups(found):
    return [found.images[found.groups == g].tolist() for g in range(found.n_groups)]


def _find(images, features):
    return duplicates.find(in_memory("arrays", images, IN_MEMORY), features)


def _nearly(images, i, j, bit=1):
    """Image i becomes image j with an error of a few gray levels."""
    images[i] = images[j] ^ bit


def test_several_groups_of_both_kinds():
    images, x = _distinct(60)
    images[[41, 59]], x[[41, 59]] = images[3], x[3]  # three of the same pixels
    x[50] = x[3] * 2.5 + 1e-3  # and one near them, whatever its length
    _nearly(images, 50, 3)
    images[33], x[33] = images[20], x[20]
    x[5] = x[58] + 1e-3
    _nearly(images, 5, 58)
    found = _find(images, x)
    assert _groups(found) == [[3, 41, 50, 59], [5, 58], [20, 33]]
    assert found.is_exact.tolist() == [True, True, False, True, False, False, True, True]
    similarity = found.similarities
    assert (similarity[found.is_exact] == 1).all()
    unit = x.astype(np.float64) / np.linalg.norm(x.astype(np.float64), axis=1)[:, None]
    np.testing.assert_allclose(similarity[[2, 5]], [unit[3] @ unit[50], unit[5] @ unit[58]])
    assert found.threshold < similarity[2] < 1
    assert duplicates.counts(found) == {
        "groups": 3, "exact_images": 5, "near_images": 3, "near_above_similarity": found.threshold,
    }  # fmt: skip


def test_no_duplicates():
    found = _find(*_distinct(40))
    assert (found.n_groups, len(found.images), len(found.similarities)) == (0, 0, 0)
    one = _find(*_distinct(1))
    assert (one.n_groups, one.threshold) == (0, 1)
    dataset = in_memory("arrays", _distinct(40)[0], IN_MEMORY)
    titles = "group,kind,image,width,height,bytes,taken,keep,similarity\n"
    assert assignments.duplicates_csv(dataset.sources, found) == titles


def test_only_the_pixels_make_exact_duplicates():
    """Equal pixels are exact whatever their features, which alone make no duplicates."""
    images, x = _distinct(40)
    x[7] = x[2]
    _nearly(images, 7, 2)
    x[9] = x[1]
    images[30] = images[11]
    found = _find(images, x)
    assert _groups(found) == [[2, 7], [11, 30]]
    assert found.is_exact.tolist() == [False, False, True, True]
    assert found.similarities[3] == 1
    assert _groups(_find(images[:, 1:], x)) == [[11, 30]], "too small for near ones"


def test_rows_of_zeros_and_features_that_are_all_the_same():
    images, x = _distinct(40)
    x[[4, 5, 30]] = 0
    images[5] = images[4]
    found = _find(images, x)
    assert _groups(found) == [[4, 5]]
    assert found.similarities.tolist() == [1, 1]
    collapsed = _find(images, np.tile(x[:1], (40, 1)))
    assert _groups(collapsed) == [[4, 5]]


def test_a_chain_is_one_group():
    angles = np.concatenate([np.arange(4) * 0.08, 1 + np.arange(30) * 0.17])
    x = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    images = _distinct(34)[0]
    for i in range(1, 4):
        _nearly(images, i, i - 1, 1 << (i - 1))
    found = _find(images, x)
    assert _groups(found) == [[0, 1, 2, 3]]
    np.testing.assert_allclose(found.similarities, np.cos(angles[:4]))
    assert found.similarities[3] < found.threshold < found.similarities[1]


@every_row("threshold", [0.2, 0.6, 0.9])
def test_pairs_are_those_of_the_nearest_neighbors(threshold, monkeypatch):
    monkeypatch.setattr(duplicates, "_NEIGHBORS", 6)
    x = _distinct(70, d=5)[1]
    unit = x.astype(np.float64) / np.linalg.norm(x.astype(np.float64), axis=1)[:, None]
    similar = unit @ unit.T - 3 * np.eye(70)
    expected = {
        (min(i, int(j)), max(i, int(j)))
        for i in range(70)
        for j in np.argsort(-similar[i])[:6]
        if similar[i, j] > threshold
    }
    assert set(map(tuple, duplicates.similar_pairs(x, threshold).tolist())) == expected


def test_threshold_against_all_pairs(monkeypatch):
    x = _distinct(70)[1]
    unit = x / np.linalg.norm(x.astype(np.float64), axis=1)[:, None]
    apart = 1 - unit @ unit.T + 3 * np.eye(70)
    expected = 1 - duplicates.NEARNESS * np.median(apart.min(axis=1))
    assert duplicates.near_threshold(x) == pytest.approx(expected, abs=1e-7)
    monkeypatch.setattr(duplicates, "_SAMPLE", 10)
    expected = 1 - duplicates.NEARNESS * np.median(apart.min(axis=1)[subset(70, 10)])
    assert duplicates.near_threshold(x) == pytest.approx(expected, abs=1e-7)


def test_many_copies_do_not_move_the_threshold():
    images, x = _distinct(20)
    alone = _find(images, x).threshold
    copies = np.concatenate([np.arange(20), np.repeat([1, 2, 3], 20)])
    found = _find(images[copies], x[copies])
    assert found.threshold == pytest.approx(alone)
    assert [len(group) for group in _groups(found)] == [21, 21, 21]


def test_images_are_fetched_a_few_at_a_time():
    images, x = _distinct(30)
    images[29] = images[0]
    asked = []

    def fetch(indices):
        asked.append(len(indices))
        return images[indices]

    dataset = in_memory("arrays", images, IN_MEMORY)._replace(fetch=fetch)
    assert _groups(duplicates.find(dataset, x)) == [[0, 29]]
    assert max(asked) <= 7
    # For the same pixels, for the outlines of distinct ones, and to compare pairs.
    assert sum(asked) <= 30 + 29 + 4


def test_too_many_images_for_near_duplicates(monkeypatch):
    monkeypatch.setattr(duplicates, "MAX_NEAR_IMAGES", 39)
    images, x = _distinct(41)
    images[9] = images[8]
    x[1] = x[0]
    found = _find(images, x)
    assert found.threshold is None
    assert _groups(found) == [[8, 9]]


def test_table_names_files_or_numbers():
    images, x = _distinct(40)
    images[30], x[30] = images[11], x[11]
    found = _find(images, x)
    dataset = in_memory("arrays", images, IN_MEMORY)
    rows = assignments.duplicates_csv(dataset.sources, found).splitlines()
    titles = "group,kind,image,width,height,bytes,taken,keep,similarity"
    assert rows == [titles, "0,exact,11,16,16,,,1,1", "0,exact,30,16,16,,,0,1"]
    names = tuple(f'{i}, "x".jpg' for i in range(40))
    table = assignments.duplicates_csv(names, found)
    assert [row["image"] for row in csv.DictReader(table.splitlines())] == [names[11], names[30]]


def test_groups_of_the_report():
    images, x = _distinct(60)
    for first, copies in ((3, [13, 23, 33]), (4, [14, 24]), (5, [15])):
        images[copies], x[copies] = images[first], x[first]
    repeated = _find(images, x)
    groups = duplicates.record(repeated, None)
    indices = [[image["index"] for image in group["images"]] for group in groups]
    assert indices == [[3, 13, 23, 33], [4, 14, 24], [5, 15]]
    assert {group["kind"] for group in groups} == {"exact"}
    assert [image["name"] for image in groups[2]["images"]] == ["image 5", "image 15"]
    kept = [[i["keep"] for i in group["images"]].index(True) for group in groups]
    assert kept == [0, 0, 0]
    picked = duplicates.with_picked(repeated, [23, 14, 33, 40])
    assert duplicates.originals(picked, 60)[[3, 14, 15, 40]].tolist() == [33, 14, 5, 40]
    stored = duplicates.from_arrays(duplicates.to_arrays(picked))
    picked = duplicates.record(stored, None)
    kept = [[i["index"] for i in group["images"] if i["keep"]] for group in picked]
    assert kept == [[33], [14], [5]], "of a group the last one"


def test_originals_are_kept_before_what_is_called_a_copy():
    names = (
        *("Backup/a.jpg", "trip/a.jpg"),
        *("b (1).jpg", "copyright/b.jpg"),
        *("Copy of c.jpg", "c - copy.jpg", "2019 (12)/c.jpg"),
        *("d_copy.png", "backups/d.png"),  # the earlier one, where all are copies
        *("e.jpg", "copy/e.jpg"),
    )
    images, x = _distinct(40)
    sets = ((0, 1), (2, 3), (4, 5, 6), (7, 8), (9, 10))
    for first, *copies in sets:
        images[copies], x[copies] = images[first], x[first]
    dataset = in_memory("arrays", images, IN_MEMORY)
    names += tuple(f"{i}.jpg" for i in range(len(names), 40))
    found = duplicates.find(dataset._replace(sources=names), x)
    kept = dict(zip(found.groups[found.keep].tolist(), found.images[found.keep], strict=True))
    assert sorted(names[i] for i in kept.values()) == sorted(
        ["trip/a.jpg", "copyright/b.jpg", "2019 (12)/c.jpg", "d_copy.png", "e.jpg"]
    )
