"""Decisions of a person: checked, joined, matched to another run, applied; nothing half-applied."""

import csv
import io
import re

import numpy as np
import pytest
from cluster_jax.report.decisions import Decisions

from cluster_jax.cli import cluster
from cluster_jax.cli import report as command
from cluster_jax.clustering.membership import Membership
from cluster_jax.core import io as files_io
from cluster_jax.core.checks import InputError
from cluster_jax.report import assignments, decisions
from cluster_jax.report.assignments import Table
from tests.rows import every_row

NAMES = tuple(f"{i}, é\\.png" for i in range(12))
LABELS = np.repeat([0, 4, 7], [5, 4, 3])


def clusters(names=NAMES, labels=LABELS, noun="image"):
    run = decisions.digest(names, labels)
    return decisions.Clusters(names, labels, np.arange(len(names)) / 10, noun, run)


def saved(folder, *rows, run=None, end=True, titles="image,cluster,correction,to", name="c.csv"):
    """A file of corrections, as a page saves it."""
    head = [] if run == "" else [("", "", "run", run or clusters().run)]
    rows = [*head, *rows, *([("", "", "end", "")] if end else [])]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([titles.split(","), *rows])
    (folder / name).write_text(text.getvalue())
    return folder / name


def at(i):
    return assignments.escaped(NAMES[i])


def test_moved_wrong_confirmed_merged_new_and_named(tmp_path):
    run = clusters()
    file = saved(
        tmp_path,
        ("", "8", "new", "cats"),
        ("", "7", "merge", "4"),
        ("", "4", "name", 'a / "b" 猫'),
        (at(0), "0", "move", "8"),
        (at(1), "0", "move", "7"),
        (at(2), "0", "wrong", ""),
        (at(5), "4", "move", "4"),
        (at(6), "4", "keep", ""),
    )
    decided = decisions.read(file, run, Decisions())
    assert decided.labels(run).tolist() == [8, 4, -1, 0, 0, 4, 4, 4, 4, 4, 4, 4]
    assert np.flatnonzero(decided.is_decided(run)).tolist() == [0, 1, 2, 5]
    assert decided.named == {8: "cats", 4: 'a / "b" 猫'}
    assert list(decided.kept) == [NAMES[6]]
    assert decided.next_cluster(run) == 9, "7 is not used again, and 8 is taken"
    assert decided.summary() == (
        "3 moved or confirmed, 1 in no cluster, 1 new, 1 merged, 2 named, 1 picked of their copies"
    )
    assert "1 in no group" in decided.summary("group")
    # The file of the run has the same decisions, and again the same bytes.
    text = decisions.to_csv(decided, run)
    (tmp_path / "decisions.csv").write_text("\ufeff" + text.replace("\n", "\r\n"), newline="")
    again = decisions.read_workdir(tmp_path, run)
    assert again == decided
    assert decisions.to_csv(again, run) == text, "also from a spreadsheet"


def test_later_decisions_override_earlier_ones(tmp_path):
    run = clusters()
    first = saved(tmp_path, (at(0), "0", "move", "4"), ("", "7", "merge", "4"), name="1")
    one = decisions.read(first, run, Decisions())
    second = saved(tmp_path, (at(0), "4", "move", "0"), ("", "4", "merge", "0"), name="2")
    two = decisions.join(one, decisions.read(second, run, one))
    assert one.labels(run).tolist() == [4, 0, 0, 0, 0, *[4] * 7]
    assert two.labels(run).tolist() == [0] * 12, "4 with all that was merged into it"
    assert decisions.join(two, decisions.read(second, run, two)) == two, "again changes nothing"
    named = Decisions(named={0: "cats", 4: "dogs"})
    assert decisions.join(named, two).named == {0: "cats"}, "the name of the receiving cluster"
    picked = decisions.join(Decisions(kept=("a", "b")), Decisions(kept=("a",)))
    assert picked.kept == ("b", "a"), "the last one last"
    back = saved(tmp_path, ("", "0", "merge", "4"), name="3")
    assert decisions.join(two, decisions.read(back, run, two)) == two, "they are one already"


def test_a_new_cluster_takes_a_free_number(tmp_path):
    run = clusters()
    first = saved(tmp_path, ("", "8", "new", "a"), (at(0), "0", "move", "8"), name="1")
    one = decisions.read(first, run, Decisions())
    assert decisions.join(one, decisions.read(first, run, one)) == one
    # The page of the first visit, still open in another window, makes another cluster 8.
    other = saved(tmp_path, ("", "8", "new", "b"), (at(1), "0", "move", "8"), name="2")
    two = decisions.join(one, decisions.read(other, run, one))
    assert two.labels(run)[:3].tolist() == [8, 9, 0]
    assert two.named == {8: "a", 9: "b"}


def test_a_new_cluster_of_a_huge_number_gets_a_free_one(tmp_path):
    huge = "9" * 20
    file = saved(tmp_path, ("", huge, "new", "a"), (at(1), "0", "move", huge))
    assert decisions.read(file, clusters(), Decisions()).labels(clusters())[1] == 8


def test_probabilities_after_decisions():
    run = clusters()
    found = Membership(
        LABELS, np.full(12, 0.6), np.array([4, 7, -1, 4, 4, 7, 7, 0, 0, 4, 4, 0]), np.full(12, 0.3)
    )
    decided = Decisions({NAMES[0]: 0, NAMES[7]: 7}, {7: 4}, {}, frozenset())
    now = decisions.decided_membership(decided, run, found)
    assert now.labels.tolist() == [0] * 5 + [4] * 7
    np.testing.assert_allclose(
        now.probabilities, [1, 0.6, 0.6, 0.6, 0.6, 0.9, 0.9, 1, 0.6, 0.9, 0.9, 0.6]
    )
    assert now.runners_up.tolist() == [-1, 4, -1, 4, 4, -1, -1, -1, 0, -1, -1, 0]


def test_a_file_of_another_run_is_matched_by_its_images(tmp_path):
    run = clusters()
    order = np.random.default_rng(0).permutation(12)
    labels = np.array([2, 0, 0, 0, 1, 1, 1, 1, 1, 5, 5, 5])[order]  # others, and two images moved
    other = clusters(tuple(NAMES[i] for i in order), labels)
    decided = Decisions({NAMES[1]: 4, NAMES[9]: -1}, {}, {4: "cats", 7: "dogs"}, frozenset())
    file = tmp_path / "decisions.csv"
    file.write_text(decisions.to_csv(decided, run))
    found = decisions.read(file, other, Decisions())
    assert found.named == {1: "cats", 5: "dogs"}
    assert found.moved == {NAMES[1]: 1, NAMES[9]: -1}
    fewer = clusters(NAMES[:10], np.array([0, 0, 0, 0, 0, 1, 1, 1, 1, 1]))
    with pytest.raises(InputError, match=r"cluster 7 of .* must have most of its images in one cl"):
        decisions.read(file, fewer, Decisions())
    one = clusters(labels=np.zeros(12, int))
    with pytest.raises(InputError, match=r"must be other ones in this run, too; got 4 and another"):
        decisions.read(file, one, Decisions())
    split = clusters(labels=np.arange(12))
    with pytest.raises(InputError, match=r"got 4 of 4 here, at most 1 of them together"):
        decisions.read(file, split, Decisions())


@every_row(
    ("rows", "message"),
    [
        ([("none.png", "0", "wrong", "")], "line 3 .* name one image of the run; got 'none.png'"),
        ([(at(0), "0", "move", "9")], "line 3 .* must name a cluster of the run; got '9'"),
        ([(at(0), "0", "move", "")], "line 3 .* must have an image, a cluster, one of run, member"),
        ([(at(0), "0", "delete", "")], "line 3 .* got .*'delete'"),
        ([(at(0),)], "line 3 .* must have an image"),
        ([("", "9", "name", "cat")], "line 3 .* must name a cluster of the run; got '9'"),
        ([("", "4", "name", "")], "line 3 .* must have an image"),
        ([("", "4", "name", "x" * 101)], "of 1 to 100 characters; got 101: 'xxx"),
        ([("", "4", "name", "a"), ("", "4", "name", "b")], "line 4 .* agree with line 3"),
        ([(at(0), "0", "move", "4"), (at(0), "0", "wrong", "")], "line 4 .* agree with line 3"),
        ([(at(0), "0", "move", "4"), (at(0), "0", "move", "7")], "line 4 .* agree with line 3"),
        ([("", "4", "merge", "0"), ("", "0", "merge", "4")], "line 4 .* merge two clusters; got 0"),
        ([("", "4", "merge", "4")], "line 3 .* merge two clusters; got 4 and 4"),
        ([("", "0", "merge", "4"), ("", "0", "merge", "7")], "line 4 .* agree with line 3"),
        ([(at(0), "0", "move", "9" * 20)], "line 3 .* must name a cluster of the run; got '999"),
    ],
)  # fmt: skip
def test_bad_rows(tmp_path, rows, message):
    file = saved(tmp_path, *rows)
    with pytest.raises(InputError, match=message) as error:
        decisions.read(file, clusters(), Decisions())
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


@every_row("titles", ["image,cluster", "file,cluster,correction,to", "x"])
def test_bad_columns(tmp_path, titles):
    message = "must have the columns image, cluster, correction, to, as a report saves them; got "
    with pytest.raises(InputError, match=message + titles.replace(",", ", ")):
        decisions.read(saved(tmp_path, titles=titles), clusters(), Decisions())
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(InputError, match="must be a file that a report has saved; got a folder"):
        decisions.read(tmp_path, clusters(), Decisions())
    with pytest.raises(InputError, match="must be a file that a report has saved; got no such f"):
        decisions.read(tmp_path / "none.csv", clusters(), Decisions())
    with pytest.raises(InputError, match="got none"):
        decisions.read(tmp_path / "empty.csv", clusters(), Decisions())


def test_a_file_that_was_cut_in_half(tmp_path):
    whole = saved(tmp_path, *((at(i), "0", "wrong", "") for i in range(5))).read_text()
    for end in range(len("image,cluster,correction,to\n"), len(whole) - len(",\n"), 7):
        (tmp_path / "half.csv").write_text(whole[:end])
        with pytest.raises(InputError, match="must"):
            decisions.read(tmp_path / "half.csv", clusters(), Decisions())
    with pytest.raises(InputError, match="of an older version"):
        decisions.read(saved(tmp_path, run=""), clusters(), Decisions())


def test_a_name_of_several_rows_is_not_corrected(tmp_path):
    run = clusters(("x", "y", "x", "z"), np.array([0, 0, 1, 1]))
    file = saved(tmp_path, ("x", "0", "wrong", ""), run=run.run)
    with pytest.raises(InputError, match=r"must name one image .* got 'x', which several have"):
        decisions.read(file, run, Decisions())


def table(**columns):
    columns = {"image": list("abcd"), "cluster": list("0440"), "distance": ["1.5"] * 4, **columns}
    return Table(columns, "image", "class" if "class" in columns else "cluster")


def decided_rows(made, labels, names):
    rows, run = decisions.clustered(made)
    labels = np.array(labels)
    text = decisions.decided_csv(made, rows, run.labels, labels, labels != run.labels, names)
    return list(csv.DictReader(text.splitlines()))


def test_the_table_has_what_was_found_and_what_is_now():
    rows = decided_rows(table(map_x=list("1234")), [0, -1, 0, 0], {0: "cats"})
    assert [row["cluster"] for row in rows] == ["0", "-1", "0", "0"]
    assert [row["found_cluster"] for row in rows] == ["0", "4", "4", "0"]
    assert [row["corrected"] for row in rows] == ["0", "1", "1", "0"]
    assert [row["name"] for row in rows] == ["cats", "", "cats", "cats"]
    assert [row["distance"] for row in rows] == ["1.5"] * 4, "in the cluster that was found"
    assert [row["map_x"] for row in rows] == list("1234")
    # The corrected table says what was found as well.
    columns = {title: [row[title] for row in rows] for title in rows[0]}
    again = Table(columns, "image", "cluster")
    assert decisions.clustered(again)[1].labels.tolist() == [0, 4, 4, 0]
    assert decisions.clustered(again)[1].run == decisions.clustered(table())[1].run


def test_novel_classes():
    """Clusters of the report are the novel classes of the unlabeled images, by number."""
    classes = {"class": ["cat", "novel 0", "novel 2", "novel 2"], "cluster": ["", "7", "7", "8"]}
    made = table(**classes)
    rows, run = decisions.clustered(made)
    assert (rows, run.labels.tolist()) == ([1, 2, 3], [0, 2, 2])
    now = decided_rows(made, [-1, 2, 0], {0: "dogs"})
    assert [row["class"] for row in now] == ["cat", "-1", "novel 2", "novel 0"]
    assert [row["cluster"] for row in now] == ["", "7", "7", "8"], "found without classes"
    assert [row["name"] or "" for row in now] == ["", "", "", "dogs"]
    # Images without names are numbered among those that the report shows.
    assert list(decisions.clustered(table(image=list("0123"), **classes))[1].names) == list("012")


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


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_command(workdir, tmp_path, capsys):
    before = content(workdir)
    rows = list(csv.DictReader((workdir / "assignments.csv").read_text().splitlines()))
    run = decisions.clustered(assignments.read_workdir(workdir))[1].run
    assert run in decisions_page(workdir)
    other = next(row["cluster"] for row in rows if row["cluster"] != rows[0]["cluster"])
    changes = [(rows[0]["row"], rows[0]["cluster"], "move", other)]
    changes += [(rows[-1]["row"], rows[-1]["cluster"], "wrong", "")]
    titles = "row,cluster,correction,to"
    bad = saved(tmp_path, *changes, (*changes[0][:3], "9"), run=run, titles=titles, name="b.csv")
    with pytest.raises(SystemExit):
        command.main([str(workdir), f"--corrections={bad}"])
    assert content(workdir) == before, "nothing is applied of a file with a bad line"
    file = saved(tmp_path, *changes, run=run, titles=titles)
    capsys.readouterr()
    command.main([str(workdir), f"--corrections={file}"])
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "corrections  1 moved or confirmed, 1 in no cluster",
        f"assignments  {workdir / 'assignments.csv'}",
        f"report       {workdir / 'report.html'}",
    ]
    after = list(csv.DictReader((workdir / "assignments.csv").read_text().splitlines()))
    assert [row["row"] for row in after] == [row["row"] for row in rows]
    assert [after[0]["cluster"], after[-1]["cluster"]] == [other, "-1"]
    assert after[1] == rows[1] | {
        "found_cluster": rows[1]["cluster"], "corrected": "0", "name": "",
    }  # fmt: skip
    page = (workdir / "report.html").read_text()
    assert "A person has corrected the clusters" in page
    assert "In no cluster" in page
    # A second round, with a name, on the first one; then the page alone.
    named = saved(tmp_path, ("", other, "name", "b<b>"), run=run, titles=titles, name="n.csv")
    command.main([str(workdir), f"--corrections={named}"])
    assert "1 moved or confirmed, 1 in no cluster, 1 named" in capsys.readouterr().out
    after = list(csv.DictReader((workdir / "assignments.csv").read_text().splitlines()))
    assert after[0]["name"] == "b<b>"
    assert "b&lt;b&gt;" in (workdir / "report.html").read_text()
    whole = content(workdir)
    command.main([str(workdir)])
    assert content(workdir) == whole
    command.main([str(workdir), f"--corrections={named}"])
    assert "(nothing new)" in capsys.readouterr().out
    assert content(workdir) == whole
    # A decision whose line is removed is taken back, and so are all without the file.
    kept = (workdir / "decisions.csv").read_text()
    (workdir / "decisions.csv").write_text(re.sub(r".*,wrong,\n", "", kept))
    command.main([str(workdir)])
    after = list(csv.DictReader((workdir / "assignments.csv").read_text().splitlines()))
    assert [after[0]["cluster"], after[-1]["cluster"]] == [other, rows[-1]["cluster"]]
    (workdir / "decisions.csv").unlink()
    command.main([str(workdir)])
    after = list(csv.DictReader((workdir / "assignments.csv").read_text().splitlines()))
    assert [row["cluster"] for row in after] == [row["cluster"] for row in rows]
    (workdir / "decisions.csv").write_text(kept)
    command.main([str(workdir)])


def decisions_page(workdir):
    import base64
    import gzip

    page = (workdir / "report.html").read_text()
    packed = re.search('id="report-data">(.*?)<', page)[1]
    return gzip.decompress(base64.b64decode(packed)).decode()


@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
def test_an_interrupt_is_mended_by_the_same_command(workdir, tmp_path, monkeypatch, kind):
    rows = list(csv.DictReader((workdir / "assignments.csv").read_text().splitlines()))
    run = decisions.clustered(assignments.read_workdir(workdir))[1].run
    change = (rows[3]["row"], rows[3]["cluster"], "wrong", "")
    file = saved(tmp_path, change, run=run, titles="row,cluster,correction,to")
    write, written = files_io.write, []

    def failing(path, data, **options):
        if written:
            raise kind("disk full")
        written.append(path)
        write(path, data, **options)

    with monkeypatch.context() as patch:
        patch.setattr(files_io, "write", failing)
        with pytest.raises((SystemExit, KeyboardInterrupt)):
            command.main([str(workdir), f"--corrections={file}"])
    command.main([str(workdir)])
    after = list(csv.DictReader((workdir / "assignments.csv").read_text().splitlines()))
    assert after[3]["cluster"] == "-1"


def test_without_a_map_only_the_table_is_corrected(tmp_path, capsys):
    x = np.random.default_rng(0).normal(size=(20, 5)) + 9 * (np.arange(20) % 2)[:, None]
    np.save(tmp_path / "x.npy", x)
    cluster.main([f"--features={tmp_path / 'x.npy'}", f"--workdir={tmp_path / 'run'}",
                  "--method=kmeans", "--k=2"])  # fmt: skip
    run = decisions.clustered(assignments.read_workdir(tmp_path / "run"))[1]
    change = ("3", str(run.labels[3]), "wrong", "")
    file = saved(tmp_path, change, run=run.run, titles="row,cluster,correction,to")
    capsys.readouterr()
    command.main([str(tmp_path / "run"), f"--corrections={file}"])
    assert "none, because the run has no map" in capsys.readouterr().out
