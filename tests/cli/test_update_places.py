"""Where photos are: a file or folder that cannot be read today is not gone; one given up is."""

import errno
import json
import os
import pathlib
import zipfile

import numpy as np
import pytest
from PIL import Image

from cluster_jax.cli import images, report, update
from cluster_jax.report import duplicates
from cluster_jax.runs import begin
from cluster_jax.runs import run as records
from tests import toy
from tests.cli.test_images import QUICK

pytestmark = [
    pytest.mark.filterwarnings("ignore:n_jobs value:UserWarning"),
    pytest.mark.usefixtures("one_device", "shallow_lite", "found_once"),
]
PIXELS = toy.images(48, channels=3)[0]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of two folders and one file: `here/a`, `here/b`, `one.png`."""
    monkeypatch.chdir(tmp_path)
    toy.save(tmp_path / "here" / "a", PIXELS[:16])
    toy.save(tmp_path / "here" / "b", PIXELS[16:32])
    toy.save(tmp_path, PIXELS[32:33], prefix="one")
    (one,) = tmp_path.glob("one*.png")
    one.rename("one.png")
    made = ["here/a", "here/b", "one.png", "--workdir=run", "--quiet", "--labels=folders"]
    images.main([*made, *QUICK])
    return tmp_path / "run"


def names(run):
    return {os.path.basename(row["image"]) for row in toy.table(run)}


def folders(run):
    data = records.read(run).config["data"]["dir"]
    return {os.path.relpath(line) for line in data.split("\n")}


def updated(run, *flags):
    update.main([f"--workdir={run}", "--quiet", *flags])
    return records.read(run)


def failing(monkeypatch, is_bad):
    """Files whose content a failing disk no longer gives."""
    read = pathlib.Path.read_bytes

    def read_bytes(path):
        if is_bad(path):
            raise OSError(errno.EIO, "Input/output error", str(path))
        return read(path)

    monkeypatch.setattr(pathlib.Path, "read_bytes", read_bytes)


def test_no_file_can_be_read(run, monkeypatch):
    before = toy.table(run)
    failing(monkeypatch, lambda path: path.suffix == ".png")
    assert len(updated(run).columns) == 33
    assert toy.table(run) == before


def test_a_file_that_is_named_stays_until_it_is_given_up(run):
    pathlib.Path("one.png").unlink()
    for _ in range(2):
        after = updated(run)
        assert (len(after.columns), folders(run)) == (33, {"here/a", "here/b", "one.png"})
        assert after.away == (os.path.abspath("one.png"),)
    after = updated(run, "--gone=one.png")
    assert (len(after.columns), after.away, folders(run)) == (32, (), {"here/a", "here/b"})


def test_a_folder_that_is_given_up_takes_its_photos_along(run, monkeypatch):
    """Also those that cannot be read, and links that lead nowhere."""
    (pathlib.Path("here/b") / "00.png").unlink()
    (pathlib.Path("here/b") / "00.png").symlink_to("nowhere.png")
    failing(monkeypatch, lambda path: path.parent.name == "b")
    after = updated(run, "--gone=here/b")
    assert (len(after.columns), folders(run)) == (17, {"here/a", "one.png"})


def test_a_disk_inside_of_a_folder_that_is_named(run):
    """It is away, and its photos stay, in this update and in later ones, until it is back."""
    os.rename("here/b", "unplugged")
    toy.save(pathlib.Path("here"), PIXELS[33:36], prefix="new")
    for _ in range(2):
        after = updated(run, "here")
        assert (len(after.columns), after.away) == (36, (os.path.abspath("here/b"),))
    os.rename("unplugged", "here/b")
    after = updated(run)
    assert (len(after.columns), after.away, after.updates) == (36, (), 1)
    truth = [after.label_names[i] for i in after.truth.tolist() if i >= 0]
    assert {"a", "b"} <= {*truth}


def test_a_file_in_the_place_of_a_folder_of_the_run(run):
    """The folder is away, and none of its photos is gone, until it is back."""
    before = toy.table(run)
    os.rename("here/b", "unplugged")
    pathlib.Path("here/b").write_text("the server is away")
    after = updated(run)
    assert (len(after.columns), after.away) == (33, (os.path.abspath("here/b"),))
    assert toy.table(run) == before
    os.remove("here/b")
    os.rename("unplugged", "here/b")
    after = updated(run)
    assert (after.away, after.number) == ((), 1)
    assert toy.table(run) == before


@pytest.mark.parametrize("length", [0, 60])
def test_a_file_that_was_cut_is_the_photo_that_it_was(run, length, capsys, refused):
    """It is not another photo: it stays, is told, and is left out of an export."""
    file = pathlib.Path("here/a/00.png")
    content, before = file.read_bytes(), toy.table(run)
    file.write_bytes(content[:length])
    for _ in range(2):
        update.main([f"--workdir={run}"])
        said = capsys.readouterr()
        assert f"cannot be read, such as {file.absolute()}: what is there stays" in said.out
        assert toy.table(run) == before
    report.main([str(run), "--quiet", "--export=sorted"])
    assert len([*pathlib.Path("sorted").glob("*/*.png")]) == 32
    file.write_bytes(content)
    assert updated(run).away == ()
    assert toy.table(run) == before


@pytest.mark.parametrize("name", ["MORE.ZIP", pytest.param("more.zip", marks=pytest.mark.slow)])
def test_a_zip_is_refused_beside_folders_and_gives_way_to_its_own(run, name, refused):
    """A folder is one whatever its name, and an unpacked photo is the same photo."""
    toy.save(pathlib.Path("unpacked"), PIXELS[33:45])
    with zipfile.ZipFile(name, "w") as archive:
        for file in sorted(pathlib.Path("unpacked").iterdir()):
            archive.write(file, file.name)
    must = "PHOTOS must be folders and files of images, or a .zip alone"
    said = refused(update.main, f"--workdir={run}", name)
    assert f"{must}; got {os.path.abspath(name)} and 3 more: unpack it" in said
    images.main([name, "--workdir=packed", "--quiet", *QUICK])
    said = refused(update.main, "--workdir=packed", "here")
    assert f"{must}; got {os.path.abspath(name)} and 1 more: unpack it" in said
    after = updated(pathlib.Path("packed"), "unpacked", f"--gone={name}")
    assert after.changes == {"renamed": 12}
    os.remove(name)
    os.rename("unpacked", name)
    assert len(updated(run, name).columns) == 45


def test_an_empty_folder_changes_nothing(run):
    """Though the names of photos are relative to the folder that holds both."""
    images.main(["here/a", "--workdir=one", "--quiet", *QUICK])
    os.mkdir("empty")
    page = {"state": records.read("one").state, "wrong": [3]}
    pathlib.Path("page.json").write_text(json.dumps(page))
    after = updated(pathlib.Path("one"), "empty")
    assert (after.number, after.state) == (1, page["state"])
    report.main(["one", "--corrections=page.json", "--quiet"])
    assert records.read("one").labels[3] == -1


def test_another_number_reads_no_photo(run):
    """A file that was overwritten since is no copy of what its old picture was a copy of."""
    for name, i in (("copy.png", 0), ("other.png", 1)):
        with Image.open(f"here/a/{i:02}.png") as image:
            image.resize((24, 24)).resize(image.size).save(f"here/a/{name}")
    before = updated(run)
    pairs = {frozenset(group) for group in copies(before)}
    assert len(pairs) >= 2
    for name in ("copy.png", "other.png"):
        Image.new("RGB", (32, 32), "red").save(f"here/a/{name}")
    assert {frozenset(group) for group in copies(updated(run, "--n-clusters=2"))} == pairs


def copies(run):
    """The names of photos that are copies of each other."""
    groups = duplicates.groups_of(run.duplicates, len(run.columns))
    return [
        {os.path.basename(run.names[i]) for i in np.flatnonzero(groups == group)}
        for group in range(run.duplicates.n_groups)
    ]


def test_a_folder_that_cannot_be_read_is_listed_once(run, monkeypatch):
    scandir = os.scandir

    def closed(path="."):
        if isinstance(path, str) and os.path.basename(path) == "closed":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    os.mkdir("here/a/closed")
    toy.save(pathlib.Path("here/b"), PIXELS[36:38], prefix="new")
    monkeypatch.setattr(os, "scandir", closed)
    skipped = [name for name, _ in updated(run).skipped]
    assert len(skipped) == len({*skipped}) == 1


def test_labels_in_the_order_of_the_photos_stay_with_their_photos(run):
    """A list of labels says nothing of photos that have come since."""
    before = toy.table(run)
    pathlib.Path("labels.txt").write_text("".join(f"kind {i}\n" for i in range(33)))
    images.main(["here/a", "here/b", "one.png", "--workdir=run", "--labels=labels.txt", *QUICK])
    os.remove("here/a/00.png")
    toy.save(pathlib.Path("here/a"), PIXELS[40:41], prefix="zz")
    after = updated(run)
    labels = dict(zip(after.names, after.truth.tolist(), strict=True))
    wanted = {row["image"]: i for i, row in enumerate(before)}
    wanted = {name: f"kind {i}" for name, i in wanted.items() if "a/00.png" not in name}
    assert {n: after.label_names[i] for n, i in labels.items() if i >= 0} == wanted


def test_labels_of_a_table_are_those_that_it_names(run, capsys):
    """Others keep theirs; a table that is away is told, and another one replaces all labels."""
    update.main(["--workdir=run"])
    said = "one photo is in no folder, so that the run has no labels of folders yet"
    assert "Nothing has happened" in capsys.readouterr().out, said
    names = [row["image"] for row in toy.table(run)]
    table = pathlib.Path("kinds.csv")
    table.write_text("".join(f"{name},{'xy'[i % 2]}\n" for i, name in enumerate(names)))
    made = ["here/a", "here/b", "one.png", "--workdir=run", *QUICK]
    images.main([*made, "--labels=kinds.csv"])

    def labels():
        now = records.read(run)
        found = zip(now.names, now.truth.tolist(), strict=True)
        return {name: None if code < 0 else now.label_names[code] for name, code in found}

    wanted = {name: "xy"[i % 2] for i, name in enumerate(names)}
    assert labels() == wanted
    toy.save(pathlib.Path("here/a"), PIXELS[40:42], prefix="zz")
    table.write_text(f"here/a/zz00.png,z\n{names[0]},y\n")
    capsys.readouterr()
    update.main(["--workdir=run"])
    wanted |= {"here/a/zz00.png": "z", "here/a/zz01.png": None, names[0]: "y"}
    assert labels() == wanted
    assert "labels" not in capsys.readouterr().err
    # Nothing but the table has changed: the clusters stay, and the scores are of the labels of now.
    before = records.read(run)
    table.write_text("".join(f"{name},{'xy'[i % 3 > 0]}\n" for i, name in enumerate(names)))
    update.main(["--workdir=run"])
    assert "Their labels have changed: the scores are by" in capsys.readouterr().out
    wanted |= {name: "xy"[i % 3 > 0] for i, name in enumerate(names)}
    assert labels() == wanted
    after = records.read(run)
    assert after.labels.tolist() == before.labels.tolist()
    scores = [of.results["metrics"]["tree"]["acc"] for of in (before, after)]
    assert scores[0] != scores[1]
    update.main(["--workdir=run"])
    assert "Nothing has happened" in capsys.readouterr().out
    table.rename("other.csv")
    toy.save(pathlib.Path("here/a"), PIXELS[42:43], prefix="zzz")
    update.main(["--workdir=run"])
    wanted |= {"here/a/zzz00.png": None}
    assert labels() == wanted
    told = capsys.readouterr()
    said = "the labels cannot be read, and those of before stay: "
    assert said in told.out + told.err
    pathlib.Path("last.csv").write_text("".join(f"{name},v\n" for name in names[1:]))
    images.main([*made, "--labels=last.csv"])
    assert labels() == dict.fromkeys(wanted) | dict.fromkeys(names[1:], "v")


@pytest.mark.parametrize("content", [None, "here/a/00.png,x,y\n"])
def test_labels_that_are_asked_for_and_cannot_be_read_are_refused(
    run, refused, content, monkeypatch
):
    """Those of before would be lost for nothing; nothing is said to be replaced."""
    told = []
    monkeypatch.setattr(begin, "say", told.append)
    before = records.read(run)
    if content is not None:
        pathlib.Path("bad.csv").write_text(content)
    made = ["here/a", "here/b", "one.png", "--workdir=run", *QUICK, "--labels=bad.csv"]
    assert "bad.csv" in refused(images.main, *made)
    after = records.read(run)
    assert (after.number, after.label_names) == (before.number, before.label_names)
    assert told == []


@pytest.mark.parametrize(
    ("first", "more", "labels"),
    [
        (("a", "b"), "d", {"a/b": "a", "b/c": "b", "d/b": "d"}),
        (("here",), "more", {"here/b": "b", "here/c": "c", "more/b": "b"}),
    ],
)
def test_new_photos_have_labels_as_the_first_ones(tmp_path, monkeypatch, first, more, labels):
    """Of several folders their names; of one its subfolders, also in a folder that comes later."""
    monkeypatch.chdir(tmp_path)
    for i, folder in enumerate(labels):
        toy.save(tmp_path / folder, PIXELS[9 * i : 9 * i + 9])
    images.main([*first, "--workdir=run", "--quiet", "--labels=folders", *QUICK])
    toy.save(tmp_path / first[0] / "b", PIXELS[36:38], prefix="new")
    after = updated(tmp_path / "run", more)
    found = {
        (os.path.dirname(name), after.label_names[code])
        for name, code in zip(after.names, after.truth.tolist(), strict=True)
    }
    assert found == {*labels.items()}


def test_the_same_command_without_its_labels_is_finished(run, capsys):
    """So it is with settings that change no result; no state is added, and labels stay."""
    images.main(["here/a", "here/b", "one.png", "--workdir=run", "--config.data.threads=1", *QUICK])
    assert "is finished" in capsys.readouterr().out
    after = records.read(run)
    assert (after.number, after.config["data"]["labels"]) == (1, "folders")
