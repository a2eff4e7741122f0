"""Folders of images by cluster: links, safe names, nothing overwritten, nothing outside."""

import os
import zipfile

import numpy as np
import pytest
from PIL import Image

from cluster_jax.core.checks import InputError
from cluster_jax.data import datasets
from cluster_jax.data import folder as image_files
from cluster_jax.runs import begin, export
from cluster_jax.runs import run as records
from tests import toy

FIVE = np.zeros(5, int)  # photos in one cluster


@pytest.fixture
def photos(tmp_path):
    """A folder of files, and their paths in it."""
    sources = ("a/1.jpg", "b/1.jpg", "b/1_2.jpg", "b/1.JPG", "c/2.jpg")
    for source in sources:
        file = tmp_path / "photos" / source
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    return tmp_path / "photos", sources


def write(folder, photos, labels=FIVE, *, names=None, copies=(), by="link", run=None):
    """Writes an export; by default of a run whose folder is gone, so that it gets no record."""
    root, sources = photos
    where = export.places(labels, names or {}, "cluster", sources, copies)
    return export.write(folder, run or f"{root}.run", where, str(root), sources, by)


def _tree(folder):
    """Path of every file below a folder, and what is in it."""
    files = sorted(file for file in folder.rglob("*") if not file.is_dir())
    return {str(file.relative_to(folder)): file.read_text() for file in files}


def test_links_by_cluster_with_unique_names(photos, tmp_path):
    out = tmp_path / "new" / "out"
    assert write(out, photos, np.array([3, 3, 3, 3, 12])).folders == 2
    assert _tree(out) == {
        "cluster_03/1.jpg": "a/1.jpg",
        "cluster_03/1_2.jpg": "b/1.jpg",
        "cluster_03/1_2_2.jpg": "b/1_2.jpg",
        "cluster_03/1_3.JPG": "b/1.JPG",
        "cluster_12/2.jpg": "c/2.jpg",
    }
    for file in out.glob("*/*"):
        assert file.is_symlink()
        assert os.readlink(file).startswith("/")


def test_relative_folders_give_links_that_lead_somewhere(photos, tmp_path, monkeypatch):
    root, sources = photos
    monkeypatch.chdir(tmp_path)
    write("out", (root.name, sources))
    assert sorted(_tree(tmp_path / "out").values()) == sorted(sources)


@pytest.mark.parametrize("by", ["copy", "link"])
def test_copies_also_where_links_are_not_possible(photos, tmp_path, monkeypatch, by):
    def refuse(*arguments):
        raise PermissionError("no links")

    if by == "link":
        monkeypatch.setattr(os, "symlink", refuse)
    write(tmp_path / "out", photos, by=by)
    files = [file for file in (tmp_path / "out").glob("*/*.*") if file.is_file()]
    assert len(files) == 5
    assert not any(file.is_symlink() for file in files)


@pytest.mark.parametrize(
    ("labels", "folders"),
    [
        (["novel 0", "cat"], ["novel 0", "cat"]),
        (["../../x", "/etc"], ["x", "etc"]),
        (["A_B", "a b", "a/b", "a_b"], ["A_B", "a b", "a_b_2", "a_b_3"]),
        (["", "-rf", ".", ".."], ["class", "rf", "class_2", "class_3"]),
        (["x" * 300, "été"], ["x" * 60, "été"]),
    ],
)
def test_names_of_classes_are_safe(labels, folders):
    wanted = dict(zip(labels, folders, strict=True))
    assert export.folder_names(np.array(labels)) == wanted


def test_folders_have_the_names_of_their_clusters():
    labels = np.array([-1, 0, 1, 2, 3, 4, 5, 6, 10])
    names = {
        "0": "cats", "1": 'Ärzte / "x"\t猫', "2": "Cats", "-1": "none", "3": "Dr. No",
        "4": "dr. no", "5": "..", "6": "no_group",
    }  # fmt: skip
    assert export.folder_names(labels, names, "group") == {
        -1: "no_group", 0: "cats", 1: "Ärzte _ _x_猫", 2: "Cats_2", 3: "Dr. No", 4: "dr. no_2",
        5: "group_05", 6: "no_group_2", 10: "group_10",
    }  # fmt: skip


def test_names_of_all_scripts_stay_and_what_cannot_be_seen_goes():
    kept = ["हिन्दी", "สวัสดี", "🐱 Mia", "👨\u200d👩\u200d👧", "Žluťoučký kůň", "Ω"]
    assert [*export.folder_names(np.array(kept)).values()] == sorted(kept)
    # One written with a letter and an accent, one with both in one: the same name on macOS.
    assert [*export.folder_names(np.array(["e\u0301te\u0301", "été"])).values()] == ["été", "été_2"]
    hidden = {
        "0": "a\u202egpj.exe", "1": "b\u2028c", "2": "d\x85\x00e", "3": "$(rm) `x` *?;&|<>",
    }  # fmt: skip
    assert [*export.folder_names(np.arange(4), hidden).values()] == [
        "a_gpj.exe", "b_c", "d_e", "$(rm) `x` _;&",
    ]  # fmt: skip


def test_copies_have_a_folder_of_their_own(photos, tmp_path):
    root, sources = photos
    before, copies, out = _tree(root), {"b/1.jpg", "c/2.jpg"}, tmp_path / "out"
    assert write(out, photos, names={"0": "Copies"}, copies=copies).folders == 2
    assert sorted(_tree(out / "copies_2").values()) == sorted(copies)
    assert sorted(_tree(out / "Copies").values()) == sorted(set(sources) - copies)
    assert _tree(root) == before, "the originals stay as they are"


def test_the_longest_names_twice(tmp_path):
    long, wide = "x" * 251, "é" * 125
    sources = [f"a/{wide}.png", f"b/{wide}.png", f"c/{long}.png", f"d/{long}.png"]
    for name in sources:
        file = tmp_path / "in" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    write(tmp_path / "out", (tmp_path / "in", sources), FIVE[:4])
    made = sorted(file.name for file in (tmp_path / "out" / "cluster_00").iterdir())
    assert len(made) == 4
    assert sum(name.endswith("_2.png") for name in made) == 2


def test_hostile_labels_and_files_stay_in_the_folder(tmp_path):
    root, out = tmp_path / "w" / "photos", tmp_path / "w" / "out"
    root.mkdir(parents=True)
    (tmp_path / "secret.jpg").write_text("secret")
    (tmp_path / "w" / "x.jpg").write_text("x")
    before = set(tmp_path.rglob("*"))
    labels = np.array(["../../escaped", "../../escaped"])
    write(out, (root, ("../../secret.jpg", "../x.jpg")), labels)
    new = set(tmp_path.rglob("*")) - before
    assert all(file == out or file.is_relative_to(out) for file in new)
    assert sorted(_tree(out)) == ["escaped/secret.jpg", "escaped/x.jpg"]


def test_a_folder_that_is_not_empty_is_refused(photos, tmp_path):
    out = tmp_path / "out"
    (out / "cluster_00").mkdir(parents=True)
    (out / "cluster_00" / "mine.jpg").write_text("mine")
    with pytest.raises(InputError, match=r"or have an earlier export of this run; got"):
        write(out, photos)
    assert _tree(out) == {"cluster_00/mine.jpg": "mine"}
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for path in ("file", "dangling"):
        with pytest.raises(InputError, match="must be new or empty"):
            export.check(tmp_path / path, tmp_path / "run")
    (tmp_path / "empty").mkdir()
    for path in ("empty", "a/b"):
        assert export.check(tmp_path / path, tmp_path / "run") == tmp_path / path
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("by", ["copy", "link"])
def test_an_earlier_export_is_replaced_and_all_else_stays(photos, tmp_path, monkeypatch, by):
    root, sources = photos
    out, run = tmp_path / "out", tmp_path / "run"
    run.mkdir()
    names = {"1": "Tom & Ann", "2": "a; b"}
    write(out, photos, np.array([0, 0, 1, 1, 2]), names=names, by=by, run=run)
    with pytest.raises(InputError, match="or have an earlier export of this run"):
        write(out, photos, run=tmp_path)  # Another run has made none.
    (out / "cluster_00" / "note.txt").write_text("mine")
    changed = out / "Tom & Ann" / "1_2.jpg"
    changed.unlink()
    changed.write_text("edited")
    (out / "album").mkdir()
    (out / "album" / "1.jpg").write_text("mine, too")
    (root / "d").mkdir()
    (root / "d" / "1_2.jpg").write_text("d/1_2.jpg")
    more = (root, (*sources, "d/1_2.jpg"))
    before = _tree(out)

    def full(*arguments):
        raise OSError("No space left on device")

    with monkeypatch.context() as full_disk:
        full_disk.setattr(export, "_put", full)
        with pytest.raises(OSError, match="No space"):
            write(out, more, np.array([1, 1, 1, 1, 1, 1]), names=names, by=by, run=run)
        assert _tree(out) == before
    for _ in range(2):  # Twice the same.
        write(out, more, np.array([1, 1, 1, 1, 1, 1]), names=names, by=by, run=run)
        assert _tree(out) == {
            "Tom & Ann/1.jpg": "a/1.jpg",
            "Tom & Ann/1_2.jpg": "edited",
            "Tom & Ann/1_3.jpg": "b/1.jpg",
            "Tom & Ann/1_2_2.jpg": "b/1_2.jpg",
            "Tom & Ann/1_4.JPG": "b/1.JPG",
            "Tom & Ann/2.jpg": "c/2.jpg",
            "Tom & Ann/1_2_3.jpg": "d/1_2.jpg",
            "album/1.jpg": "mine, too",
            "cluster_00/note.txt": "mine",
        }
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == [
        "Tom & Ann", "album", "cluster_00",
    ]  # fmt: skip


def test_a_file_with_the_name_of_a_folder_stays(photos, tmp_path):
    out, run = tmp_path / "out", tmp_path / "run"
    run.mkdir()
    write(out, photos, run=run)
    (out / "cats").write_text("mine")
    before = _tree(out)
    with pytest.raises(InputError, match="out/cats must be a folder; got a file: name it otherw"):
        write(out, photos, names={"0": "cats"}, run=run)
    assert _tree(out) == before


def test_the_last_copy_of_a_photo_stays(photos, tmp_path):
    """Of a photo that is away or gone; one that has moved or got a tag leaves no second copy."""
    root, _ = photos
    out, run = tmp_path / "out", tmp_path / "run"
    run.mkdir()
    write(out, photos, np.array([0, 0, 1, 1, 1]), by="copy", run=run)
    (root / "a" / "1.jpg").unlink()
    (root / "b" / "1_2.jpg").rename(root / "c" / "moved.jpg")
    (root / "c" / "2.jpg").write_text("c/2.jpg, with a title")
    left = (root, ("b/1.jpg", "c/moved.jpg", "b/1.JPG", "c/2.jpg"))
    for by in ("copy", "link", "copy"):
        made = write(out, left, np.array([0, 1, 1, 0]), by=by, run=run)
        assert made.kept == 1
        assert "\n1 earlier copy stays, of photos that are away or gone" in export.told(made, out)
        assert _tree(out) == {
            "cluster_00/1.jpg": "a/1.jpg",
            "cluster_00/1_2.jpg": "b/1.jpg",
            "cluster_00/2.jpg": "c/2.jpg, with a title",
            "cluster_01/moved.jpg": "b/1_2.jpg",
            "cluster_01/1.JPG": "b/1.JPG",
        }
    # It is back, and its copy is replaced again, also by an export without it.
    (root / "a" / "1.jpg").write_text("a/1.jpg")
    assert write(out, left, np.zeros(4, int), by="copy", run=run).kept == 0
    assert write(out, (root, ("b/1.jpg",)), np.zeros(1, int), by="copy", run=run).kept == 0
    assert _tree(out) == {"cluster_00/1.jpg": "b/1.jpg"}


def test_a_drive_that_refuses_links_times_and_modes(photos, tmp_path, monkeypatch):
    def refuse(path, *arguments, **options):
        raise PermissionError(1, "Operation not permitted", str(path))

    for name in ("symlink", "chmod", "utime"):
        monkeypatch.setattr(os, name, refuse)
    for i, by in enumerate(("copy", "link")):
        out = tmp_path / f"out{i}"
        write(out, photos, by=by)
        assert sorted(_tree(out).values()) == sorted(photos[1])


def test_new_kinds_have_a_folder_of_their_own():
    labels, new = np.array([0, 1, 1]), np.array([False, False, True])
    names = {"0": "Maybe new"}
    assert export.places(labels, names, "group", "abc", new=new) == [
        "Maybe new", "group_01", "maybe new_2",
    ]  # fmt: skip


def test_folders_that_cannot_be_used(photos, tmp_path, monkeypatch):
    root, run = photos[0], tmp_path / "runs" / "x"
    with pytest.raises(InputError, match="must be a local one; got gs://"):
        export.check("gs://bucket/out", run)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="in a folder that can be written"):
        export.check(tmp_path / "file" / "out", run)
    (tmp_path / "link").symlink_to(root)
    for inside in (root / "out", tmp_path / "link" / "out"):
        with pytest.raises(InputError, match="outside of the images' folder"):
            export.check(inside, run, [root])
    for holds in (run.parent, run):
        with pytest.raises(InputError, match="must not hold the workdir"):
            export.check(holds, run, [root])
    export.check(run / "out", run, [root])
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(InputError, match="in a folder that can be written"):
        export.check(tmp_path / "out", run)


def test_beside_several_folders_but_in_none_of_them(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / f"{name}.jpg").touch()
    given = image_files.folders("\n".join(str(tmp_path / name) for name in ("a", "b", "a.jpg")))
    assert given == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert export.check(tmp_path / "out", tmp_path / "run", given) == tmp_path / "out"
    for name in ("a", "b"):
        with pytest.raises(InputError, match=f"outside of the images' folder .*/{name}; got"):
            export.check(tmp_path / name / "out", tmp_path / "run", given)
    assert image_files.folders(str(tmp_path / "a.jpg")) == []
    (tmp_path / "x.zip").touch()
    assert image_files.folders(str(tmp_path / "x.zip")) == [str(tmp_path / "x.zip")]


def test_source_files_that_are_gone(photos, tmp_path):
    (photos[0] / "c" / "2.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"2\.jpg"):
        write(tmp_path / "out", photos)
    assert not any((tmp_path / "out").iterdir())


def test_what_an_error_interrupts_is_removed(photos, tmp_path, monkeypatch):
    root, sources = photos
    link = os.symlink

    def fail(source, target):
        if "2.jpg" in str(source):
            raise KeyboardInterrupt
        link(source, target)

    monkeypatch.setattr(os, "symlink", fail)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "out", photos)
    assert not any((tmp_path / "out").iterdir())
    assert _tree(root) == dict(zip(sources, sources, strict=True))


def test_what_a_kill_has_left_behind_is_replaced(photos, tmp_path, monkeypatch):
    """No record of the run knows it; the same export was refused, as the folder is not empty."""
    out = tmp_path / "out"
    with monkeypatch.context() as patch:  # A killed process removes nothing, and records nothing.
        patch.setattr(export.shutil, "rmtree", lambda *arguments, **more: None)
        patch.setattr(export, "_record", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write(out, photos)
    assert len(_tree(out)) == 5
    write(out, photos)
    assert [path.name for path in out.iterdir()] == ["cluster_00"]
    assert len(_tree(out)) == 5


def test_photos_of_a_zip_are_copied(tmp_path):
    packed, names = tmp_path / "photos.zip", [f"{i % 2}/{i // 2}.png" for i in range(3)]
    names += ["é" * 400 + ".png"]
    for i, pixels in enumerate(toy.images(4, channels=3)[0]):
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    with zipfile.ZipFile(packed, "w") as file:
        for i, name in enumerate(names):
            file.write(tmp_path / f"{i}.png", name)
    dataset = datasets.load_new(str(packed), toy.DATA, (8, 8, 3))
    labels = np.array([0, 0, 1, 0])
    write(tmp_path / "out", (packed, dataset.sources), labels)
    made = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.png")}
    assert len(made) == 4
    assert sorted(made.values()) == sorted((tmp_path / f"{i}.png").read_bytes() for i in range(4))


@pytest.mark.usefixtures("one_device", "compiled_once")
def test_photos_of_a_training_are_compared_as_an_update_does(tmp_path):
    """Those of other classes or above the limit are none of its own; what is away is left out."""
    photos = tmp_path / "photos"
    toy.save_by_label(photos, *toy.images(60, channels=3))
    data = {"name": "folder", "labels": "folders", "classes": (0, 2, 3), "limit": 50}
    dirs = "\n".join(str(photos / str(label)) for label in range(4))
    begin.run_pipeline(toy.config(dirs, data=data), tmp_path / "run")
    run = records.read(tmp_path / "run")
    tops = {place: [name for name in run.names if name[0] == place] for place in "0123"}
    assert not tops["1"]
    assert len(run.names) < len([*photos.rglob("*.png")]) - 15

    def exported(name):
        left_out, away = export.check_of_run(tmp_path / name, run)
        export.run_clusters(run, tmp_path / name, left_out=left_out)
        assert len([*(tmp_path / name).glob("*/*")]) == len(run.names) - len(left_out)
        return {run.names[row] for row in left_out}, away

    def refused(name, said):
        with pytest.raises(InputError, match=f"got {name} {said}: put it back$"):
            export.check_of_run(tmp_path / "refused", run)

    toy.save(photos / "1", toy.images(9, seed=1, channels=3)[0], prefix="a")  # came later
    assert exported("all")[0] == set()
    first, second, third = tops["0"][:3]
    tags = Image.Exif()
    tags[0x112] = 3  # turned by half
    Image.open(photos / first).save(photos / first, exif=tags)
    content = (photos / second).read_bytes()
    (photos / second).write_bytes(content[:60])
    assert exported("cut") == ({second}, [str(photos / second)] * 2)
    (photos / "3").rename(tmp_path / "3")
    left_out, away = exported("most")
    assert (left_out, away[0]) == ({second, *tops["3"]}, str(photos / "3"))
    (photos / second).write_bytes((photos / third).read_bytes())
    refused(second, "with another content")
    (photos / second).rename(photos / "0" / "later.png")
    refused(second, "gone")
    (photos / "0" / "later.png").write_bytes(content)
    refused(second, "gone")
    (photos / "0" / "later.png").rename(photos / second)
    assert exported("again")[0] == {*tops["3"]}
    photos.rename(tmp_path / "pictures")
    with pytest.raises(InputError, match=r"must be there; got none: bring .*/0 and 3 more back$"):
        export.check_of_run(tmp_path / "none", run)
