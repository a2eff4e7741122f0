"""Tables of features: columns, ids, labels; a cell that is missing, or of another kind."""

import hashlib
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from cluster_jax.core.checks import InputError
from cluster_jax.data import columns, tables
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
    with pytest.raises(
        InputError, match=r"--array must be a column of .*y.parquet, which has u, v; got w"
    ):
        tables.read_rows(two, "w")
    with pytest.raises(
        InputError, match=r"must have the column w, as the run has; got the .* u, v"
    ):
        tables.read_rows(two, earlier=tables.Table(None, columns=("w",)))


def test_numbers_are_features_whatever_their_order(put):
    """Nothing is an id but a column of that title, or the one that is named."""
    rows = [f"{i // 2},{10 * i + 0.5},{i % 7},t{i}" for i in range(20)]
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
        (["1.0", "2.00"], ("1", "2")),
        (["1.0", " 2.00", "x\\y", "z "], ("1.0", " 2.00", "x\\y", "z ")),
        (["\u00a05", "a\u2028b"], ("\u00a05", "a\u2028b")),
        (["007", "a.0"], ("007", "a.0")),
        (["9007199254740993", "x"], ("9007199254740993", "x")),
        (["k1", "k1"], "distinct; got 'k1' in the rows 0 and 1 of id"),
        (["1.0", "1.00"], "distinct; got one number in two forms of id"),
        (["1", ""], "in each row .*; got none in row 1 of id"),
    ],
)
def test_ids_stay_letter_by_letter(put, tmp_path, ids, names):
    path = put("\n".join(["id,x", *(f"{i},{k}" for k, i in enumerate(ids))]))
    (tmp_path / "ids.txt").write_text("\n".join(ids))
    np.save(tmp_path / "x.npy", np.eye(len(ids)))
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


@every_row(
    ("ids", "said"),
    [
        ([b"k\xff", b"k2"], r"texts or whole numbers in .*; got b'k.xff' in row 0 of id: write"),
        (["a", "b\0"], r"texts or whole numbers in .* in row 1 of id"),
        ([b"a", "b\u00e9".encode()], ("a", "b\u00e9")),
        (["a\rb", "c\nd"], ("a\rb", "c\nd")),
    ],
)
def test_ids_that_no_text_can_say_are_refused(put, ids, said):
    path = put({"id": ids, "vector": [[1.0], [2.0]]}, "x.parquet")
    if isinstance(said, tuple):
        assert tables.read_rows(path).names == said
        return
    with pytest.raises(InputError, match=said):
        tables.read_rows(path)


def test_an_id_of_a_csv_may_have_line_ends(put):
    path = put('id,x\n"a\rb",1\n"c\nd",2\n')
    assert tables.read_rows(path).names == ("a\rb", "c\nd")
    # A file is parsed in blocks of a megabyte, of which some end in the middle of an id.
    ids = [f"{i:040d}\n{i:040d}" for i in range(40_000)]
    path = put("id,x\n" + "".join(f'"{name}",1\n' for name in ids))
    assert tables.read_rows(path).names == (*ids,)


WORDS = pa.array([["sea", "dog"], [], None])
RECORDS = pa.array([{"maker": "X", "iso": 100}] * 3)
MAPS = pa.array([[("a", 1)]] * 3, pa.map_(pa.string(), pa.int64()))


@pytest.mark.parametrize("more", [WORDS, RECORDS, MAPS], ids=["words", "records", "map"])
def test_only_the_columns_that_are_asked_for_are_read(put, more, monkeypatch):
    path = put({**VECTORS, "more": more}, "x.parquet")
    for array in (None, "vector"):
        table = tables.read_rows(path, array, "sku")
        np.testing.assert_array_equal(table.values, VECTORS["vector"])
        assert table.left_out == ("price", "more")
    read = []
    one = parquet.ParquetFile.read
    monkeypatch.setattr(
        parquet.ParquetFile, "read", lambda self, titles: read.append(titles) or one(self, titles)
    )
    tables.read_rows(path, "vector", "sku")
    tables.read_rows(path, earlier=tables.Table(None, columns=("price",)))
    assert read == [["vector", "sku"], ["price"]]
    tables.read_rows(path, None, "sku")
    assert set(read[-1]) == {*VECTORS}, "what can be no numbers is not read"


def test_vectors_of_the_tensor_type_of_arrow(put):
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(x)
    table = tables.read_rows(put({"price": [1.5, 2.5, 3.5], "vector": tensors}, "x.parquet"))
    np.testing.assert_array_equal(table.values, x)
    assert table.left_out == ("price",)
    # A file of several row groups is read in several pieces.
    read = columns.numbers(pa.chunked_array([tensors[:1], tensors[1:]]))
    assert read.to_pylist() == x.tolist()


BYTES = [row.tobytes() for row in np.random.default_rng(0).normal(size=(3, 6)).astype("f4")]


@every_row(
    "unclear",
    [
        pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((3, 2, 2))),
        [[[1.0], [2.0]]] * 3,
        [{"size": 2, "values": [1.0, 2.0]}] * 3,
        [[], None, []],
        BYTES,
        pa.array(BYTES, pa.binary(24)),
        [bytes(range(100, 228))] * 3,
    ],
)
def test_what_may_be_vectors_and_is_not_understood_is_refused(put, unclear):
    """Never is the price clustered in their place; beside vectors in lists it is left out."""
    columns = {"price": [1.5, 2.5, 3.5], "emb": unclear}
    with pytest.raises(InputError, match=r"the column emb of .* as lists of numbers, .* got the t"):
        tables.read_rows(put(columns, "x.parquet"))
    with pytest.raises(InputError, match=r"the column emb of .* write it as lists of numbers"):
        tables.read_rows(put(columns, "x.parquet"), "emb")
    assert tables.read_rows(put(columns, "x.parquet"), "price").columns == ("price",)
    table = tables.read_rows(put({**columns, "v": [[1.0]] * 3}, "y.parquet"))
    assert (table.columns, table.left_out) == (("v",), ("price", "emb"))


def test_digests_pictures_and_texts_in_bytes_are_no_vectors(put):
    digests = [hashlib.sha256(bytes([i])).digest() for i in range(3)]
    for other in (digests, [b"\x89PNG", b"\x89PNG\0", b"\xff"], [b"sku-0001"] * 3):
        table = tables.read_rows(put({"price": [1.5, 2.5, 3.5], "other": other}, "x.parquet"))
        assert (table.columns, table.left_out) == (("price",), ("other",))


def test_an_index_of_pandas_is_no_feature_and_is_the_ids_if_it_has_a_name(tmp_path):
    frame = pd.DataFrame({"a": [0.5, 1.5, 2.5, 3.5], "b": [5.0, 6.0, 7.0, 9.0]})[1:]
    path = str(tmp_path / "x.parquet")
    for index, names in (
        (frame.index, None),
        (pd.Index([40, 7, 11], name="sku"), ("40", "7", "11")),
        (pd.Index([40, 40, 11], name="shop"), None),
        (pd.MultiIndex.from_arrays([[1, 2, 3], [4, 5, 6]], names=["p", "q"]), None),
    ):
        frame.set_axis(index).to_parquet(path, index=True)
        for array, titles in ((None, ("a", "b")), ("b", ("b",))):
            table = tables.read_rows(path, array)
            assert (table.columns, table.names) == (titles, names)
            assert "__index" not in table.described
            np.testing.assert_array_equal(table.values, frame[list(titles)])
        has_ids = index.names[0] not in (None, "shop")
        named = {"ids": index.names[0]} if has_ids else {}
        assert tables.read_rows(path, **named).columns == ("a", "b")
    frame.to_csv(tmp_path / "once.csv")
    pd.read_csv(tmp_path / "once.csv").to_csv(tmp_path / "twice.csv")
    table = tables.read_rows(str(tmp_path / "twice.csv"))
    assert table.columns == ("a", "b")
    assert table.left_out == ("a column without a title", "Unnamed: 0")
    pd.read_csv(tmp_path / "once.csv").to_parquet(path)
    assert tables.read_rows(path).columns == ("a", "b")


def test_whole_numbers_that_are_there_once_are_warned_of_with_the_flag(put):
    rows = [f"{100 + 7 * i % 30},{i * 0.5},{i % 9}" for i in range(30)]
    path = put("\n".join(["product_id,price,count", *rows]))
    with pytest.warns(UserWarning, match=r"product_id in .* number in each row.*--ids=product_id"):
        table = tables.read_rows(path)
    assert table.columns == ("product_id", "price", "count")
    # In a few rows it happens by chance: no warning, which the suite takes for an error.
    few = put("\n".join(["product_id,price,count", *rows[:15]]), "few.csv")
    assert tables.read_rows(few).columns == table.columns
    assert tables.read_rows(path, ids="product_id").columns == ("price", "count")
    earlier = tables.read_rows(path, earlier=table)  # The suite takes a warning for an error.
    assert earlier.columns == table.columns


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
        ("x.txt", "a\u2028b\r\n c\u0085d \na\u2028b\n\n", [0, 1, 0], ("a\u2028b", "c\u0085d")),
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
