"""Tables of features: columns, ids, labels; a cell that is missing, or of another kind."""

import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from cluster_jax.core.checks import InputError
from cluster_jax.data import tables
from tests.rows import every_row


@pytest.fixture
def put(tmp_path):
    """Writes a CSV, or a Parquet file of columns; returns its path."""

    def one(content, name="x.csv"):
        path = tmp_path / name
        if isinstance(content, dict):
            parquet.write_table(pa.table(content), path)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return one


NUMBERS = {"id": ["a", "b", "c"], "x": [1, 2, 3], "y": [0.5, -1.0, 2e9], "z": [True, False, True]}
VECTORS = {"sku": [7, 8, 9], "vector": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "price": [3, 1, 2]}


def test_columns_of_numbers_and_ids(put):
    lines = [
        ",".join(NUMBERS),
        *(",".join(map(str, row)) for row in zip(*NUMBERS.values(), strict=True)),
    ]
    for path in (put("\ufeff" + "\r\n".join(lines)), put(NUMBERS, "x.parquet")):
        table = tables.read_rows(path)
        np.testing.assert_array_equal(table.values, np.array([*map(NUMBERS.get, "xyz")]).T)
        assert table.values.dtype == np.float64  # 2e9 as float32 would be another number
        assert (table.names, table.ids, table.columns) == (("a", "b", "c"), "id", ("x", "y", "z"))
        assert table.described == "features: x, y, z; ids of rows: id"
        again = tables.read_rows(path, earlier=tables.Table(None, columns=("z", "x")))
        np.testing.assert_array_equal(again.values, table.values[:, [2, 0]])


@pytest.mark.parametrize("kind", ["csv", "parquet", "fixed", "large"])
def test_a_column_of_vectors(put, kind):
    columns = dict(VECTORS)
    if kind == "csv":
        rows = zip(*columns.values(), strict=True)
        texts = (f'{sku},"{json.dumps(vector)}",{price}' for sku, vector, price in rows)
        path = put("\n".join(["sku,vector,price", *texts]))
    else:
        of = {"fixed": pa.list_(pa.float16(), 2), "large": pa.large_list(pa.int64())}.get(kind)
        columns["vector"] = pa.array(columns["vector"], of or pa.list_(pa.float64()))
        path = put(columns, "x.parquet")
    for ids in (None, "sku"):
        table = tables.read_rows(path, ids=ids)
        np.testing.assert_array_equal(table.values, VECTORS["vector"])
        assert table.names == (ids and ("7", "8", "9"))
        assert table.left_out == (("price",) if ids else ("sku", "price"))
    np.testing.assert_array_equal(tables.read_rows(path, "price").values, [[3], [1], [2]])


@every_row(
    ("bad", "said"),
    [
        (None, "got None in row 1"),
        ([3.0], r"a vector of 2 numbers .* vector; got \[3.0\] in row 1"),
        ([], r"got \[\] in row 1"),
    ],
)
def test_a_vector_is_right_in_every_row_or_refused(put, bad, said):
    """Never is another column taken in its place; a number that is missing is NaN."""
    one = tables.read_rows(put({"vector": [[1.0], [None]], "price": [1, 2]}, "y.parquet"))
    np.testing.assert_array_equal(one.values, [[1.0], [np.nan]])
    columns = {**VECTORS, "vector": [[1.0, 2.0], bad, [5.0, 6.0]]}
    texts = ["[1, 2]", "" if bad is None else json.dumps(bad), "[5, 6]"]
    with pytest.raises(InputError, match=said):
        tables.read_rows(put(columns, "x.parquet"))
    with pytest.raises(InputError, match=r"vector of 2 numbers in each row .* in row 1"):
        tables.read_rows(put("vector,price\n" + "\n".join(f'"{t}",1' for t in texts)))


@every_row(
    ("content", "said"),
    [
        ('vector,price\n"[1, 2]",1\nn/a,2', "a vector of 2 numbers .* got 'n/a' in row 1"),
        ("vector\n[0.1 0.2]\n[0.3 0.4]", r"got '\[0.1 0.2\]' in row 0"),
        ("a,b\n1,2\n,4", "a number in each row of the column a; got None in row 1"),
        ("a,b\n1,2\n?,4", r"a number in each row of the column a; got '\?' in row 1"),
        ("a;b\n1;2\n3,5;4", "in UTF-8 with a line of titles, separated by commas; got"),
        ("a;b\n1;2\n3;4", "columns of numbers or of vectors; got a;b"),
        ("1.5,2\n3,4", r"titles of columns, which are words; got 1 row below 1.5, 2"),
        ("a,b\n", "rows below different titles .* got 0 rows below a, b"),
        ("a,a\n1,2", "rows below different titles .* got 1 row below a, a"),
        ("name,kind\nx,y", "columns of numbers or of vectors; got name, kind"),
        (b"\xff\xfea\0", "must be a table in UTF-8"),
        (b"PK", "Empty CSV file"),
    ],
)
def test_a_table_that_is_refused(put, content, said):
    with pytest.raises(InputError, match=said) as caught:
        tables.read_rows(put(content))
    assert "\n" not in str(caught.value)


def test_a_parquet_file_that_is_cut(put, tmp_path):
    path = put(NUMBERS, "x.parquet")
    (tmp_path / "x.parquet").write_bytes((tmp_path / "x.parquet").read_bytes()[:-9])
    with pytest.raises(InputError, match="must be a whole Parquet file; got"):
        tables.read_rows(path)
    two = put({"u": [[1.0]], "v": [[2.0]]}, "y.parquet")
    with pytest.raises(InputError, match=r"--array must name one of the vectors of .*, u, v"):
        tables.read_rows(two)
    with pytest.raises(InputError, match=r"--array must be a column of .*, u, v; got w"):
        tables.read_rows(two, "w")
    with pytest.raises(InputError, match=r"column w of the run must be a column of .*; got w"):
        tables.read_rows(two, earlier=tables.Table(None, columns=("w",)))


def test_numbers_are_features_whatever_their_order(put):
    """Nothing is an id but a column of that title, or the one that is named."""
    rows = [f"{i},{10 * i},{i % 7},t{i}" for i in range(20)]
    path = put("\n".join(["length,width,user_id,title", *rows]))
    table = tables.read_rows(path)
    assert (table.columns, table.names) == (("length", "width", "user_id"), None)
    assert table.described == "features: length, width, user_id; left out: title"
    named = tables.read_rows(path, ids="title")
    assert (named.names[3], named.ids, named.left_out) == ("t3", "title", ())
    index = tables.read_rows(put(",0,1\n0,5,6\n1,7,8"))  # as pandas writes it
    np.testing.assert_array_equal(index.values, [[5, 6], [7, 8]])
    assert index.left_out == ("a column without a title",)


@every_row(
    ("ids", "names"),
    [
        (["1", "2"], ("1", "2")),
        (["1.0", " 2.00"], ("1", "2")),
        (["007", "a.0"], ("007", "a.0")),
        (["9007199254740993", "x"], ("9007199254740993", "x")),
        (["1", "1.0"], "distinct; got '1' in the rows 0 and 1 of id"),
        (["1", ""], "in each row .*; got none in row 1 of id"),
    ],
)
def test_ids_have_one_form(put, tmp_path, ids, names):
    path = put("\n".join(["id,x", *(f"{i},{k}" for k, i in enumerate(ids))]))
    (tmp_path / "ids.txt").write_text("\n".join(ids))
    np.save(tmp_path / "x.npy", np.eye(2))
    if isinstance(names, str):
        with pytest.raises(InputError, match=names):
            tables.read_rows(path)
        return
    assert tables.read_rows(path).names == names
    floats = put({"id": pa.array([1.0, 2.0]), "x": [1, 2]}, "f.parquet")
    assert tables.read_rows(floats).names == ("1", "2")
    assert tables.read_rows(str(tmp_path / "x.npy"), ids=str(tmp_path / "ids.txt")).names == names
    null = put({"id": pa.array([1.0, None]), "x": [1, 2]}, "g.parquet")
    with pytest.raises(InputError, match="got none in row 1 of id"):
        tables.read_rows(null)


def test_ids_of_arrays(tmp_path):
    path = str(tmp_path / "x.npz")
    np.savez(path, features=np.eye(3), files=["a", "b", "c"], other=[1, 2, 3])
    assert tables.read_rows(path).names == ("a", "b", "c")
    assert tables.read_rows(path, ids="other").names == ("1", "2", "3")
    with pytest.raises(InputError, match=r"--ids must be an array of .*; got nosuch"):
        tables.read_rows(path, ids="nosuch")
    np.savez(path, emb=np.eye(3), x=np.arange(3))
    assert tables.read_rows(path, ids="x").names == ("0", "1", "2")
    table = tables.read_rows(path)
    assert (table.values.tolist(), table.described) == ([0, 1, 2], "features: x; left out: emb")
    assert tables.read_rows(path, "emb").described == "features: emb; left out: x"
    np.savez(path, y=np.arange(3))
    with pytest.raises(InputError, match=r"must hold an array .*; got y"):
        tables.read_rows(path)
    np.savez(path, features=np.eye(3), files=["a", "b"])
    with pytest.raises(InputError, match=r"files in .* each of the 3 rows; got shape \(2,\)"):
        tables.read_rows(path)
    np.savez(path, features=np.eye(3), id="run 17", ids=["a", "b", "c"], key=["x", "y", "z"])
    assert tables.read_rows(path).names == ("a", "b", "c")
    earlier = tables.read_rows(path, ids="key")
    assert tables.read_rows(path, earlier=earlier).names == ("x", "y", "z")
    np.savez(path, features=np.eye(3), ids=["a", "b", "c"])
    assert tables.read_rows(path, earlier=earlier).names is None, "other ids are not those"
    np.save(tmp_path / "x.npy", np.eye(3))
    with pytest.raises(InputError, match="id must be a file of type"):
        tables.read_rows(str(tmp_path / "x.npy"), ids="id")


@every_row(
    ("name", "content", "codes", "names"),
    [
        ("x.txt", "b\na\nb\n", [1, 0, 1], ("a", "b")),
        ("x.csv", "label\n3\n1\n3\n", [1, 0, 1], ("1", "3")),
        ("x.csv", "y\n01\n1\n01\n", [0, 1, 0], ("01", "1")),
    ],
)
def test_labels(put, name, content, codes, names):
    labels = tables.read_labels(put(content, name), 3)
    assert (labels.codes.tolist(), labels.names) == (codes, names)


@every_row(
    ("name", "content", "said"),
    [
        ("x.csv", "3\n1\n3\n", "same length .a .csv begins with a title.; got 3 and 2"),
        ("x.csv", "a,b\n1,2\n", "one label in each row; got 1, 2 in row 0"),
        ("x.txt", "a\n\nb\n", "one label in each row; got none in row 1"),
        ("x.md", "a", "must be a file of type .npy, .npz, .csv, .txt; got .md"),
        ("x.txt", "", "one integer or string per row; got float64 of shape"),
    ],
)
def test_labels_that_are_refused(put, name, content, said):
    with pytest.raises(InputError, match=said):
        tables.read_labels(put(content, name), 3)


def test_labels_of_arrays_have_their_names(tmp_path):
    path = str(tmp_path / "x.npz")
    np.savez(path, labels=[1, 0, 1], label_names=["cat", "dog"], features=np.eye(3))
    labels = tables.read_labels(path, 3)
    assert (labels.codes.tolist(), labels.names) == ([1, 0, 1], ("cat", "dog"))


def test_many_numbers_are_read_in_blocks(tmp_path, monkeypatch):
    rows = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float16)
    np.save(tmp_path / "x.npy", rows)
    assert isinstance(tables.read_rows(str(tmp_path / "x.npy")).values, np.ndarray)
    monkeypatch.setattr(tables, "LARGE", 100)
    table = tables.read_rows(str(tmp_path / "x.npy"))
    assert isinstance(table.values, tables.Shards)
    np.testing.assert_array_equal(table.values[:], rows.astype(np.float32))
