"""Vectors and labels from files: what is read, and one sentence for what is not."""

import re
import warnings
import zipfile

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from cluster_jax.core.checks import InputError
from cluster_jax.data import tables
from tests.rows import every_row

X = np.random.default_rng(0).normal(size=(7, 3))


def _refused(function, *arguments):
    with pytest.raises(InputError) as stop:
        function(str(arguments[0]), *arguments[1:])
    assert len(str(stop.value).splitlines()) == 1
    return str(stop.value)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (np.float32, np.float32),
        (np.float64, np.float64),
        (">f8", np.float64),
        (np.float16, np.float32),
        (np.uint8, np.float32),
        (np.int64, np.float64),
        (bool, np.float32),
    ],
)
def test_npy_of_any_real_numbers(tmp_path, given, kept):
    values = (np.abs(X) * 9).astype(given)
    np.save(tmp_path / "x.npy", values)
    table = tables.read_table(str(tmp_path / "x.npy"), None)
    assert table.values.dtype == kept
    assert table.values.dtype.isnative
    np.testing.assert_array_equal(table.values, values)
    assert table.names is None


def test_npz_by_name_or_alone(tmp_path):
    np.savez(tmp_path / "one.npz", anything=X)
    np.savez(tmp_path / "two.npz", a=X, b=X + 1)
    np.savez(tmp_path / "none.npz")
    one, two, none = (tmp_path / f"{name}.npz" for name in ("one", "two", "none"))
    np.testing.assert_array_equal(tables.read_table(str(one), None).values, X)
    np.testing.assert_array_equal(tables.read_table(str(two), "b").values, X + 1)
    assert "an array 'features' or 'x'; got a, b" in _refused(tables.read_table, two, None)
    assert "must hold an array 'c'; got a, b" in _refused(tables.read_table, two, "c")
    assert "got no arrays" in _refused(tables.read_table, none, None)


def test_npz_of_the_command_embed(tmp_path):
    """Features, labels by the names of their classes and files are found without flags."""
    classes, labels = np.array(["cat", "dog", "owl"]), np.arange(len(X)) % 3
    files = np.array([f"{i}.jpg" for i in range(len(X))])
    np.savez(tmp_path / "x.npz", features=X, labels=labels, label_names=classes, files=files)
    table = tables.read_table(str(tmp_path / "x.npz"), None)
    np.testing.assert_array_equal(table.values, X)
    assert table.names == tuple(files)
    found = tables.read_labels(str(tmp_path / "x.npz"), None, len(X))
    np.testing.assert_array_equal(found.codes, labels)
    assert found.names == tuple(classes)
    # Files must be one for each row; names that lack a class are not used.
    np.savez(
        tmp_path / "x.npz", features=X, labels=labels, label_names=classes[:2], files=files[1:]
    )
    assert "name each of the 7 rows; got 6" in _refused(tables.read_table, tmp_path / "x.npz", None)
    assert tables.read_labels(str(tmp_path / "x.npz"), None, len(X)).names == ("0", "1", "2")


TITLES = "id,width,height,depth"
NAMES = ["a", "b, with a comma", "c", "1d", "é", "f", "g"]


@every_row("titles", [False, True])
@every_row("named", [False, True])
@every_row("start", ["", "\n", "\ufeff"])
def test_csv(tmp_path, titles, named, start):
    lines = [",".join(map(repr, row.tolist())) for row in X]
    if named:
        lines = [f'"{name}",{line}' for name, line in zip(NAMES, lines, strict=True)]
    if titles:
        lines.insert(0, TITLES if named else TITLES[3:])
    (tmp_path / "x.csv").write_text(start + "\n".join(lines) + "\n\n", encoding="utf-8")
    table = tables.read_table(str(tmp_path / "x.csv"), None)
    np.testing.assert_array_equal(table.values, X)
    assert table.names == (tuple(NAMES) if named else None)


def test_small_csv(tmp_path):
    file = tmp_path / "x.csv"
    cases = {"1": [[1]], "1,2": [[1, 2]], "1\n2\r\n": [[1], [2]], "a,b\n1,2": [[1, 2]]}
    for text, values in cases.items():
        file.write_text(text)
        np.testing.assert_array_equal(tables.read_table(str(file), None).values, values)


@every_row(
    ("text", "message"),
    [
        ("", "must not be empty"),
        ("\n\n", "must not be empty"),
        ("1|2\n3|4", "columns of numbers, separated by commas; got none"),
        ("1,2\n3,x\n", "line 2, column 2 must be a number; got 'x'"),
        ("a,b\n1,2\n3,\n", "line 3, column 2 must be a number; got ''"),
        ("n,a\nr1,2\n\nr2,1 000\n", "line 4, column 2 must be a number; got '1 000'"),
        ("1,2\n3,4\n5,6,7\n", "line 3 must have 2 columns like line 2; got 3"),
        ("1,2\n3,4\n5\n", "line 3 must have 2 columns like line 2; got 1"),
        ("1,2\n3\n", "line 1 must have 1 column like line 2; got 2"),
        ("1,2\n3,4\0\n", "line 2"),
    ],
)
def test_csv_that_is_refused(tmp_path, text, message):
    (tmp_path / "x.csv").write_text(text)
    assert message in _refused(tables.read_table, tmp_path / "x.csv", None)


PANDAS = {
    ",0,1\n0,.5,1.5\n1,2.5,3.5\n": ([[0.5, 1.5], [2.5, 3.5]], ("0", "1")),
    ",0,1\n0,5,1\n1,2,3\n": ([[5, 1], [2, 3]], ("0", "1")),
    ",a,b\nx,.5,1.5\n": ([[0.5, 1.5]], ("x",)),
    ",a,b\n7,.5,1.5\n": ([[0.5, 1.5]], ("7",)),
    "0,1\n.5,1.5\n2,3\n": ([[0.5, 1.5], [2, 3]], None),
    "0,1,2\n5,6,7\n": ([[5, 6, 7]], None),
    "0\n.5\n": ([[0.5]], None),
    "id,0,1\nx,.5,1.5\n": ([[0.5, 1.5]], ("x",)),
    # Names that are numbers, and names of which some are.
    "ID,a,b\n7,.5,1.5\n": ([[0.5, 1.5]], ("7",)),
    "name,a\nx,1\n7,2\n": ([[1], [2]], ("x", "7")),
    "size,a\n7,2\n": ([[7, 2]], None),
    # No titles: in no order, or with decimals.
    "1,0\n.5,1.5\n": ([[1, 0], [0.5, 1.5]], None),
    "0.0,1.0\n.5,1.5\n": ([[0, 1], [0.5, 1.5]], None),
}


@every_row("text", PANDAS)
def test_csv_of_pandas(tmp_path, text):
    (tmp_path / "x.csv").write_text(text)
    table = tables.read_table(str(tmp_path / "x.csv"), None)
    values, names = PANDAS[text]
    np.testing.assert_array_equal(table.values, values)
    assert table.names == names


@every_row(
    ("text", "message"),
    [
        ("1.0,2x\n3,4\n", "line 1, column 2 must be a number; got '2x'"),
        ("\na,1.0,2x\nb,3,4\n", "line 2, column 3 must be a number; got '2x'"),
        ("1x,2\n3,4\n", "line 1, column 1 must be a number; got '1x'"),
        ("1,2\n3x,4\n5,6\n", "line 2, column 1 must be a number; got '3x'"),
        ("a,b\n3x,4\n5,6\n", "line 2, column 1 must be a number; got '3x'"),
        ("a,b\n,4\n5,6\n", "line 2, column 1 must be a number; got ''"),
        (",2.5\n1,2\n", "line 1, column 1 must not be empty"),
        ("0,1\n1,0\n", "line 1 must be column titles or a row of numbers; got '0,1', which"),
        ("0\n5\n9\n", "line 1 must be column titles or a row of numbers; got '0'"),
    ],
)
def test_first_lines_that_are_refused(tmp_path, text, message):
    (tmp_path / "x.csv").write_text(text)
    assert message in _refused(tables.read_table, tmp_path / "x.csv", None)


def test_names_of_several_rows(tmp_path):
    (tmp_path / "x.csv").write_text("name,a\nx,1\ny,2\nx,3\n")
    with pytest.warns(UserWarning, match=r"x.csv gives the name 'x' to several rows"):
        assert tables.read_table(str(tmp_path / "x.csv"), None).names == ("x", "y", "x")


def test_archives_with_other_files_or_damage(tmp_path):
    file = tmp_path / "x.npz"
    np.savez_compressed(file, x=X)
    whole = file.read_bytes()
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("readme.txt", "what this is")
    np.testing.assert_array_equal(tables.read_table(str(file), None).values, X)
    assert "must hold an array 'readme.txt'; got x" in _refused(
        tables.read_table, file, "readme.txt"
    )
    with zipfile.ZipFile(tmp_path / "fake.npz", "w") as archive:
        archive.writestr("x.npy", "no array")
    assert "'x' of" in _refused(tables.read_table, tmp_path / "fake.npz", None)
    # The flag of encryption, a method that no one knows, damaged content: local and central header.
    central = whole.index(b"PK\x01\x02")
    for change in ({6: 1, central + 8: 1}, {8: 77, central + 10: 77}, {70: 255, 71: 255, 72: 255}):
        damaged = bytearray(whole)
        for place, value in change.items():
            damaged[place] = value
        file.write_bytes(damaged)
        assert "x.npz must be a readable file; got an error: " in _refused(
            tables.read_table, file, None
        )


def test_what_is_no_vectors(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("it was unpickled",))

    np.save(tmp_path / "pickled.npy", np.array([Bomb()], object), allow_pickle=True)
    np.savez(tmp_path / "pickled.npz", x=np.array([Bomb()], object))
    (tmp_path / "text.npy").write_text("not an array")
    (tmp_path / "text.npz").write_text("not an archive")
    np.save(tmp_path / "cut.npy", X)
    whole = (tmp_path / "cut.npy").read_bytes()
    (tmp_path / "cut.npy").write_bytes(whole[:-9])
    (tmp_path / "empty.npy").write_bytes(b"")
    np.save(tmp_path / "words.npy", np.array([["a", "b"]]))
    np.save(tmp_path / "complex.npy", X + 1j)
    (tmp_path / "x.xlsx").touch()
    (tmp_path / "folder.npy").mkdir()
    for name, message in {
        "pickled.npy": "got pickled objects, which are never loaded",
        "pickled.npz": "got pickled objects, which are never loaded",
        "text.npy": "must hold plain arrays of NumPy; got other content",
        "text.npz": "must hold plain arrays of NumPy; got other content",
        "cut.npy": "must be a readable file",
        "empty.npy": "must not be empty; got 0 bytes: write or copy it again",
        "words.npy": "must hold real numbers; got <U1",
        "complex.npy": "must hold real numbers; got complex128",
        "x.xlsx": r"must be a file of type .npy, .npz, .csv",
        "folder.npy": "must be a folder of .npy files; got none in it",
        "missing.npy": "must be an existing file",
    }.items():
        assert re.search(message, _refused(tables.read_table, tmp_path / name, None)), name


@every_row("suffix", [".npy", ".npz", ".csv", ".txt"])
@every_row(
    ("values", "names"),
    [
        ([10, 9, -1, 10, 9, 9, 10], ("-1", "9", "10")),
        (["cat", "ant", "cat", "dog", "ant", "cat", "dog"], ("ant", "cat", "dog")),
        (["1", "b", "1", "b", "1", "b", "1"], ("1", "b")),
    ],
)
def test_labels(tmp_path, suffix, values, names):
    file = tmp_path / f"y{suffix}"
    if suffix == ".npy":
        np.save(file, values)
    elif suffix == ".npz":
        np.savez(file, y=values)
    else:
        file.write_text("\n".join(map(str, values)) + "\n\n")
    found = tables.read_labels(str(file), None, 7)
    assert found.names == names
    assert found.codes.dtype == np.int32
    assert [found.names[code] for code in found.codes] == list(map(str, values))


def test_labels_with_a_title_or_with_commas(tmp_path):
    (tmp_path / "y.csv").write_text("kind\n1\n0\n1\n")
    found = tables.read_labels(str(tmp_path / "y.csv"), None, 3)
    assert (found.names, found.codes.tolist()) == (("0", "1"), [1, 0, 1])
    (tmp_path / "y.txt").write_text("a, b\nc\na, b\n")
    assert tables.read_labels(str(tmp_path / "y.txt"), None, 3).names == ("a, b", "c")


def test_labels_that_are_refused(tmp_path):
    np.save(tmp_path / "float.npy", np.ones(7))
    np.save(tmp_path / "square.npy", np.ones((7, 1), int))
    np.save(tmp_path / "short.npy", np.ones(6, int))
    np.save(tmp_path / "pickled.npy", np.array(["a", 1], object), allow_pickle=True)
    np.savez(tmp_path / "two.npz", a=[1], b=[2])
    (tmp_path / "wide.csv").write_text("a,1\nb,2\n")
    (tmp_path / "long.txt").write_text("1\n" * 8)
    (tmp_path / "gap.csv").write_text("kind\n1\n2\n3\n\n5\n6\n7\n")
    (tmp_path / "quoted.csv").write_text('1\n2\n3\n""\n5\n6\n7\n')
    (tmp_path / "gap.txt").write_text("1\n \n3\n4\n5\n6\n7\n")
    (tmp_path / "late.csv").write_text("kind\n" + "1\n" * 6 + "\n")
    for name, message in {
        "float.npy": "one integer or string per row; got float64 of shape (7,)",
        "square.npy": "got int64 of shape (7, 1)",
        "short.npy": "must have the same length; got 7 and 6",
        "long.txt": "must have the same length; got 7 and 8",
        "gap.csv": "gap.csv, line 5 must be a label; got a blank line",
        "quoted.csv": "line 4 must be a label; got a blank line",
        "gap.txt": "line 2 must be a label; got a blank line",
        "late.csv": "must hold 7 labels; got 6 below the title 'kind'",
        "pickled.npy": "never loaded",
        "two.npz": "must hold an array 'labels' or 'y'; got a, b",
        "wide.csv": "must have one column, the labels; got 2 in row 1",
        "y.json": ".npy, .npz, .csv, .txt",
        "missing.txt": "must be an existing file",
    }.items():
        assert message in _refused(tables.read_labels, tmp_path / name, None, 7), name


@every_row(
    ("name", "content"),
    [
        ("x.tsv", b"a\tb\n1.5\t2\n-3\t4e2\n"),
        ("x.tsv", b"a\tb\n1,5\t2\n-3\t4e2\n"),
        ("x.csv", b"a;b\n1,5;2\n-3;4e2\n"),
        ("x.csv", "a,b\n1.5,2\n-3,4e2\n".encode("utf-16")),
        ("x.csv", "a;b\n1,5;2\n-3;4e2\n".encode("utf-16")),
        ("x.csv", b"\xef\xbb\xbfa,b\n1.5,2\n-3,4e2\n"),
    ],
)
def test_tables_of_other_programs(tmp_path, name, content):
    """Tabs, decimal commas, and the encodings of spreadsheets."""
    (tmp_path / name).write_bytes(content)
    values = tables.read_table(str(tmp_path / name), None).values
    np.testing.assert_array_equal(values, [[1.5, 2], [-3, 400]])


def test_what_only_python_reads_as_a_number_is_a_name(tmp_path):
    (tmp_path / "x.csv").write_text("tile,f0,f1\n0_0,1.5,2\n0_1,2.5,3\n1_0,3.5,1\n")
    found = tables.read_table(str(tmp_path / "x.csv"), None)
    assert found.names == ("0_0", "0_1", "1_0")
    assert found.values.tolist() == [[1.5, 2], [2.5, 3], [3.5, 1]]
    (tmp_path / "x.csv").write_text("a,b\n1.5,2\n2.5,1_0\n")
    with pytest.raises(InputError, match=r"line 3, column 2 must be a number; got '1_0'"):
        tables.read_table(str(tmp_path / "x.csv"), None)
    for lines in ("1_0\n10\n1_1\n", "01\n1\n10\n", "+1\n1\n10\n"):
        (tmp_path / "y.txt").write_text(lines)
        found = tables.read_labels(str(tmp_path / "y.txt"), None, 3)
        assert set(found.names) == set(lines.split())
        assert len(set(found.codes.tolist())) == 3


def test_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "x.csv").write_text("a,b\n1,2\n3,4\n")
    (tmp_path / "y.txt").write_text("a\nb\n")
    (tmp_path / "shards").mkdir()
    np.save(tmp_path / "shards" / "0.npy", np.ones((2, 3), np.float32))
    assert tables.read_table("~/x.csv", None).values.shape == (2, 2)
    assert tables.read_table("~/shards", None).values.shape == (2, 3)
    assert tables.read_labels("~/y.txt", None, 2).names == ("a", "b")
    monkeypatch.setattr(tables, "LARGE", 5)
    assert tables.open_large("~/shards").shape == (2, 3)


def test_one_integer_too_many_is_no_title(tmp_path):
    file = tmp_path / "y.csv"
    file.write_text("1\n2\n3\n")
    with pytest.raises(InputError, match="the same length; got 2 and 3"):
        tables.read_labels(str(file), None, 2)
    file.write_text("0\n2\n3\n")  # as pandas writes a table without titles
    assert tables.read_labels(str(file), None, 2).names == ("2", "3")


IDS = {
    "by title": ("a,user_id,b", lambda i: f"{i % 3},{1000 - 7 * i},{i % 4}"),
    "in order": ("a,serial,b", lambda i: f"{i % 3},{17 + 2 * i},{i % 4}"),
    "beside text": ("a,UUID,city,b", lambda i: f"{i % 3},{50 - i},town {i},{i % 4}"),
}


@every_row("kind", IDS)
def test_ids_are_no_features(tmp_path, kind):
    """As a column of features, they would outweigh all others."""
    title, line = IDS[kind]
    (tmp_path / "x.csv").write_text("\n".join([title, *map(line, range(12))]))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        table = tables.read_table(str(tmp_path / "x.csv"), None)
    assert any("identifies rows, " in str(said.message) for said in told)
    expected = np.array([[i % 3, i % 4] for i in range(12)])
    np.testing.assert_array_equal(table.values, expected)
    place = next(i for i, t in enumerate(title.split(",")) if t in ("user_id", "serial", "UUID"))
    assert table.names == tuple(line(i).split(",")[place] for i in range(12))


@pytest.mark.filterwarnings("default:.*key2 identifies rows")
@pytest.mark.parametrize("title", ["user_id", "key2"])
def test_ids_keep_their_digits(tmp_path, title):
    names = tuple(f"00{10**17 + i}" for i in range(12))
    lines = [f"{i}.5,{name},{-i}" for i, name in enumerate(names)]
    (tmp_path / "x.csv").write_text("\n".join([f"a,{title},b", *lines]))
    table = tables.read_table(str(tmp_path / "x.csv"), None, title)
    assert table.names == names
    np.testing.assert_array_equal(table.values, [[i + 0.5, -i] for i in range(12)])


def test_a_text_that_is_missing_in_the_first_row(tmp_path):
    (tmp_path / "x.csv").write_text("a,note,b\n1,,2\n3,-,4\n5,good,1\n")
    with pytest.warns(UserWarning, match="note is text, which describes rows, and no feature"):
        table = tables.read_table(str(tmp_path / "x.csv"), None)
    assert dict(table.metadata) == {"note": ["", "-", "good"]}
    np.testing.assert_array_equal(table.values, [[1, 2], [3, 4], [5, 1]])


def test_ids_of_a_parquet_are_no_features(tmp_path):
    rng = np.random.default_rng(0)
    columns = {"number": np.arange(20), "a": rng.normal(size=20), "b": rng.normal(size=20)}
    parquet.write_table(pa.table(columns), tmp_path / "x.parquet")
    with pytest.warns(UserWarning, match="number identifies rows, so it names the rows"):
        table = tables.read_table(str(tmp_path / "x.parquet"), None)
    np.testing.assert_allclose(table.values, np.stack([columns["a"], columns["b"]], axis=1))
    assert table.names == tuple(map(str, range(20)))


def test_names_come_before_numbers_that_count(tmp_path):
    lines = [f"photo {i}.jpg,{i},{i % 3}" for i in range(12)]
    (tmp_path / "x.csv").write_text("\n".join(["file,number,a", *lines]))
    with pytest.warns(UserWarning, match="number identifies rows, so it is left out"):
        table = tables.read_table(str(tmp_path / "x.csv"), None)
    assert table.names is not None
    assert table.names[1] == "photo 1.jpg"
    assert table.values.shape == (12, 1)


def test_few_numbers_in_order_are_a_feature(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,5\n2,4\n3,9\n")
    assert tables.read_table(str(tmp_path / "x.csv"), None).values.shape == (3, 2)


def test_text_beside_numbers_is_left_out(tmp_path):
    (tmp_path / "x.csv").write_text("a,note,b\n1,fine,2\n3,,4\n5,7,1\n")
    with pytest.warns(UserWarning, match="note is text, which describes rows, and no feature"):
        table = tables.read_table(str(tmp_path / "x.csv"), None)
    np.testing.assert_array_equal(table.values, [[1, 2], [3, 4], [5, 1]])


@every_row("missing", ["", "n/a", "null", "-"])
def test_a_missing_number_is_no_text(tmp_path, missing):
    (tmp_path / "x.csv").write_text(f"a,b\n1,{missing}\n3,4\n")
    with pytest.raises(InputError, match="column 2 must be a number"):
        tables.read_table(str(tmp_path / "x.csv"), None)
