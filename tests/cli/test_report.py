"""The command `report`: matched clusters, moved images, and what it refuses."""

import html
import json
import os
import re
from urllib.parse import quote

import pytest

from cluster_jax.cli import report as command
from cluster_jax.report import assignments, comparison
from tests.rows import every_row

BEFORE = {"a": "0", "b": "0", "c": "0", "d": "1", "e": "1", "f": "2", "x": "2"}
AFTER = {"a": "7", "b": "7", "c": "3", "d": "3", "e": "3", "f": "5", "y": "5", "z": "5"}


def write(folder, clusters, title="image"):
    folder.mkdir()
    columns = {title: list(clusters), "cluster": list(clusters.values())}
    (folder / "assignments.csv").write_text(assignments.to_csv(columns))
    return str(folder)


def test_clusters_are_matched_and_moves_are_listed():
    compared = comparison.compare(BEFORE, AFTER)
    assert [name for name, _, _ in compared.rows] == list("abcdef")
    assert compared.matched == {"7": "0", "3": "1", "5": "2"}
    assert compared.moved == [("c", "0", "3")]
    assert (compared.only_before, compared.only_after) == (1, 2)
    assert comparison.compare(BEFORE, BEFORE).moved == []
    split = comparison.compare({n: "0" for n in "abc"}, {"a": "0", "b": "0", "c": "1"})
    assert split.moved == [("c", "0", "1")], "a cluster without a match has moved as a whole"


def test_the_command(tmp_path, capsys):
    before = write(tmp_path / "before", BEFORE)
    after = write(tmp_path / "after", AFTER, "row")
    out = tmp_path / "moved.csv"
    command.main([before, after, f"--out={out}"])
    text = capsys.readouterr().out
    assert "6 in both runs: 3 clusters before, 3 after, ARI" in text
    assert "1 moved (16.7%)" in text
    assert "1 only in the first run\n2 only in the second run" in text
    assert "      1  from 0 to 3 (which was 1 before), for example c" in text
    assert out.read_text() == "image,before,after\nc,0,3\n"
    command.main([before, before, f"--out={out}"])
    assert out.read_text() == "image,before,after\n"
    assert "ARI 1.000\n0 moved" in capsys.readouterr().out


def test_one_folder(tmp_path, capsys):
    run = write(tmp_path / "run", BEFORE)
    (tmp_path / "run" / "report.html").touch()
    (tmp_path / "photos").mkdir()
    for folder, wanted in (
        (run, f"the run in {run} must be finished; got no results"),
        (str(tmp_path / "photos"), "workdirs of finished runs; got .*photos, which has no assign"),
        (str(tmp_path / "none"), "workdirs of finished runs; got .*none, which does not exist"),
    ):
        with pytest.raises(SystemExit) as stop:
            command.main([folder])
        assert stop.value.code == 2
        assert re.search(wanted.replace("(", r"\("), capsys.readouterr().err)


def test_the_page(tmp_path, capsys, monkeypatch):
    evil = '<script>alert(1)</script> "&.png'
    odd = "caf\udce9 #1.png"
    folder = tmp_path / "photos"
    images = {name: "0" for name in (evil, odd, "same/one.png", "same/two.png", "same/3.png")}
    before = write(tmp_path / "before", {**images, "lone.png": "1"})
    after = write(tmp_path / "after", {**images, evil: "5", odd: "5", "lone.png": "1"})
    config = {"data": {"name": "folder", "dir": str(folder)}}
    (tmp_path / "after" / "config.json").write_text(json.dumps(config))
    out = tmp_path / "moved.html"
    monkeypatch.setenv("HOME", str(tmp_path))
    command.main([before, after, "--out=~/moved.html"])
    assert f"moved images {out}" in capsys.readouterr().out
    page = out.read_text()
    assert "<script" not in page
    assert "default-src 'none'" in page
    for fact in ("6 in both runs: 2 clusters before, 3 after", "2 moved (33.3%)"):
        assert fact in page
    assert "2 images: cluster 0 → 5 (a new one)" in page
    assert html.escape(evil).replace("&quot;", "&#34;") in page
    uris = re.findall('<img [^>]*src="([^"]*)"', page)
    assert uris == [f"{folder.as_uri()}/{quote(os.fsencode(name))}" for name in (evil, odd)]
    assert "one.png" not in page, "it stayed"
    assert re.findall("<tr><th scope=.row.>(.*?)</tr>", page) == [
        '0</th><td class="n">5</td><td>0</td><td class="n">3</td><td class="n">3</td>',
        '1</th><td class="n">1</td><td>1</td><td class="n">1</td><td class="n">1</td>',
    ]
    (tmp_path / "after" / "config.json").unlink()
    command.main([before, after, f"--out={out}"])
    assert "<img" not in out.read_text()
    command.main([before, before, f"--out={out}"])
    assert "No image moved" in out.read_text()


def test_metrics_and_learning_curves_stand_side_by_side(tmp_path, capsys):
    before, after = (write(tmp_path / name, BEFORE) for name in ("before", "after"))
    for folder, acc, losses in ((before, 0.5, (3.0, 1.0)), (after, 0.75, (4.0, None, 2.0))):
        metrics = {"tree": {"n_clusters": 3, "acc": acc}, "linear_probe": 0.25}
        metrics |= {"discovery": {"all": acc}} if folder == after else {}
        (tmp_path / folder / "results.json").write_text(json.dumps({"metrics": metrics}))
        lines = [json.dumps({"step": 10 * i, "loss": x}) for i, x in enumerate(losses)]
        (tmp_path / folder / "metrics.jsonl").write_text("\n".join(lines))
    out = tmp_path / "moved.html"
    command.main([before, after, f"--out={out}"])
    table = capsys.readouterr().out.split("\n\n")[1]
    assert [line.rsplit(maxsplit=2) for line in table.splitlines()] == [
        ["before", "after"],
        ["Tree n clusters", "3", "3"],
        ["Tree acc", "0.5", "0.75"],
        ["Linear probe accuracy", "0.25", "0.25"],
        ["Novel class discovery: all", "-", "0.75"],
        ["Last loss", "1", "2"],
    ]
    page = out.read_text()
    assert '<th scope="row">Tree acc</th><td class="n">0.5</td><td class="n">0.75</td>' in page
    # Of 20 steps and losses from 1 to 4, in a picture of 600 x 150.
    points = re.findall('<polyline [^>]*points="([^"]*)"', page)
    assert points == ["0.0,50.0 300.0,150.0", "0.0,0.0 600.0,100.0"]


def test_a_folder_that_does_not_exist(tmp_path, capsys):
    run = write(tmp_path / "run", BEFORE)
    with pytest.raises(SystemExit):
        command.main([run, run, f"--out={tmp_path / 'none' / 'moved.csv'}"])
    assert "--out must be a file in a folder that exists" in capsys.readouterr().err


@every_row(
    ("flags", "message"),
    [
        (("{run}", "--out={run}"), "--out must be a file; got the folder "),
        (("--out=x.html",), "--out must be left out for one run; got x.html"),
        (("{run}", "--export=x"), "must be one workdir, with corrections or --export; got two"),
        (("--by=copy",), "--by and --yes must come with --export=DIR; got no --export"),
        (("--export=x", "--by=move"), "--by=move must come with --yes, because it takes the files"),
    ],
)
def test_flags_that_do_not_fit(tmp_path, capsys, flags, message):
    run = write(tmp_path / "run", BEFORE)
    with pytest.raises(SystemExit) as stop:
        command.main([run, *(flag.format(run=run) for flag in flags)])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_a_name_of_several_rows_is_not_compared(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    columns = {"row": ["a", "b", "a"], "cluster": [0, 0, 1]}
    (folder / "assignments.csv").write_text(assignments.to_csv(columns))
    assert comparison.read(folder) == {"b": "0"}


@every_row("case", ["no run", "no columns", "nothing in common"])
def test_bad_input(tmp_path, capsys, case):
    one = write(tmp_path / "one", BEFORE)
    two = tmp_path / "two"
    if case == "no run":
        message = "must be workdirs of finished runs"
    elif case == "no columns":
        write(two, BEFORE, "other")
        message = "must have a column of names"
    else:
        write(two, {"q": "0"})
        message = "must have images in common"
    with pytest.raises(SystemExit) as stop:
        command.main([one, str(two)])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
