"""Corrections of a report: applied to the table, one sentence for every bad row, nothing lost."""

import csv
import io
import json

import numpy as np
import pytest

from cluster_jax.cli import cluster
from cluster_jax.cli import report as command
from cluster_jax.core import io as files_io
from cluster_jax.core.checks import InputError
from cluster_jax.evaluation import assignments, corrections, report
from cluster_jax.evaluation.assignments import Table

NAMES = ("a.png", 'b, "b".png', "caf\\xe9\\\\.png", "d.png")
TITLES = "image,cluster,correction,to"


def images(clusters=("0", "4", "4", "0"), **columns):
    columns = {"image": NAMES, "cluster": clusters, "distance": ["1.5"] * 4, **columns}
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    return Table(tuple(columns), rows, "image", "class" if "class" in columns else "cluster")


def saved(folder, *rows, titles=TITLES, name="corrections.csv"):
    """A file of corrections."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([titles.split(","), *rows])
    (folder / name).write_text(text.getvalue())
    return folder / name


def lines(corrected):
    return list(csv.DictReader(corrected.csv.splitlines()))


def test_moved_and_lost_images(tmp_path):
    table = images(outlier=["0", "1", "1", "0"], map_x=["1", "2", "3", "4"])
    file = saved(tmp_path, (NAMES[2], "4", "move", "0"), (NAMES[1], "4", "wrong", ""))
    found = corrections.apply(table, [file])
    assert found.labels.tolist() == [0, -1, 0, 0]
    assert found.rows.tolist() == [0, 1, 2, 3]
    assert found.summary == "1 moved, 1 in no cluster (-1)"
    rows = lines(found)
    assert [row["image"] for row in rows] == list(NAMES), "escaped as before"
    assert [row["cluster"] for row in rows] == ["0", "-1", "0", "0"]
    assert [row["corrected"] for row in rows] == ["0", "1", "1", "0"]
    assert [row["distance"] for row in rows] == ["1.5", "", "", "1.5"], "of the old cluster"
    assert [row["outlier"] for row in rows] == ["0", "", "", "0"]
    assert [row["map_x"] for row in rows] == ["1", "2", "3", "4"]
    assert table == images(outlier=["0", "1", "1", "0"], map_x=["1", "2", "3", "4"])


def test_outliers_of_the_run_stay_outliers_unless_they_are_moved(tmp_path):
    """Else small clusters would count as clusters in the headline of the corrected report."""
    table = images(outlier=["0", "1", "1", "0"], map_x=["1", "2", "3", "4"])
    found = corrections.apply(table, [saved(tmp_path, (NAMES[2], "4", "move", "0"))])
    data = corrections.report_data(table, found, {"metrics": {"tree": {}}, "provenance": {}}, "run")
    assert data.clustering.outliers.tolist() == [False, True, False, False]


def test_images_in_no_cluster_are_no_cluster_and_errors(tmp_path):
    table = images(map_x=["1", "2", "3", "4"])
    found = corrections.apply(table, [saved(tmp_path, ("d.png", "0", "wrong", ""))])
    results = {"metrics": {"tree": {}}, "provenance": {"number_of_clusters": {"tree": "found"}}}
    labels = np.array([5, 6, 6, 5])
    data = corrections.report_data(table, found, results, "run", true_labels=labels)
    scores = data.results["metrics"]["tree"]
    assert scores["n_clusters"] == 2
    assert scores["acc"] == 0.75
    assert scores["matching"] == {0: 5, 4: 6}
    assert results["provenance"]["number_of_clusters"] == {"tree": "found"}
    files = [saved(tmp_path, *((n, c, "wrong", "") for n, c in zip(NAMES, "0440", strict=True)))]
    found = corrections.apply(table, files)
    data = corrections.report_data(table, found, results, "run", true_labels=labels)
    assert data.results["metrics"]["tree"]["acc"] is None


def test_later_corrections_follow_earlier_ones(tmp_path):
    first = saved(tmp_path, ("a.png", "0", "wrong", ""), ("d.png", "0", "move", "4"))
    second = saved(tmp_path, ("a.png", "-1", "move", "4"), ("d.png", "4", "move", "0"), name="2")
    found = corrections.apply(images(), [first, second])
    assert found.labels.tolist() == [4, 4, 4, 0]
    assert found.summary == "1 moved, 0 in no cluster (-1)", "the other one moved back"
    assert [row["corrected"] for row in lines(found)] == ["1", "0", "0", "0"]
    with pytest.raises(InputError, match=r"line 2 of .*'a.png' is in, 0; got '-1': it was saved"):
        corrections.apply(images(), [second, first])


def test_names_of_clusters(tmp_path):
    first = saved(tmp_path, ("", "4", "name", "cat"), ("a.png", "0", "move", "4"))
    second = saved(tmp_path, ("", "4", "name", "dog\\\\"), name="second.csv")
    found = corrections.apply(images(), [first, second])
    assert found.names == {"4": "dog\\"}, "the later name"
    assert found.summary == "1 moved, 0 in no cluster (-1), 1 named"
    rows = lines(found)
    assert [row["cluster_name"] for row in rows] == ["dog\\\\"] * 3 + [""]
    assert [row["corrected"] for row in rows] == ["1", "0", "0", "0"]
    assert "cluster_name" not in corrections.apply(images(), [saved(tmp_path)]).csv
    # Where `predict` looks for them
    assert assignments.given_names(tmp_path) == {}
    (tmp_path / "corrected").mkdir()
    (tmp_path / "corrected" / "assignments.csv").write_text(found.csv)
    for clusters, names in (("0440", {"4": "dog\\"}), ("0441", {}), ("044", {})):
        cells = {"image": map(assignments.unescaped, NAMES), "cluster": clusters}
        cells = {title: list(column)[: len(clusters)] for title, column in cells.items()}
        (tmp_path / "assignments.csv").write_text(assignments.to_csv(cells))
        if names:
            assert assignments.given_names(tmp_path) == names
        else:  # It was clustered again.
            with pytest.warns(UserWarning, match="corrects other clusters than those of"):
                assert assignments.given_names(tmp_path) == {}
    table = images(("", "7", "7", "8"), **{"class": ["2", "novel 0", "novel 2", "novel 2"]})
    found = corrections.apply(table, [saved(tmp_path, ("", "2", "name", "cat"))])
    assert [row["cluster_name"] for row in lines(found)] == ["", "", "cat", "cat"]


def test_novel_classes(tmp_path):
    """Clusters of the report are the novel classes of the unlabeled images, by number."""
    table = images(("", "7", "7", "8"), **{"class": ["cat", "novel 0", "novel 2", "novel 2"]})
    file = saved(tmp_path, ("d.png", "2", "move", "0"), (NAMES[1], "0", "wrong", ""))
    found = corrections.apply(table, [file])
    assert (found.rows.tolist(), found.labels.tolist()) == ([1, 2, 3], [-1, 2, 0])
    assert [row["class"] for row in lines(found)] == ["cat", "-1", "novel 2", "novel 0"]
    assert [row["cluster"] for row in lines(found)] == ["", "7", "7", "8"], "found without classes"
    with pytest.raises(InputError, match="must name one image or row of the run; got 'a"):
        corrections.apply(table, [saved(tmp_path, ("a.png", "0", "wrong", ""))])
    # Images without names are numbered among those that the report shows.
    table = images(("", "7", "7", "8"), image=list("0123"), **{"class": ["cat", *["novel 1"] * 3]})
    found = corrections.apply(table, [saved(tmp_path, ("0", "1", "wrong", ""), titles=TITLES)])
    assert found.labels.tolist() == [-1, 1, 1]
    assert [row["corrected"] for row in lines(found)] == ["0", "1", "0", "0"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("e.png", "0", "wrong", ""), "line 3 .* must name one image or row of the run; got 'e"),
        (("a.png", "4", "wrong", ""), "line 3 .* cluster that 'a.png' is in, 0; got '4'"),
        (("a.png", "0", "move", "9"), "'move' and a cluster of the run; got 'move' and '9'"),
        (("a.png", "0", "move", ""), "line 3 .* got 'move' and ''"),
        (("a.png", "0", "wrong", "4"), "line 3 .* got 'wrong' and '4'"),
        (("a.png", "0", "delete", ""), "line 3 .* must say 'wrong', 'name', or .* got 'delete'"),
        (("", "9", "name", "cat"), "line 3 .* give no image, a cluster, and a name; got '', '9' a"),
        (("", "4", "name", ""), "line 3 .* a cluster, and a name; got '', '4' and ''"),
        (("a.png", "0", "name", "cat"), "line 3 .* give no image, .* got 'a.png', '0' and 'cat'"),
        (("a.png",), "line 3 .* is in, 0; got None"),
    ],
)  # fmt: skip
def test_bad_rows(tmp_path, row, message):
    file = saved(tmp_path, (NAMES[1], "4", "wrong", ""), row)
    with pytest.raises(InputError, match=message) as error:
        corrections.apply(images(), [file])
    assert "\n" not in str(error.value)


def test_a_name_of_several_rows_is_not_corrected(tmp_path):
    table = images(image=["x", "y", "x", "z"])
    file = saved(tmp_path, ("x", table.rows[0]["cluster"], "wrong", ""))
    with pytest.raises(InputError, match=r"must name one image .* got 'x', which several have"):
        corrections.apply(table, [file])


@pytest.mark.parametrize("titles", ["image,cluster", "file,cluster,correction,to", "x"])
def test_bad_columns(tmp_path, titles):
    message = "must have the columns image, cluster, correction, to, as a report saves them; got "
    with pytest.raises(InputError, match=message + titles.replace(",", ", ")):
        corrections.apply(images(), [saved(tmp_path, titles=titles)])
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(InputError, match="got none"):
        corrections.apply(images(), [tmp_path / "empty.csv"])


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A folder of the command `cluster`, of 60 named rows in three clusters."""
    folder = tmp_path_factory.mktemp("rows")
    rng = np.random.default_rng(0)
    x = np.eye(3)[np.repeat([0, 1, 2], 20)] * 9 + rng.normal(size=(60, 3))
    columns = {"name": [f"r\\{i}" for i in range(60)], **dict(zip("abc", x.T, strict=True))}
    (folder / "x.csv").write_text(assignments.to_csv(columns))
    cluster.main([f"--features={folder / 'x.csv'}", f"--workdir={folder / 'run'}"])
    return folder / "run"


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_command(workdir, tmp_path, capsys):
    before = files(workdir)
    rows = list(csv.DictReader((workdir / "assignments.csv").read_text().splitlines()))
    other = next(row["cluster"] for row in rows if row["cluster"] != rows[0]["cluster"])
    changes = [(rows[0]["row"], rows[0]["cluster"], "move", other)]
    changes += [(rows[-1]["row"], rows[-1]["cluster"], "wrong", "")]
    file = saved(tmp_path, *changes, titles="row,cluster,correction,to")
    capsys.readouterr()
    command.main([str(workdir), f"--corrections={file}", f"--out={tmp_path / 'out'}"])
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "corrected    1 moved, 1 in no cluster (-1)",
        f"assignments  {tmp_path / 'out' / 'assignments.csv'}",
        f"report       {tmp_path / 'out' / 'report.html'}",
    ]
    after = list(csv.DictReader((tmp_path / "out" / "assignments.csv").read_text().splitlines()))
    assert [row["row"] for row in after] == [row["row"] for row in rows]
    assert [after[0]["cluster"], after[-1]["cluster"]] == [other, "-1"]
    assert after[1:-1] == [{**row, "corrected": "0"} for row in rows[1:-1]]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "run, corrected: 1 moved, 1 in no cluster (-1)" in page
    assert "A person has corrected the clusters" in page
    assert files(workdir) == before, "the original is as it was"
    with pytest.raises(SystemExit):
        command.main([str(workdir), f"--corrections={file}", f"--out={tmp_path / 'out'}"])
    assert "must be new or empty" in capsys.readouterr().err
    # The comparison shows what was corrected.
    command.main([str(workdir), str(tmp_path / "out")])
    assert "2 moved (3.3%)" in capsys.readouterr().out


def test_an_interrupted_correction_can_be_made_again(workdir, tmp_path, capsys, monkeypatch):
    given = f"--corrections={saved(tmp_path, titles='row,cluster,correction,to', name='none')}"
    arguments = [str(workdir), given, f"--out={tmp_path / 'out'}"]

    def interrupted(data):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(report, "render", interrupted)
        with pytest.raises(SystemExit):
            command.main(arguments)
    command.main(arguments)
    assert (tmp_path / "out" / "report.html").exists()
    capsys.readouterr()
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert "error: --out must be new or empty; got" in capsys.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("no space left")])
def test_what_was_written_before_an_interrupt_is_removed(
    workdir, tmp_path, capsys, monkeypatch, error
):
    given = f"--corrections={saved(tmp_path, titles='row,cluster,correction,to', name='none')}"
    arguments = [str(workdir), given, f"--out={tmp_path / 'out'}"]
    write = files_io.write

    def failing(path, data):
        if path.name == "report.html":
            raise error
        write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(files_io, "write", failing)
        with pytest.raises(SystemExit):
            command.main(arguments)
    assert not [*(tmp_path / "out").iterdir()]
    command.main(arguments)
    capsys.readouterr()


def test_what_the_command_refuses(workdir, tmp_path, capsys):
    before = files(workdir)
    file = saved(tmp_path, ("other", "0", "wrong", ""), titles="row,cluster,correction,to")
    (tmp_path / "no").mkdir()
    (tmp_path / "unfinished").mkdir()
    for name in ("assignments.csv", "config.json"):
        (tmp_path / "unfinished" / name).write_bytes(before[workdir / name])
    given = f"--corrections={saved(tmp_path, titles='row,cluster,correction,to', name='none')}"
    cases = (
        ([str(workdir), f"--corrections={file}"], "must name one image or row of the run"),
        ([str(workdir), f"--corrections={tmp_path / 'nowhere.csv'}"], "nowhere.csv"),
        (
            [str(workdir)],
            f"or one and --corrections; got {workdir} alone (its report is ",
        ),
        ([str(workdir), str(workdir), given], "got two with corrections"),
        ([str(tmp_path / "no"), given], "must be workdirs of finished runs"),
        ([str(tmp_path / "unfinished"), given], "must be finished to be corrected"),
    )
    for arguments, message in cases:
        with pytest.raises(SystemExit) as stop:
            command.main(arguments)
        assert stop.value.code == 2
        said = capsys.readouterr().err
        assert message in said
        assert len(said.splitlines()) == 1
    assert files(workdir) == before
    assert json.loads(before[workdir / "results.json"])
