"""`cluster-jax update` of photos: new, renamed and deleted files, undo, and the estimator."""

import errno
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import ExifTags, Image
from PIL.PngImagePlugin import PngInfo

from cluster_jax.cli import images, predict, report, update
from cluster_jax.core import io
from cluster_jax.report import duplicates
from cluster_jax.runs import page
from cluster_jax.runs import run as records
from cluster_jax.runs import store as stores
from tests import toy
from tests.cli.test_images import QUICK
from tests.cli.test_output import check_keys

pytestmark = [
    pytest.mark.filterwarnings("ignore:n_jobs value:UserWarning"),
    pytest.mark.usefixtures("one_device", "shallow_lite", "found_once"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory, one_device, shallow_lite):
    folder = tmp_path_factory.mktemp("photos")
    toy.save(folder / "photos", toy.photos(40)[0])
    images.main([str(folder / "photos"), f"--workdir={folder}/run", *QUICK])
    return folder


@pytest.fixture
def place(made, tmp_path, monkeypatch):
    """The photos and their run, moved together: the run finds them in their place beside it."""
    shutil.copytree(made, tmp_path / "here")
    shutil.move(made / "photos", made / "away")
    monkeypatch.chdir(tmp_path / "here")
    yield tmp_path / "here"
    shutil.move(made / "away", made / "photos")


def test_new_renamed_and_deleted_files(place, capsys, refused):
    photos, run = place / "photos", place / "run"
    before = {row["image"]: row["cluster"] for row in toy.table(run)}
    names = io.read_json(run / "results.json")["suggested_names"]
    update.main([f"--workdir={run}", "--json"])
    nothing = json.loads(capsys.readouterr().out)
    check_keys("update", nothing)
    assert (nothing["new"], nothing["gone"], nothing["photos"]) == (0, 0, 40)
    (photos / "05.png").rename(photos / "sub 5.png")
    (photos / "06.png").unlink()
    toy.save(place / "more", toy.photos(46)[0][40:], prefix="new")
    (photos / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    first = toy.table(run)
    update.main([f"--workdir={run}", "more"])
    changed = "6 photos are new; 1 photo is gone; 1 photo is moved or renamed"
    assert f"{changed}." in capsys.readouterr().out
    features = _features(run)
    now = {row["image"]: row for row in toy.table(run)}
    assert len(now) == 45
    assert now["photos/sub 5.png"]["cluster"] == before["05.png"]
    assert "photos/06.png" not in now
    assert {row["since"] for name, row in now.items() if name.startswith("more/")} == {"1"}
    kept = [n for n in before if n not in ("05.png", "06.png")]
    assert all(now[f"photos/{name}"]["cluster"] == before[name] for name in kept)
    changes = {row["name"]: row for row in toy.table(run, "changes.csv")}
    kinds = [row["change"] for row in changes.values()]
    assert sorted(kinds) == ["gone", *["new"] * 6, "renamed"]
    assert changes["photos/sub 5.png"]["after"] == changes["photos/sub 5.png"]["before"]
    assert (changes["06.png"]["before"], changes["06.png"]["after"]) == (before["06.png"], "")
    assert io.read_json(run / "results.json")["suggested_names"] == names  # as they were first
    predict.main([f"--workdir={run}", f"--images={photos / 'sub 5.png'}"])
    assert f"Update 1: {changed}" in (run / "report.html").read_text()
    report.main([str(run)])
    page = (run / "report.html").read_text()
    assert f"Update 1: {changed}" in page
    assert re.findall('<img class="tile" src="data:[^"]*" alt="([^"]*)"', page) == ["06.png"]
    update.main([f"--workdir={run}", "--refit"])
    assert "All photos were clustered anew." in capsys.readouterr().out
    for number in (2, 1):
        update.main([f"--workdir={run}", "--undo"])
        assert capsys.readouterr().out.startswith(f"Took update {number} of {run} back")
    assert toy.table(run) == first
    assert not (run / "changes.csv").exists()
    said = "must have an update or corrections to take back; got none"
    assert said in refused(update.main, f"--workdir={run}", "--undo")
    # Others of the photos than before the undo: their features are theirs.
    for name in sorted(os.listdir(place / "more"))[:4]:
        (place / "more" / name).unlink()
    update.main([f"--workdir={run}", "more"])
    again = _features(run)
    assert len(again) == 41
    for name in again:
        np.testing.assert_allclose(again[name], features[name], atol=1e-5)


def test_a_group_that_is_gone_is_called_as_before(place, capsys):
    """By its suggested name, in the terminal and on the page; naming it changes no suggestion."""
    run = place / "run"
    before = records.read(run)
    group = int(np.bincount(before.labels).argmin())
    suggested = before.cluster_names
    other = next(name for name in suggested if name != str(group))
    report.main([str(run), f"--name={other}={suggested[str(group)]}"])
    assert records.read(run).cluster_names == {**suggested, other: suggested[str(group)]}
    for row in np.flatnonzero(before.labels == group):
        (place / "photos" / before.names[row]).unlink()
    update.main([f"--workdir={run}", "--yes"])
    name = suggested[str(group)]
    assert f"group {group} ({name}) disappeared" in capsys.readouterr().out
    assert f"<h3>{name} disappeared" in (run / "report.html").read_text(), "letter by letter"


def _features(run):
    read = records.read(run)
    return dict(zip(map(os.path.basename, read.names), read.features, strict=True))


def test_what_a_person_said_holds_for_renamed_photos(place, monkeypatch):
    photos, run = place / "photos", place / "run"
    labels = records.read(run).labels
    target = int(labels[1])
    own = next(int(label) for label in labels if label != target)
    shutil.copy(photos / "07.png", photos / "copy.png")
    update.main([f"--workdir={run}"])
    names = records.read(run).names
    said = {
        "state": records.read(run).state,
        "labels": {str(names.index("00.png")): target, str(names.index("04.png")): own},
        "wrong": [names.index("03.png")],
        "merges": [[own, target]],
        "names": {str(target): "mine"},
        "keep": [names.index("copy.png")],
    }
    (place / "page.json").write_text(json.dumps(said))
    report.main([str(run), f"--corrections={place}/page.json"])
    merged = [row["image"] for row in toy.table(run) if int(row["found"]) in (own, target)]
    (photos / "00.png").rename(photos / "zz.png")
    toy.save(photos, toy.photos(44)[0][40:], prefix="new")
    looks, find = [], duplicates.find
    monkeypatch.setattr(duplicates, "find", lambda *rows: looks.append(1) or find(*rows))
    update.main([f"--workdir={run}"])
    assert looks == [1]
    now = {row["image"]: row for row in toy.table(run)}
    assert (now["zz.png"]["cluster"], now["zz.png"]["name"]) == (str(target), "mine")
    assert now["03.png"]["cluster"] == "-1"
    held = {name: now[name]["cluster"] for name in merged if name in now and name != "03.png"}
    assert set(held.values()) == {str(target)}, "what was merged stays together"
    kept = {row["image"]: row["keep"] for row in toy.table(run, "duplicates.csv")}
    assert (kept["07.png"], kept["copy.png"]) == ("0", "1")


def test_all_photos_are_renamed_and_the_undo_needs_none(place, capsys):
    """Neither does the page after it, and the next update knows each photo by what it shows."""
    photos, run = place / "photos", place / "run"
    report.main([str(run), "--name=1=bars"])
    before = toy.table(run)
    for path in sorted(photos.iterdir()):
        path.rename(path.with_name(f"summer {path.name}"))
    update.main([f"--workdir={run}"])
    assert "40 photos are moved or renamed" in capsys.readouterr().out
    renamed = toy.table(run)
    assert [row["image"] for row in renamed] == [f"summer {row['image']}" for row in before]
    update.main([f"--workdir={run}", "--undo"])
    assert toy.table(run) == before
    report.main([str(run), "--name=0=bands"])
    update.main([f"--workdir={run}"])
    now = toy.table(run)
    assert [(row["image"], row["cluster"]) for row in now] == [
        (row["image"], row["cluster"]) for row in renamed
    ]
    assert {row["name"] for row in now if row["cluster"] in "01"} == {"bands", "bars"}


def test_rows_of_photos_that_an_undo_has_left_may_be_damaged(place):
    """Also after a correction: no state needs them."""
    run = place / "run"
    toy.save(place / "more", toy.photos(42)[0][40:], prefix="new")
    update.main([f"--workdir={run}", "more", "--report=no"])
    update.main([f"--workdir={run}", "--undo", "--report=no"])
    report.main([str(run), "--name=0=bands"])
    stores.path_of(run, 40).write_bytes(b"damaged")
    report.main([str(run), "--name=1=bars"])
    update.main([f"--workdir={run}", "more", "--report=no"])
    assert records.read(run).features[-2:].any()
    report.main([str(run), "--name=0=rows"])
    assert len(toy.table(run)) == 42


def test_fewer_photos_are_left_than_groups_were_asked_for(place, tmp_path, refused):
    photos, run = place / "photos", tmp_path / "eleven"
    flags = ["--n-clusters=11", "--config.eval.kmeans.n_clusters=9", "--report=no", *QUICK]
    images.main([str(photos), f"--workdir={run}", *flags])
    assert len(set(records.read(run).labels.tolist())) == 11
    for path in sorted(photos.iterdir())[6:]:
        path.unlink()
    update.main([f"--workdir={run}", "--yes", "--report=no"])
    assert len(toy.table(run)) == 6
    update.main([f"--workdir={run}", "--refit", "--report=no"])
    assert len(set(records.read(run).labels.tolist())) == 6
    said = "error: --n-clusters must be at most 6; got 7"
    assert refused(update.main, f"--workdir={run}", "--n-clusters=7") == said
    assert refused(images.main, str(photos), f"--workdir={run}", "--n-clusters=7", *QUICK) == said
    toy.save(photos, toy.photos(49)[0][40:], prefix="new")
    update.main([f"--workdir={run}", "--refit", "--report=no"])
    assert len(set(records.read(run).labels.tolist())) == 11


# XLA without AVX, OpenBLAS and NumPy without AVX-512, on whatever processor this is.
OLDER = {
    "XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2",
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
}


@pytest.mark.slow
def test_two_processors_of_other_instructions_give_the_same_ids(tmp_path):
    toy.save(tmp_path / "photos", toy.photos(48)[0])
    toy.save(tmp_path / "more", toy.photos(70)[0][48:], prefix="new")

    def run(*arguments, **environment):
        command = [sys.executable, "-W", "ignore", "-m", "cluster_jax.cli.app", *arguments]
        subprocess.run(command, check=True, cwd=tmp_path, env={**os.environ, **environment})

    run("images", "photos", "--workdir=first", "--report=no")
    digests, embeddings = [], []
    for name, environment in (("this", {}), ("older", OLDER)):
        shutil.copytree(tmp_path / "first", tmp_path / name)
        run("update", f"--workdir={name}", "more", "--report=no", **environment)
        rows = toy.table(tmp_path / name)
        ids = " ".join(f"{row['image']} {row['cluster']}" for row in rows)
        digests.append(hashlib.sha256(ids.encode()).hexdigest())
        embeddings.append(records.read(tmp_path / name).store)
    assert digests[0] == digests[1]
    if "avx512f" in pathlib.Path("/proc/cpuinfo").read_text():
        assert (embeddings[0] != embeddings[1]).any()  # They did compute by other instructions.


def test_a_title_written_into_a_file_leaves_the_photo(place, capsys):
    """What a person has decided holds, and so does the page; the export has the file of now."""
    run, photos = place / "run", place / "photos"
    state = io.read_json(run / "results.json")["state"]
    rows = toy.table(run)
    moved, wrong = rows[11], rows[23]
    other = next(row["cluster"] for row in rows if row["cluster"] != moved["cluster"])
    said = {"state": state, "labels": {"11": int(other)}, "wrong": [23]}
    (place / "c.json").write_text(json.dumps(said))
    report.main([str(run), f"--corrections={place}/c.json"])
    for row in (moved, wrong, rows[2]):
        tags = PngInfo()
        tags.add_text("Title", "the summer house")
        Image.open(photos / row["image"]).save(photos / row["image"], pnginfo=tags)
    (photos / rows[2]["image"]).rename(photos / "with a title.png")
    toy.save(photos, toy.photos(41)[0][40:], prefix="new")
    capsys.readouterr()
    update.main([f"--workdir={run}"])
    assert "1 photo is new; 1 photo is moved or renamed." in capsys.readouterr().out
    now = {row["image"]: row for row in toy.table(run)}
    assert (now[moved["image"]]["cluster"], now[wrong["image"]]["cluster"]) == (other, "-1")
    assert now["with a title.png"]["cluster"] == rows[2]["cluster"]
    assert int(now[moved["image"]]["bytes"]) > int(moved["bytes"])
    # Another one later, and nothing else: only the size of the file is another one.
    states = sorted(run.glob("run-*.npz"))
    tags.add_text("Author", "Ann")
    Image.open(photos / "30.png").save(photos / "30.png", pnginfo=tags)
    update.main([f"--workdir={run}"])
    assert "Nothing has happened" in capsys.readouterr().out
    size = {row["image"]: int(row.pop("bytes")) for row in toy.table(run)}
    assert size["30.png"] == (photos / "30.png").stat().st_size > int(now["30.png"]["bytes"])
    assert sorted(run.glob("run-*.npz")) == states
    report.main([str(run), f"--export={place}/sorted", "--by=copy"])
    assert b"summer house" in next((place / "sorted").glob(f"*/{moved['image']}")).read_bytes()


@pytest.mark.parametrize("name", ["07.png", "of another name.png"])
def test_what_an_older_page_says_of_a_photo_that_was_turned_since(place, name):
    """It is the same photo, though its features are others. Another one under its name is not."""
    run, photos = place / "run", place / "photos"
    first = records.read(run)
    other = next(label for label in np.unique(first.labels).tolist() if label != first.labels[7])
    said = {"state": first.state, "labels": {"7": other}, "wrong": [9]}
    (place / "c.json").write_text(json.dumps(said))
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    with Image.open(photos / first.names[7]) as file:
        file.save(photos / first.names[7], exif=exif)
    (photos / first.names[7]).rename(photos / name)
    (pixels,) = toy.photos(41)[0][40:]
    Image.fromarray(pixels).save(photos / first.names[9])
    update.main([f"--workdir={run}"])
    report.main([str(run), f"--corrections={place}/c.json"])
    after = records.read(run)
    where = dict(zip(after.names, after.labels.tolist(), strict=True))
    assert (where[name], after.columns["decided"].sum()) == (other, 1)
    kinds = {row["name"]: row["change"] for row in toy.table(run, "changes.csv")}
    assert kinds == {name: "changed", first.names[9]: "changed"}
    assert where[first.names[9]] >= 0


def test_a_photo_that_is_turned_by_its_tag_stays_and_is_seen_turned(place, capsys):
    """Its decision and the name of its cluster hold; features and thumbnail are those of now."""
    run, photos = place / "run", place / "photos"
    row = toy.table(run)[7]
    state = io.read_json(run / "results.json")["state"]
    other = next(one["cluster"] for one in toy.table(run) if one["cluster"] != row["cluster"])
    said = {"state": state, "labels": {"7": int(other)}, "names": {other: "mine"}}
    (place / "c.json").write_text(json.dumps(said))
    report.main([str(run), f"--corrections={place}/c.json"])
    before = records.read(run)

    def turn(name, orientation):
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = orientation
        with Image.open(photos / name) as file:
            file.save(photos / name, exif=exif)

    turn(row["image"], 6)
    capsys.readouterr()
    update.main([f"--workdir={run}"])
    assert "1 photo is changed." in capsys.readouterr().out
    now = toy.table(run)[7]
    assert (now["cluster"], now["decided"], now["name"]) == (other, "1", "mine")
    after = records.read(run)
    moved = np.flatnonzero(np.abs(after.features - before.features).max(axis=1) > 1e-3)
    assert moved.tolist() == [7]
    pictures = after.pictures()
    places = pictures.places(np.array([before.columns["row"][7], after.columns["row"][7]]))
    then, seen = (pictures.fetch(places[[i]])[0].astype(int) for i in range(2))
    assert np.abs(np.rot90(then, -1) - seen).mean() < 4 < np.abs(then - seen).mean()
    shown = page.report_data(after).changes
    assert (shown.gone, shown.left.max()) == ((), -1)
    # It leaves, and comes back turned once more under another name.
    (photos / row["image"]).rename(place / "z.png")
    update.main([f"--workdir={run}", "--report=no"])
    (place / "z.png").rename(photos / "z.png")
    turn("z.png", 3)
    update.main([f"--workdir={run}", "--report=no"])
    now = {one["image"]: one for one in toy.table(run)}["z.png"]
    assert (now["cluster"], now["decided"]) == (other, "1")
    last = records.read(run)
    again = last.features[last.names.index("z.png")]
    assert np.abs(again - after.features[7]).max() > 1e-3


def test_folders_that_are_away_or_have_moved(place, capsys, refused, monkeypatch):
    """A disk that is away is not a folder of deleted photos, and the page shows them."""
    run, more = place / "run", place / "more"
    toy.save(more, toy.photos(52)[0][40:], prefix="new")
    update.main([f"--workdir={run}", "more", "--report=no"])
    before = {row["image"]: row["cluster"] for row in toy.table(run)}
    # What only the update has added is damaged: the state before is there.
    shutil.copytree(run, place / "cut")
    content = (place / "cut/store-40.npz").read_bytes()
    (place / "cut/store-40.npz").write_bytes(content[:-4] + b"lost")
    update.main([f"--workdir={place}/cut", "--undo", "--report=no"])
    assert len(toy.table(place, "cut/assignments.csv")) == 40
    report.main([f"{place}/cut", "--name=0=cats", "--quiet"])
    update.main([f"--workdir={place}/cut", "more", "--report=no"])
    assert len(records.read(place / "cut").features) == 52
    more.rename(place / "disk")
    more.mkdir()  # where it is mounted
    (place / "photos" / "01.png").unlink()
    monkeypatch.chdir(place.parent)
    capsys.readouterr()
    update.main([f"--workdir={run}"])
    said = capsys.readouterr().out
    assert f"{more} is away or empty: its photos stay as they were, until it is back" in said
    assert f"--gone={more}.\n1 photo is gone." in said
    del before["photos/01.png"]
    assert {row["image"]: row["cluster"] for row in toy.table(run)} == before
    page = (run / "report.html").read_text()
    more.rmdir()  # Without its folder, too, the run can be named and undone.
    report.main([str(run), "--name=0=cats"])
    update.main([f"--workdir={run}", "--undo"])
    assert (run / "report.html").read_text() == page
    report.main([str(run), f"--export={place}/most"])
    assert "12 photos are away, and left out: bring " in capsys.readouterr().out
    (run / "store-0.npz").rename(place / "store-0.npz")
    assert "store-0.npz is damaged (it is not there)" in refused(report.main, str(run))
    (place / "store-0.npz").rename(run / "store-0.npz")
    (place / "disk").rename(more)
    update.main([f"--workdir={run}"])
    assert "Nothing has happened" in capsys.readouterr().out
    report.main([str(run), f"--export={place}/sorted"])
    # The whole folder elsewhere: its new place is taken.
    (place / "photos").rename(place / "pictures")
    update.main([f"--workdir={run}", f"{place}/pictures"])
    assert "39 photos are moved or renamed." in capsys.readouterr().out
    now = {row["image"].replace("pictures/", "photos/"): row["cluster"] for row in toy.table(run)}
    assert now == before
    # Another content under a known name is no photo of the run.
    shutil.copy(place / "pictures/02.png", place / "pictures/03.png")
    said = "pictures/03.png with another content: run `cluster-jax"
    assert said in refused(report.main, str(run), f"--export={place}/again")
    # Most of them gone: it asks; and two that are left are no error.
    for file in [*more.iterdir(), *(place / "pictures").iterdir()][2:]:
        file.unlink()
    (place / "pictures/x.png").write_bytes((more / min(os.listdir(more))).read_bytes())
    said = refused(update.main, f"--workdir={run}", "--report=no")
    assert re.search(r"\d+ of the 51 photos of \S+ would leave: name the folder in which", said)
    update.main([f"--workdir={run}", "--yes", "--report=no"])
    assert len(toy.table(run)) == 3


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--features=x.npy"], "PHOTOS must be given in place of --features"),
        (["nowhere"], "PHOTOS must be folders or files of images; got no nowhere"),
    ],
)
def test_bad_input(place, flags, said, refused):
    assert said in refused(update.main, f"--workdir={place}/run", *flags)


def test_all_photos_are_gone(place, refused):
    shutil.rmtree(place / "photos")
    said = "photos is not there or cannot be read; got none: name the folder in which"
    assert said in refused(update.main, f"--workdir={place}/run")


def test_a_second_folder_stays_until_a_person_says_that_it_is_gone(place, capsys, refused):
    """Whatever else is named, also a link to it, and an export has what is there."""
    run, more = place / "run", place / "more"
    toy.save(more, toy.photos(47)[0][40:], prefix="new")
    (place / "link").symlink_to(more)
    update.main([f"--workdir={run}", "more", "link", "--report=no"])
    assert len(toy.table(run)) == 47
    shutil.rmtree(more)
    report.main([str(run), f"--export={place}/before an update"])
    assert f"7 photos are away, and left out: bring {more} back" in (capsys.readouterr().out)
    for named in ([], ["--yes"], ["photos"]):
        capsys.readouterr()
        update.main([f"--workdir={run}", *named])
        said = capsys.readouterr().out
        assert f"{more} is away or empty: its photos stay as they were, until it is back" in said
        assert len(toy.table(run)) == 47
    report.main([str(run), f"--export={place}/sorted"])
    assert "7 photos are away, and left out" in capsys.readouterr().out
    assert len(list((place / "sorted").glob("*/*"))) == 40
    flag = re.search(r"by (--gone=\S+)\.", said)[1]
    assert "--gone must be a folder of" in refused(update.main, f"--workdir={run}", "--gone=x")
    update.main([f"--workdir={run}", flag])
    assert "7 photos are gone." in capsys.readouterr().out
    assert len(toy.table(run)) == 40
    assert "is away" not in (update.main([f"--workdir={run}"]), capsys.readouterr().out)[1]


def test_what_cannot_be_read_today_is_not_gone(place, capsys, monkeypatch):
    """A folder without permission, a file of a failing disk, and a link whose disk is away."""
    run, photos = place / "run", place / "photos"
    (photos / "sub").mkdir()
    for name in ("05.png", "06.png", "07.png"):
        (photos / name).rename(photos / "sub" / name)
    (photos / "08.png").rename(place / "disk.png")
    (photos / "08.png").symlink_to(place / "disk.png")
    update.main([f"--workdir={run}"])
    before = {row["image"]: row["cluster"] for row in toy.table(run)}
    assert len(before) == 40
    scandir, read_bytes = os.scandir, pathlib.Path.read_bytes

    def closed(path="."):
        if str(path) == str(photos / "sub"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    def failing(path):
        if path.name == "11.png":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return read_bytes(path)

    (place / "disk.png").rename(place / "away.png")
    monkeypatch.setattr(os, "scandir", closed)
    monkeypatch.setattr(pathlib.Path, "read_bytes", failing)
    report.main([str(run), f"--export={place}/sorted"])
    assert "5 photos are away, and left out: bring " in capsys.readouterr().out
    (photos / "12.png").unlink()
    update.main([f"--workdir={run}"])
    said = capsys.readouterr().out
    assert f"cannot be read, such as {photos}/11.png: what is there stays as it was." in said
    assert "1 photo is gone." in said
    now = {row["image"]: row["cluster"] for row in toy.table(run)}
    assert now == {name: cluster for name, cluster in before.items() if name != "12.png"}
    monkeypatch.undo()
    monkeypatch.chdir(place)
    (place / "away.png").rename(place / "disk.png")
    update.main([f"--workdir={run}"])
    assert "Nothing has happened" in capsys.readouterr().out


def test_a_file_that_cannot_be_read_is_on_the_page_as_long_as_it_is_there(place, capsys):
    """Also where no photo is new or gone, so that there is no new state."""
    run, file = place / "run", place / "photos" / "broken.jpg"
    file.write_bytes(b"no image")
    for is_there in (True, False):
        update.main([f"--workdir={run}"])
        said = capsys.readouterr()
        assert ("broken.jpg cannot be read" in said.err) == is_there
        assert "Nothing has happened" in said.out
        assert ("broken.jpg" in (run / "report.html").read_text()) == is_there
        file.unlink(missing_ok=True)
    assert records.read(run).number == 1


def test_the_only_folder_is_away_and_another_one_is_named(place, capsys):
    run = place / "run"
    toy.save(place / "card", toy.photos(48)[0][40:], prefix="new")
    (place / "photos").rename(place / "unplugged")
    update.main([f"--workdir={run}", "card"])
    assert "photos is away or empty" in capsys.readouterr().out
    assert len(toy.table(run)) == 48
    (place / "unplugged").rename(place / "photos")
    update.main([f"--workdir={run}", "--exclude=new0[0-4]*", "--exclude=07.*"])
    assert "6 photos are gone." in capsys.readouterr().out
    names = {row["image"] for row in toy.table(run)}
    assert len(names) == 42
    assert "photos/07.png" not in names
    update.main([f"--workdir={run}", "--exclude=07.*", "--exclude=*.raw"])
    said = capsys.readouterr().out
    assert said.endswith("\nFiles that match *.raw are left out from now on.\n"), "of no photo"
    assert "They are in" not in said
    update.main([f"--workdir={run}"])
    assert "Nothing has happened" in capsys.readouterr().out


def test_photos_and_run_move_together_twice(place, tmp_path, capsys, refused):
    """Any command works after each move, whichever came before; so does the command of the run."""
    labels = place / "labels.csv"
    names = [f"{i:02}.png" for i in range(40)]
    labels.write_text("".join(f"{name},{'ab'[i % 2]}\n" for i, name in enumerate(names)))
    flags = [f"--labels={labels}", "--n-clusters=3"]
    images.main([str(place / "photos"), f"--workdir={place}/run", *flags, *QUICK])
    home = place
    for number, do in enumerate(("update", "report", "images")):
        new = tmp_path / f"home{number}"
        shutil.move(home, new)
        home = new
        os.chdir(home)
        capsys.readouterr()
        if do == "update":
            toy.save(home / "photos", toy.photos(42)[0][40:], prefix="new")
            update.main(["--workdir=run"])
            assert "2 photos are new." in capsys.readouterr().out
        elif do == "report":
            report.main(["run", "--name=1=cats"])
        else:
            images.main(["photos", "--workdir=run", "--n-clusters=2", *QUICK])
            assert len(set(records.read(home / "run").labels.tolist())) == 2
        assert records.read(home / "run").names[:40] == tuple(names)
        assert "Nothing" in (update.main(["--workdir=run"]), capsys.readouterr().out)[1]
        scores = io.read_json(home / "run" / "results.json")["metrics"]["tree"]
        assert scores["ari"] is not None, "of the photos that have a label"
    # The outputs name the folders where the run is now, also if nothing else has happened.
    shutil.move(home, tmp_path / "last")
    home = tmp_path / "last"
    os.chdir(home)
    assert "Nothing" in (update.main(["--workdir=run"]), capsys.readouterr().out)[1]
    results = io.read_json(home / "run" / "results.json")
    assert results["config"]["data"]["dir"] == str(home / "photos")
    # Once each photo has a label, there are scores again.
    with (home / "labels.csv").open("a") as file:
        file.write("new00.png,a\nnew01.png,b\n")
    update.main(["--workdir=run", "--refit"])
    assert io.read_json(home / "run" / "results.json")["metrics"]["tree"]["ari"] is not None


def test_other_photos_come_to_the_place_that_photos_and_run_have_left(place, capsys):
    """They are no photos of the run."""
    report.main([f"{place}/run", "--name=1=cats"])
    before = toy.table(place / "run")
    new = shutil.move(place, place.with_name("there"))
    os.chdir(new)
    toy.save(place / "photos", toy.photos(44)[0][40:], prefix="other")
    update.main(["--workdir=run"])
    assert "Nothing has happened" in capsys.readouterr().out
    assert toy.table("run") == before
    images.main(["photos", "--workdir=run", *QUICK])
    assert "is finished" in capsys.readouterr().out
    assert f"{new}/photos" in (new / "run" / "config.json").read_text()


def test_labels_of_folders_stay(tmp_path):
    """Another folder beside the first one makes no other classes."""
    pictures, labels = toy.images(34, seed=2, channels=3)
    toy.save_by_label(tmp_path / "photos", pictures[:24], labels[:24])
    toy.save_by_label(tmp_path / "more", pictures[24:], labels[24:])
    photos, run = str(tmp_path / "photos"), f"--workdir={tmp_path}/run"
    images.main([photos, run, "--labels=folders", "--n-clusters=4", "--report=no", *QUICK])
    before = records.read(tmp_path / "run")
    update.main([run, str(tmp_path / "more"), "--report=no"])
    after = records.read(tmp_path / "run")
    assert after.label_names == before.label_names == ("0", "1", "2", "3")
    wanted = [int(name.split("/")[1]) for name in after.names]
    assert after.truth.tolist() == wanted
    assert len(wanted) == 34
    assert after.results["metrics"]["tree"]["ari"] is not None
    toy.save(tmp_path / "photos", toy.photos(35)[0][34:], prefix="in none")
    update.main([run, "--report=no"])
    after = records.read(tmp_path / "run")
    assert after.truth.tolist().count(-1) == 1
    assert after.results["metrics"]["tree"]["ari"] is not None, "of the others"


def test_an_export_of_new_photos_stays_out_of_the_photos_of_the_run(place, refused):
    """Its links would be photos of the next update."""
    toy.save(place / "new", toy.photos(3)[0])
    flags = [f"--workdir={place}/run", f"--images={place}/new", f"--out={place}/p.csv"]
    said = refused(predict.main, *flags, f"--export={place}/photos/sorted")
    assert f"must be outside of the images' folder {place}/photos; got" in said
