"""Which row is which: --ids, --metadata, columns of text, and pictures of rows."""

import csv
import io
import json

import numpy as np
import pytest
from PIL import Image

from cluster_jax.cli import cluster, predict, report, update
from cluster_jax.core.checks import InputError
from cluster_jax.data import metadata, tables
from tests.report.test_report import Page
from tests.rows import every_row

pytestmark = pytest.mark.filterwarnings("default:.*genre is text")


def _csv(path, titles, rows):
    path.write_text("\n".join([",".join(titles), *(",".join(map(str, row)) for row in rows)]))
    return str(path)


def test_a_column_of_ids(tmp_path):
    rows = [(0.5, 1.5, "r1", "jazz", 7), (2.5, 3.5, "r2", "soul", 9)]
    file = _csv(tmp_path / "x.csv", ["a", "b", "key2", "genre", "number"], rows)
    with pytest.warns(UserWarning, match="key2, genre is text, which describes rows"):
        table = tables.read_table(file, None, "key2")
    assert (table.values.tolist(), table.names) == ([[0.5, 1.5, 7], [2.5, 3.5, 9]], ("r1", "r2"))
    assert dict(table.metadata) == {"genre": ["jazz", "soul"]}
    with pytest.warns(UserWarning, match="is text"):
        table = tables.read_table(file, None, "number")
    assert (table.values.tolist(), table.names) == ([[0.5, 1.5], [2.5, 3.5]], ("7", "9"))
    file = _csv(tmp_path / "y.csv", ["a", "b"], [row[:2] for row in rows])
    with pytest.raises(InputError, match=r"^--ids must be a column of .*, a, b; got c$"):
        tables.read_table(file, None, "c")


def test_ids_that_repeat(tmp_path):
    file = _csv(tmp_path / "x.csv", ["key2", "a"], [("r1", 1.5), ("r1", 2.5)])
    with pytest.raises(InputError, match="--ids must be distinct values; got 'r1' in several"):
        tables.read_table(file, None, "key2")


def test_an_id_is_nearer_to_a_name_than_the_first_text(tmp_path):
    rows = [("jazz", f"t{i}", i + 0.5) for i in range(3)]
    file = _csv(tmp_path / "x.csv", ["genre", "track_id", "a"], rows)
    with pytest.warns(UserWarning, match="is text"):
        table = tables.read_table(file, None)
    assert table.names == ("t0", "t1", "t2")
    assert dict(table.metadata) == {"genre": ["jazz"] * 3}


@every_row("key", ["names", "ids", "mine"])
def test_names_in_an_npz(tmp_path, key):
    np.savez(tmp_path / "x.npz", x=np.eye(3), **{key: np.array(["a", "b", "c"])})
    ids = key if key == "mine" else None
    assert tables.read_table(str(tmp_path / "x.npz"), None, ids).names == ("a", "b", "c")
    with pytest.raises(InputError, match=r"--ids must be an array of .*x\.npz; got z$"):
        tables.read_table(str(tmp_path / "x.npz"), "x", "z")


def test_what_stands_beside_vectors(tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"e": [[1.0, 2.0], [3.0, 4.0]], "year": [1999, 2001], "id": [5, 6], "t": ["x", "y"]}
    parquet.write_table(pa.table(columns), tmp_path / "x.parquet")
    table = tables.read_table(str(tmp_path / "x.parquet"), None)
    assert table.names == ("5", "6")
    assert dict(table.metadata) == {"year": ["1999", "2001"], "t": ["x", "y"]}
    _csv(tmp_path / "x.csv", ["e", "year", "id"], [('"[1, 2]"', 1999, 5), ('"[3, 4]"', 2001, 6)])
    table = tables.read_table(str(tmp_path / "x.csv"), None)
    assert (table.names, dict(table.metadata)) == (("5", "6"), {"year": ["1999", "2001"]})


def joined(file, names, count, found=None):
    """Metadata of another file, in place of those that were found."""
    read = metadata.read(file, names, count, range(count))
    return dict(metadata.updated(found or {}, *read))


def test_another_file_joined_by_id(tmp_path):
    file = _csv(tmp_path / "m.csv", ["year", "id"], [(2001, "b"), (1999, "a"), (2009, "z")])
    with pytest.warns(UserWarning, match="describes 2 of 3 rows, and has ids of 1 other row$"):
        assert joined(file, ("a", "b", "c"), 3) == {"year": ["1999", "2001", ""]}
    with pytest.raises(InputError, match=r"must have the ids of rows in its column 'id', such as "):
        joined(file, ("p", "q"), 2)
    numbered = _csv(tmp_path / "n.csv", ["id", "year"], [(1, 2001), (0, 1999)])
    assert joined(numbered, None, 2) == {"year": ["1999", "2001"]}
    twice = _csv(tmp_path / "t.csv", ["id", "year"], [("a", 1), ("a", 2)])
    with pytest.raises(InputError, match="must have each id once; got 'a' in several lines"):
        joined(twice, ("a", "b"), 2)
    clash = _csv(tmp_path / "c.csv", ["id", "cluster", "year"], [("a", 1, 2001)])
    with pytest.raises(InputError, match=r"columns that assignments.csv has; got cluster: rename"):
        joined(clash, ("a",), 1)
    (tmp_path / "short.csv").write_text("id,year\na\n")
    with pytest.raises(InputError, match="line 2 must have 2 columns like its titles; got 1"):
        joined(str(tmp_path / "short.csv"), ("a",), 1)


def test_the_file_counts_where_both_say_something(tmp_path):
    file = _csv(tmp_path / "m.csv", ["id", "genre", "year"], [("b", "", 2001)])
    with pytest.warns(UserWarning, match="describes 1 of 2 rows$"):
        found = joined(file, ("a", "b"), 2, {"genre": ["jazz", "soul"]})
    assert found == {"genre": ["jazz", ""], "year": ["", "2001"]}


def test_the_column_of_ids_is_that_which_names_most_rows(tmp_path):
    """An index that pandas writes, a picture and another id stand before it."""
    titles = ["", "image", "shop_id", " key2", "track_id "]
    rows = [(i, f"{i}.png", 7, f"k{i}", f"r{i}") for i in range(3)]
    file = _csv(tmp_path / "m.csv", titles, rows)
    expected = {"image": ["0.png", "1.png"], "shop_id": ["7", "7"], "key2": ["k0", "k1"]}
    with pytest.warns(UserWarning, match=r"m\.csv has ids of 1 other row$"):
        assert joined(file, ("r0", "r1"), 2) == expected
    file = _csv(tmp_path / "m.csv", ["title", "year"], [("a", 1999), ("b", 2001)])
    assert joined(file, ("b", "a"), 2) == {"year": ["2001", "1999"]}


def test_ids_that_a_library_has_written_as_floats(tmp_path):
    file = _csv(tmp_path / "m.csv", ["id", "year"], [("7.0", 1999), (" 12.0 ", 2001)])
    assert joined(file, ("12", "7"), 2) == {"year": ["2001", "1999"]}
    twice = _csv(tmp_path / "t.csv", ["id", "year"], [("7", 1), ("7.0", 2)])
    with pytest.raises(InputError, match="must have each id once; got '7' in several lines"):
        joined(twice, ("7",), 1)


@every_row(
    ("content", "said"),
    [
        (b"r0,1999\nr1,2001\n", r"must have a line of titles; got 'r0', the id of a row, in it"),
        (b"id\nr0\nr1\n", "must have columns beside that of ids; got 'id' alone"),
        (b"id,year, year\nr0,1,2\n", "must have a title for each column; got id, year,  year"),
        (b"id,year\n,1\n,2\nr0,3\n", "must have each id once; got '' in several lines of 'id'"),
        (b"id,year\n", "must have a line of titles and rows; got 1 line$"),
        (b"id,row,Year\nr0,1,2\n", "columns that assignments.csv has; got row: rename them"),
        (b"", "must not be empty; got 0 bytes: write or copy it again"),
    ],
)
def test_tables_of_metadata_that_are_refused(tmp_path, content, said):
    (tmp_path / "m.csv").write_bytes(content)
    with pytest.raises(InputError, match=rf"m\.csv {said}|m\.csv must not have {said}"):
        joined(str(tmp_path / "m.csv"), ("r0", "r1"), 2)


@every_row("encoding", ["utf-8-sig", "utf-16", "latin-1"])
def test_a_table_of_a_spreadsheet(tmp_path, encoding):
    """Semicolons, decimal commas, lines without content, another encoding."""
    text = "id;größe\r\nr0;3,5\r\nr1;a, b é\r\n;\r\n"
    (tmp_path / "m.csv").write_bytes(text.encode(encoding))
    title, cell = "größe", "a, b é"
    if encoding == "latin-1":
        title, cell = "gr\ufffd\ufffde", "a, b \udce9"
        with pytest.warns(UserWarning, match=r"must be in UTF-8; got the byte \\xf6, which stays"):
            found = joined(str(tmp_path / "m.csv"), ("r0", "r1"), 2)
    else:
        found = joined(str(tmp_path / "m.csv"), ("r0", "r1"), 2)
    assert found == {title: ["3,5", cell]}


def test_rows_without_names_are_numbered_from_0(tmp_path):
    file = _csv(tmp_path / "m.csv", ["id", "year"], [(1, 1999), (2, 2001)])
    said = "describes 1 of 2 rows, numbered from 0, and has ids of 1 other row$"
    with pytest.warns(UserWarning, match=said):
        assert joined(file, None, 2) == {"year": ["", "1999"]}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run with ids, text, metadata of another file, and pictures of most rows."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 4)) + 9 * np.eye(4)[np.arange(60) % 2]
    lines = [(f"r{i}", *row, "jazz" if i % 2 else "soul") for i, row in enumerate(rows.tolist())]
    _csv(tmp_path / "x.csv", ["track_id", *"abcd", "genre"], lines)
    (tmp_path / "shown").mkdir()
    for i in range(58):
        Image.new("RGB", (30, 20), (200 * (i % 2), 4 * i, 0)).save(tmp_path / f"shown/{i}.png")
    paths = [(f"r{i}", f"{i}.png", 1990 + i) for i in range(60)]
    _csv(tmp_path / "shown/m.csv", ["id", "picture", "year"], paths)
    cluster.main(["--features=x.csv", "--metadata=shown/m.csv", "--out=out"])
    return tmp_path / "out"


def test_metadata_in_the_table_and_on_the_page(run, capsys):
    text = (run / "assignments.csv").read_text().splitlines()
    assert text[0].endswith(",genre,picture,year")
    assert set(text[0].split(",")[:-3]) <= set(metadata.TAKEN)
    assert text[1].startswith("r0,")
    assert text[1].endswith(",soul,0.png,1990")
    page = Page((run / "report.html").read_text())
    more = dict(page.record["map"]["more"])
    assert sorted(more["year"]) == [str(1990 + i) for i in range(60)]
    assert page.record["map"]["sprite"] is not None, "pictures"
    assert page.record["words"] == {"point": "image", "cluster": "cluster"}
    report.main([str(run)])
    again = Page((run / "report.html").read_text())
    assert again.record["map"]["more"] == page.record["map"]["more"]
    assert again.record["map"]["sprite"] == page.record["map"]["sprite"]
    assert again.record["map"]["column"] == "row"


def test_long_texts_and_odd_characters_are_read_again(run, capsys):
    """A text may be longer than the limit of the `csv` module, which stays as it is."""
    text, limit = 'a "quoted",\r\nlong; text \u2028\u202e ' + "x" * 200_000, csv.field_size_limit()
    lines = [{"id": f"r{i}", "text\nof it": text if i == 1 else ""} for i in range(60)]
    (run.parent / "m.jsonl").write_text("\n".join(map(json.dumps, lines)))
    update.main(["--workdir=out", "--metadata=m.jsonl", "--quiet"])
    report.main(["out"])
    capsys.readouterr()
    update.main(["--workdir=out", "--metadata=m.jsonl"])
    assert "Nothing has happened" in capsys.readouterr().out
    assert csv.field_size_limit() == limit


def test_another_table_of_metadata_is_another_run(run, tmp_path, capsys):
    _csv(tmp_path / "o.csv", ["id", "year"], [(f"r{i}", i) for i in range(60)])
    with pytest.raises(SystemExit):
        cluster.main(["--features=x.csv", "--metadata=o.csv", "--out=out"])
    assert "contains a run with --metadata=shown/m.csv, not o.csv" in capsys.readouterr().err


def test_ids_and_metadata_of_new_rows(run):
    command = ["--workdir=out", "--features=x.csv", "--ids=track_id", "--out=p.csv"]
    predict.main([*command, "--metadata=shown/m.csv"])
    lines = (run.parent / "p.csv").read_text().splitlines()
    assert lines[0].endswith(",runner_up_probability,genre,picture,year")
    assert lines[2].startswith("r1,")
    assert lines[2].endswith(",jazz,1.png,1991")


def test_an_image_and_a_class_among_the_metadata(run, capsys):
    """Titles of the tables of images: here the row and the cluster come first."""
    rows = [(f"r{i}", f"{i}.png", "cat") for i in range(60)]
    _csv(run.parent / "shown/c.csv", ["id", "image", "class"], rows)
    cluster.main(["--features=x.csv", "--metadata=shown/c.csv", "--out=of_cats", "--reduce=pca"])
    report.main(["out", "of_cats"])
    assert "60 in both runs: 2 clusters before, 2 after, ARI 1.000" in capsys.readouterr().out


def test_pictures_of_urls(monkeypatch):
    asked = []

    def answer(url, timeout):
        asked.append(url)
        if "gone" in url:
            raise OSError("no route")
        stream = io.BytesIO()
        Image.new("RGB", (9, 9), (0, 0, 200)).save(stream, format="PNG")
        stream.seek(0)
        return stream

    monkeypatch.setattr(metadata.urllib.request, "urlopen", answer)
    pages = {"url": ["https://shop/item?1", "https://shop/item?2"]}
    assert metadata.pictures(pages, ["."], 8) is None
    assert asked == [], "these are no pictures"
    for title, cells in {
        "photo_url": ["https://x/1", "https://x/gone", ""],
        "a": ["https://x/1.png"],
    }.items():
        show = metadata.pictures({title: cells}, [".", "elsewhere"], 8)
        shown = show(np.arange(len(cells)))
        assert shown[0, 0, 0].tolist() == [0, 0, 200]
        assert (shown[1:] == 128).all()
    assert asked.count("https://x/gone") == 1, "not once a folder"
    with pytest.warns(UserWarning, match="no picture of the column photo is shown; got none from"):
        assert metadata.pictures({"photo": ["https://x/gone"]}, ["."], 8) is None
    assert metadata.pictures({"photo": ["no file", "b"], "year": ["1", "2"]}, ["."], 8) is None


def test_metadata_without_rows(tmp_path):
    for text in ("", '{"id": []}'):
        (tmp_path / "m.jsonl").write_text(text)
        with pytest.raises(InputError):
            joined(str(tmp_path / "m.jsonl"), ("a",), 1)
    parquet = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    parquet.write_table(pa.table({"id": pa.array([], pa.string())}), tmp_path / "m.parquet")
    with pytest.raises(InputError, match="must have a row for each id; got no rows"):
        joined(str(tmp_path / "m.parquet"), ("a",), 1)
