"""Embeddings as people store them: columns of vectors, bfloat16, blanks, addresses."""

import datetime
import json
import re

import ml_dtypes
import numpy as np
import pytest

from cluster_jax import GridShift, SmoothTree
from cluster_jax.core import arrays, checks
from cluster_jax.core.checks import InputError
from cluster_jax.data import datasets, scan, tables
from cluster_jax.data.shards import Shards
from tests import toy
from tests.rows import every_row

X = np.arange(12, dtype=np.float32).reshape(4, 3) / 8
NAMES = ("a.jpg", "b.jpg", "c.jpg", "d.jpg")


def write(path, columns):
    """A table in the format of the suffix."""
    if path.suffix == ".jsonl":
        rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
        path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
        return
    pa = pytest.importorskip("pyarrow")
    from pyarrow import feather, parquet

    table = pa.table(columns)
    (parquet.write_table if path.suffix == ".parquet" else feather.write_feather)(table, path)


@every_row("suffix", [".parquet", ".arrow", ".feather", ".jsonl"])
def test_a_column_of_vectors_is_found_by_itself(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    write(path, {"size": [3, 4, 5, 6], "file": list(NAMES), "embedding": X.tolist()})
    table = tables.read_table(str(path), None)
    np.testing.assert_array_equal(table.values, X)
    assert table.names == NAMES
    write(path, {"a": X.tolist(), "b": (X + 1).tolist()})
    np.testing.assert_array_equal(tables.read_table(str(path), "b").values, X + 1)
    with pytest.raises(InputError, match=r"--array must name one of the vectors of .*, a, b; got"):
        tables.read_table(str(path), None)
    with pytest.raises(InputError, match=r"--array must be a column of .*, a, b; got c"):
        tables.read_table(str(path), "c")
    write(path, {"id": [7, 8, 9, 6], "x": X[:, 0].tolist(), "y": X[:, 1].tolist()})
    table = tables.read_table(str(path), None)
    np.testing.assert_array_equal(table.values, X[:, :2])
    assert table.names == ("7", "8", "9", "6")
    write(path, {"a": [[1.0, 2.0], [3.0], [1.0], [2.0]]})
    with pytest.raises(InputError, match="vectors of different lengths"):
        tables.read_table(str(path), None)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_file_that_is_cut_says_so(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    write(path, {"embedding": X.tolist()})
    whole = path.read_bytes()
    for count in (len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:count])
        with pytest.raises(InputError) as stop:
            tables.read_table(str(path), None)
        must = f"{path} must be a whole {suffix} file; got only its first {count:,} bytes: "
        assert str(stop.value) == f"{must}write or copy it again"
    path.write_bytes(b"id,x")
    with pytest.raises(InputError, match=f"x{suffix} must be a whole {suffix} file; got .*4 bytes"):
        tables.read_table(str(path), None)
    path.write_bytes(b"")
    with pytest.raises(InputError, match="must not be empty; got 0 bytes: write or copy it again"):
        tables.read_texts(str(path))


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_lists_and_missing_values_are_metadata(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    columns = {
        "embedding": X.tolist(),
        "tags": [["a"], [], ["b", "é"], None],
        "scores": [[1.0], [], None, [2.0, 3.0]],
        "place": [{"x": 1}, None, None, {"x": 2}],
        "note": ["a\u2028b", None, "", "c"],
    }
    if suffix == ".parquet":
        columns |= {"day": [datetime.date(2024, 1, day) for day in (1, 2, 3, 4)]}
    write(path, columns)
    texts = tables.read_texts(str(path))
    assert texts["tags"] == ['["a"]', "[]", '["b", "é"]', ""]
    assert texts["scores"] == ["[1.0]", "[]", "", "[2.0, 3.0]"]
    assert texts["place"] == ['{"x": 1}', "", "", '{"x": 2}']
    assert texts["note"] == ["a\u2028b", "", "", "c"]
    assert texts.get("day", ["2024-01-01"])[0] == "2024-01-01"
    assert "embedding" not in texts
    np.testing.assert_array_equal(tables.read_table(str(path), None).values, X)
    with pytest.raises(InputError, match=r"vectors of numbers of one length; got none in row 2"):
        tables.read_table(str(path), "scores")


def test_objects_with_other_keys_than_the_first(tmp_path):
    (tmp_path / "m.jsonl").write_text('{"id": "a"}\n{"id": "b", "year": 1999}\n')
    assert tables.read_texts(str(tmp_path / "m.jsonl")) == {"id": ["a", "b"], "year": ["", "1999"]}


def test_tensors(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "x.safetensors"
    numpy.save_file({"x": X.astype(ml_dtypes.bfloat16), "bias": X[0]}, path)
    np.testing.assert_array_equal(tables.read_table(str(path), None).values, X)
    path.write_bytes(b"other")
    with pytest.raises(InputError, match=r"must be a whole \.safetensors file; got .+"):
        tables.read_table(str(path), None)


def test_vectors_in_the_cells_of_a_csv(tmp_path):
    path = tmp_path / "x.csv"
    cells = [f'{name},"[{", ".join(map(str, row))}]"' for name, row in zip(NAMES, X, strict=True)]
    path.write_text("\n".join(["file,embedding", *cells]))
    table = tables.read_table(str(path), None)
    np.testing.assert_array_equal(table.values, X)
    assert table.names == NAMES
    path.write_text("\n".join(cells).replace(", ", " "))  # as NumPy prints, without titles
    np.testing.assert_array_equal(tables.read_table(str(path), None).values, X)
    path.write_text("\n".join(["file,embedding", *cells, f'e,"[{"9, " * 9999}x]"']))
    with pytest.raises(InputError) as caught:
        tables.read_table(str(path), None)
    assert "line 6, column 2 must be a vector such as [0.1, 0.2]; got" in str(caught.value)
    assert len(str(caught.value)) <= 300
    for cell, said in (
        ('e,"[9, 9]"', "line 6 must have a vector of 3 numbers like others; got 2"),
        ("e", "line 6 must have 2 columns like the first one; got 1"),
        ('e,"[1 2 ... 9]"', "which a library has shortened: write the table as Parquet"),
    ):
        path.write_text("\n".join(["file,embedding", *cells, cell]))
        with pytest.raises(InputError, match=re.escape(said)):
            tables.read_table(str(path), None)
    path.write_text('v\n"[0.1 ... 0.3]"\n')  # In the first row, too.
    with pytest.raises(InputError, match="line 2 must have all the numbers of a vector"):
        tables.read_table(str(path), None)
    path.write_text('a,b\n"[1,2]","[3,4]"\n')
    np.testing.assert_array_equal(tables.read_table(str(path), "b").values, [[3, 4]])
    with pytest.raises(InputError, match=r"--array must be the title of a column .*, a, b; got"):
        tables.read_table(str(path), None)


def test_blanks_separate(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("".join(f"  {'   '.join(map(str, row))} \n" for row in X))
    np.testing.assert_array_equal(tables.read_table(str(path), None).values, X)


def test_bfloat16_in_memory_and_in_files(tmp_path):
    narrow = X.astype(ml_dtypes.bfloat16)
    (tmp_path / "shards").mkdir()
    np.save(tmp_path / "x.npy", narrow)
    np.savez(tmp_path / "x.npz", features=narrow)
    np.save(tmp_path / "shards" / "0.npy", narrow)
    for name in ("x.npy", "x.npz", "shards"):
        values = tables.read_table(str(tmp_path / name), None).values
        assert values.dtype == np.float32
        np.testing.assert_array_equal(values, X)
    assert Shards(str(tmp_path / "shards")).dtype == np.float32
    np.testing.assert_array_equal(arrays.numeric(narrow, "X"), X)
    rows = np.random.default_rng(0).normal(size=(60, 8)).astype(ml_dtypes.bfloat16)
    labels = SmoothTree().fit(rows.astype(np.float32)).labels_
    np.testing.assert_array_equal(SmoothTree().fit(rows).labels_, labels)


@pytest.mark.parametrize("title", [None, "file"])
def test_the_index_of_a_data_frame_names_the_rows_of_its_file(tmp_path, title):
    pandas = pytest.importorskip("pandas")
    index = pandas.Index(NAMES, name=title)
    pandas.DataFrame({"v": X.tolist()}, index=index).to_parquet(tmp_path / "v.parquet")
    numbers = {f"f{i}": column for i, column in enumerate(X.T)}
    pandas.DataFrame(numbers, index=index).to_parquet(tmp_path / "f.parquet")
    for name in ("v", "f"):
        table = tables.read_table(str(tmp_path / f"{name}.parquet"), None)
        np.testing.assert_array_equal(table.values, X)
        assert table.names == NAMES


def test_a_column_of_a_data_frame():
    column = np.empty(4, object)
    column[:] = list(X)
    for values in (column, column[:, None]):
        np.testing.assert_array_equal(arrays.numeric(values, "X"), X)
    with pytest.raises(InputError, match="X"):
        arrays.numeric(np.empty((0, 3), object), "X")
    column[2] = X[2, :2]
    with pytest.raises((InputError, TypeError), match="X must be an array of numbers"):
        arrays.numeric(column, "X")


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_the_vectors_of_a_data_frame_are_found_by_themselves(library):
    module = pytest.importorskip(library)
    frame = module.table if library == "pyarrow" else module.DataFrame
    for columns in ({"v": X.tolist()}, {"id": [*NAMES], "v": X.tolist()}):
        np.testing.assert_array_equal(arrays.numeric(frame(columns), "X"), X)
    column = frame({"v": X.tolist()})["v"]
    np.testing.assert_array_equal(arrays.numeric(column, "X"), X)
    numbers = frame({f"f{i}": X[:, i] for i in range(X.shape[1])})
    if library != "pyarrow":
        np.testing.assert_array_equal(arrays.numeric(numbers, "X"), X)
    two = frame({"v": X.tolist(), "w": X.tolist()})
    with pytest.raises(InputError, match="X must have one column of vectors; got 2: choose one"):
        arrays.numeric(two, "X")
    for model in (SmoothTree(), GridShift(1.0)):
        model.fit(frame({"v": X.tolist() * 5}))
        assert model.n_features_in_ == X.shape[1]
        assert model.predict(X).tolist() == model.predict(frame({"v": X.tolist()})).tolist()


def test_shards_are_in_the_order_of_their_numbers(tmp_path):
    for i in range(12):
        np.save(tmp_path / f"part_{i}.npy", np.full((2, 3), i))
    (tmp_path / "._part_0.npy").write_bytes(b"\0\5\x16\7")
    assert Shards(str(tmp_path))[:][::2, 0].tolist() == list(range(12))


def test_one_image_in_color_is_no_set_of_lines():
    with pytest.raises(InputError, match=r"\[64 x 64 x 3\], which looks like one image in color"):
        datasets.load(toy.DATA, np.zeros((64, 64, 3), np.uint8))


def test_addresses(tmp_path):
    np.save(tmp_path / "my x.npy", X)
    address = f"file://{tmp_path}/my%20x.npy"
    np.testing.assert_array_equal(tables.read_table(address, None).values, X)
    with pytest.raises(InputError, match=r"got a web address: download it"):
        tables.read_table("https://example.org/x.npy", None)
    with pytest.raises(InputError, match=r"s3:// paths need s3fs: pip install s3fs"):
        checks.local("s3://bucket/x")
    with pytest.raises(InputError, match=r"got a web address: download it"):
        scan.find("https://example.org/photos")
    (tmp_path / "a.jpg").write_bytes(b"content")
    assert scan.find(f"file://{tmp_path}").names == ("a.jpg",)
    with pytest.raises(InputError, match=r"must be an existing file"):
        tables.read_table("file:///nosuch/x.npy", None)
