"""Features in shards: rows against the whole table, and one sentence for each damage."""

import numpy as np
import pytest
from ml_dtypes import bfloat16 as BF16

from cluster_jax.core import arrays
from cluster_jax.core.checks import InputError
from cluster_jax.data.arrays import Shards


@pytest.fixture
def folder(tmp_path):
    """Three shards of 5, 0, and 7 rows, and the whole table."""
    x = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float16)
    for i, rows in enumerate((x[:5], x[5:5], x[5:])):
        np.save(tmp_path / f"part-{i:05d}-of-00003.npy", rows)
    return tmp_path, x


def test_rows_are_those_of_the_whole_table(folder, monkeypatch):
    path, x = folder
    rows = Shards(str(path))
    assert rows.shape == (12, 4)
    assert len(rows) == 12
    assert rows.dtype == np.float32
    x = x.astype(np.float32)
    for part in (np.s_[:], np.s_[3:9], np.s_[7:7], np.s_[9:99], np.s_[1:12:4], [11, 0, 5, 4, 4]):
        np.testing.assert_array_equal(rows[part], x[part])
        assert rows[part].dtype == np.float32
    monkeypatch.setattr(arrays, "_BLOCK", 20)
    found = list(rows.blocks())
    assert [(part.start, part.stop) for part, _ in found] == [(0, 5), (5, 10), (10, 12)]
    np.testing.assert_array_equal(np.concatenate([values for _, values in found]), x)


def test_one_file_and_larger_types(tmp_path):
    x = np.arange(8).reshape(4, 2)
    for dtype, read in ((np.int8, np.float32), (np.int32, np.float64), (np.float64, np.float64)):
        np.save(tmp_path / "x.npy", x.astype(dtype))
        rows = Shards(str(tmp_path / "x.npy"))
        assert rows.dtype == rows[:].dtype == read
        np.testing.assert_array_equal(rows[:], x)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / "part-00001-of-00003.npy").unlink(), "files of 3, and no number 1"),
        (lambda path: (path / "part-00002-of-00003.npy").unlink(), "2 files of 3, and no number 2"),
        (lambda path: _cut(path / "part-00002-of-00003.npy", 20), "00002-of-00003.npy must be a "
            "complete file of plain arrays of NumPy; got mmap length is greater than file size"),
        (lambda path: _cut(path / "part-00000-of-00003.npy", 1000), "00000-of-00003.npy must be a "
            "complete file"),
        (lambda path: np.save(path / "part-00001-of-00003.npy", np.ones((2, 3))),
            "part-00001-of-00003.npy must have 4 columns like part-00000-of-00003.npy; got 3"),
        (lambda path: np.save(path / "part-00001-of-00003.npy", np.array([["a"]])),
            "must hold real numbers, rows by columns; got <U1"),
        (lambda path: np.save(path / "part-00001-of-00003.npy", np.ones((2, 4), BF16)),
            r"got \|V2 \(save bfloat16 as float32\) of shape"),
        (lambda path: np.save(path / "part-00001-of-00003.npy", np.ones(3)), r"shape \(3,\)"),
        (lambda path: np.save(path / "part-00001-of-00003.npy", np.array([{}]), allow_pickle=True),
            "got pickled objects, which are never loaded"),
    ],
)  # fmt: skip
def test_damage_is_one_sentence(folder, damage, message):
    path, _ = folder
    damage(path)
    with pytest.raises(InputError, match=message) as caught:
        Shards(str(path))
    assert "\n" not in str(caught.value)


def _cut(file, count):
    file.write_bytes(file.read_bytes()[:-count])


def test_a_number_that_is_none_is_named_with_its_place(folder):
    path, x = folder
    bad = x[5:].copy()
    bad[3, 2] = np.inf
    np.save(path / "part-00002-of-00003.npy", bad)
    with pytest.raises(InputError, match=r"00002-of-00003.npy .* got NaN or infinity in row 3"):
        list(Shards(str(path)).blocks())


def test_names_that_do_not_count_may_have_gaps(tmp_path):
    with pytest.raises(InputError, match=r"must be a folder of .npy files; got none"):
        Shards(str(tmp_path))
    for name in ("2024", "2026", "2031"):
        np.save(tmp_path / f"{name}.npy", np.ones((1, 2)))
    assert Shards(str(tmp_path)).shape == (3, 2)
