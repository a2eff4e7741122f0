"""Folders as cameras, phones, NAS and programs leave them; lists, several folders, zips."""

import os
import socket
import zipfile

import pytest

from cluster_jax.core.checks import InputError
from cluster_jax.core.names import natural
from cluster_jax.data import datasets, scan
from tests.data.test_folder import load
from tests.rows import every_row


def put(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"content")


def names(folder, **options):
    return list(scan.find(str(folder), **options).names)


def test_numbers_in_names_are_numbers(tmp_path):
    put(tmp_path, "img_10.jpg", "img_2.jpg", "img_02.jpg", "9/b.jpg", "10/a.jpg", "Img_3.jpg")
    expected = ["9/b.jpg", "10/a.jpg", "Img_3.jpg", "img_02.jpg", "img_2.jpg", "img_10.jpg"]
    assert names(tmp_path) == expected
    assert sorted(["7" * 200, "a", "1", ""], key=natural) == ["", "1", "7" * 200, "a"]


@every_row(
    ("folder", "kind"),
    [
        ("@eaDir/a.jpg", "in @eaDir"),
        ("x/#recycle", "in #recycle"),
        ("@Recycle/deep/er", "in @Recycle"),
        ("$RECYCLE.BIN", "in $RECYCLE.BIN"),
        ("__MACOSX/x", "in __MACOSX"),
        (".thumbnails", "with a dot before the name"),
        (".git/objects", "with a dot before the name"),
        ("Android/data/app", "in Android/data"),
        ("Catalog Previews.lrdata/1", "in Catalog Previews.lrdata"),
        ("data/appdata_ocx1/preview", "in appdata_ocx1"),
        ("CaptureOne/Cache/Thumbnails", "in CaptureOne/Cache"),
        ("A.photoslibrary/resources/derivatives", "in A.photoslibrary/resources"),
        ("volume1/@sharebin/x", "in @sharebin"),
        ("@tmp", "in @tmp"),
        ("immich/encoded-video/u", "in encoded-video"),
        ("storage/sidecar/2024", "in storage/sidecar"),
        (".photoprism/cache", "with a dot before the name"),
        ("A.cocatalog/Cache/Thumbnails", "in A.cocatalog/Cache"),
        ("Takeout/Google Fotos/Papierkorb", "in Google Fotos/Papierkorb"),
        ("films/A.trickplay/320 - 10x10", "in A.trickplay"),
        ("Plex Media Server/Metadata/Movies", "in Plex Media Server"),
        ("CacheClip/0a1b", "in CacheClip"),
        ("me/AppData/Local/Temp", "in AppData/Local"),
    ],
)
def test_folders_without_photos_are_counted(tmp_path, folder, kind):
    put(tmp_path, "1.jpg", f"{folder}/thumb.jpg", f"{folder}/more/2.jpg")
    found = scan.find(str(tmp_path))
    assert found.names == ("1.jpg",)
    assert found.ignored == ((kind, 2),)
    assert len(names(tmp_path, include_all=True)) == 3


@every_row(
    ("folder", "neighbor"),
    [
        ("thumbs", "encoded-video"),
        ("profile", "encoded-video"),
        ("backups", "encoded-video"),
        ("Trash", "Selects"),
    ],
)
def test_ordinary_names_are_those_of_a_program_beside_its_other_folders(tmp_path, folder, neighbor):
    put(tmp_path, f"mine/{folder}/1.jpg", f"x/{folder}/u/2.jpg", f"x/{neighbor}/note.txt")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for path in tmp_path.glob("*/**/*.*"):
            archive.write(path, path.relative_to(tmp_path))
    for place in (tmp_path, tmp_path / "a.zip"):
        found = scan.find(str(place))
        assert found.names == (f"mine/{folder}/1.jpg",)
        assert (f"in {folder}", 1) in found.ignored
        assert f"1 in {folder} ({scan.NO_PHOTOS_BESIDE[folder.lower()][1]})" in (
            scan.describe_ignored(found.ignored)
        )


def test_a_library_of_photos_keeps_its_originals(tmp_path):
    put(tmp_path, "A.photoslibrary/originals/0/1.jpg", "A.photoslibrary/resources/1.jpg")
    assert names(tmp_path) == ["A.photoslibrary/originals/0/1.jpg"]
    put(tmp_path, "android/media/wa.jpg", "eaDir/1.jpg")  # names that only look alike
    assert len(names(tmp_path)) == 3


def test_excluded_by_the_user(tmp_path):
    put(tmp_path, "1.jpg", "2_small.jpg", "web/3.jpg", "a/web/4.jpg", "a/old/5.jpg")
    found = scan.find(str(tmp_path), ["*_small.*", "web", "a/ol*"])
    assert (found.names, found.ignored) == (("1.jpg",), (("excluded", 4),))


def test_suffixes_are_those_of_pillow(tmp_path):
    kinds = ("jfif", "JPE", "jp2", "ppm", "pgm", "tga", "ico", "JPEG", "Webp", "mpo")
    put(tmp_path, *(f"{i}.{kind}" for i, kind in enumerate(kinds)))
    put(tmp_path, "ride.fit", "film.mpg", "page.eps", "table.h5", "patch.msp")
    found = scan.find(str(tmp_path))
    assert len(found.names) == len(kinds)
    assert [kind for kind, _ in found.ignored] == [".eps", ".fit", ".h5", ".mpg", ".msp"]


def test_pipes_and_sockets_are_no_images(tmp_path):
    put(tmp_path, "1.jpg")
    os.mkfifo(tmp_path / "2.jpg")
    os.symlink(tmp_path / "2.jpg", tmp_path / "3.jpg")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(tmp_path)  # Paths of sockets are short.
        server.bind("4.jpg")
        os.chdir(here)
    found = scan.find(str(tmp_path))
    assert (found.names, found.ignored) == (("1.jpg",), (("pipes or devices", 3),))


def test_links_to_what_is_there_count_once(tmp_path):
    put(tmp_path, "z/1.jpg", "other/2.jpg", "outside/3.jpg")
    photos = tmp_path / "photos"
    photos.mkdir()
    os.rename(tmp_path / "z", photos / "z")
    (photos / "a").symlink_to(photos / "z")
    (photos / "again.jpg").symlink_to(photos / "z" / "1.jpg")
    (photos / "loop").symlink_to(photos)
    (photos / "one").symlink_to("two")
    (photos / "two").symlink_to("one")
    (photos / "linked").symlink_to(tmp_path / "outside")
    (photos / "2.jpg").symlink_to(tmp_path / "other" / "2.jpg")
    (photos / "all").symlink_to("..")
    (photos / "z" / "disk").symlink_to("/")
    found = scan.find(str(photos))
    assert found.names == ("2.jpg", "linked/3.jpg", "z/1.jpg")
    assert ("links to other photos here", 1) in found.ignored
    assert ("links to a folder around this one", 2) in found.ignored
    said = scan.describe_ignored(found.ignored)
    assert said.endswith("2 links to a folder around this one, 1 link to another photo here")


def test_a_folder_that_cannot_be_read(tmp_path, write, monkeypatch):
    write("1.png")
    write("lost+found/3.png")
    scandir = os.scandir

    def refuse(path):
        if os.path.basename(path) == "lost+found":
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    dataset = load(tmp_path)
    assert dataset.sources == ("1.png",)
    assert dataset.skipped == (("lost+found/", "PermissionError: Permission denied"),)
    assert dataset.notes == (
        "the folder lost+found/ cannot be read (PermissionError: Permission denied)",
    )
    with pytest.raises(InputError, match=r"found must be a folder that can be read; got Perm"):
        load(tmp_path / "lost+found")


def test_several_folders_and_files(tmp_path, write):
    for name in ("a/1.png", "a/2.png", "b/c/3.png", "b/4.png", "d.png"):
        write(name)
    chosen = "\n".join(str(tmp_path / name) for name in ("b", "a", "a/1.png", "d.png", "b/c"))
    dataset = load(chosen)
    assert dataset.sources == ("a/1.png", "a/2.png", "b/4.png", "b/c/3.png", "d.png")
    assert str(scan.root(chosen)) == str(tmp_path)
    assert scan.shown(chosen) == f"{tmp_path / 'b'} and 4 more"
    with pytest.raises(InputError, match=r"nosuch must be a folder or an image; got no such file"):
        load(f"{tmp_path}/a\n{tmp_path}/nosuch")


def test_a_list_of_names(tmp_path, write):
    write("x/1.png")
    write("x/2 3.png")
    (tmp_path / "list.txt").write_text("x/2 3.png\n\nx/1.png\n")
    name = f"@{tmp_path}/list.txt"
    assert load(name).sources == ("1.png", "2 3.png")
    (tmp_path / "list.txt").write_text("x/9.png\n")
    said = r"line 1 of .*list\.txt must be a folder or an image; got x/9\.png, which does not exist"
    with pytest.raises(InputError, match=said):
        load(name)
    lists = (
        b"x\\1.png\r\nx\\2 3.png\r\n",
        b'"x/1.png"\n"x/2 3.png"',
        "x/1.png\nx/2 3.png".encode("utf-16"),
    )
    for content in lists:  # Of Windows, with quotes, of an editor of Windows.
        (tmp_path / "list.txt").write_bytes(content)
        assert load(name).sources == ("1.png", "2 3.png")
    with pytest.raises(InputError, match="must be @ and a text file of names"):
        load(f"@{tmp_path}/absent.txt")


def test_a_zip_is_read_in_place(tmp_path, write):
    pictures = {name: write(name) for name in ("t/10.png", "t/2.png", "__MACOSX/t/._2.png")}
    with zipfile.ZipFile(tmp_path / "p.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in (*pictures, "t/.hidden.png"):
            archive.write(tmp_path / name if name in pictures else tmp_path / "t/2.png", name)
        archive.writestr("notes.txt", "x")
    for cache_mb in (1.0, 0.0):
        dataset = load(tmp_path / "p.zip", cache_mb=cache_mb)
        assert dataset.sources == ("t/2.png", "t/10.png")
        assert (dataset.fetch([1])[0] == pictures["t/10.png"]).all()
        kinds = [(".txt", 1), ("in __MACOSX", 1), ("with a dot before the name", 1)]
        assert sorted(dataset.ignored) == kinds
    assert datasets.load_new(tmp_path / "p.zip", _config(), (6, 6, 3)).size == 2
    (tmp_path / "bad.zip").write_bytes(b"PK no zip")
    with pytest.raises(InputError, match=r"bad\.zip must be a zip archive; got File is not a zip"):
        load(tmp_path / "bad.zip")


def _config():
    return datasets.DataConfig(
        name="folder", dir=None, split=None, label="label", image_size=None,
        interpolation="bicubic", limit=None, cache_mb=1.0, max_corrupt_fraction=0.0,
    )  # fmt: skip


def test_what_to_do_with_archives_and_files_without_a_suffix(tmp_path):
    (tmp_path / "takeout-001.zip").write_bytes(b"x")
    (tmp_path / "old.rar").write_bytes(b"x")
    (tmp_path / "d41d8cd98f").write_bytes(b"x")
    with pytest.raises(InputError) as caught:
        scan.find(str(tmp_path))
    assert "1 .rar (unpack them), 1 .zip (unpack them, or give one alone)" in str(caught.value)
    assert str(caught.value).endswith("not read: add .jpg to their names")


def test_a_zip_that_unpacks_to_much_and_leads_outside(tmp_path, write, monkeypatch):
    write("1.png")
    monkeypatch.setattr(scan, "_MOST_UNPACKED", 1_000)
    with zipfile.ZipFile(tmp_path / "p.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(tmp_path / "1.png", "1.png")
        archive.write(tmp_path / "1.png", "a/../../2.png")
        archive.writestr(zipfile.ZipInfo("/3.png"), b"x")
        archive.writestr("bomb.jpg", bytes(1_001))
        archive.writestr("inner.zip", b"PK")
    dataset = load(tmp_path / "p.zip", max_corrupt_fraction=0.5)
    assert dataset.sources == ("1.png",)
    assert dataset.skipped == (
        ("bomb.jpg", "ValueError: 1,001 bytes once unpacked; at most 1,000 are read"),
    )
    assert dataset.ignored == ((".zip", 1), ("that lead out of the archive", 2))


def test_a_page_in_place_of_a_photo(tmp_path, write):
    write("1.png")
    (tmp_path / "2.jpg").write_bytes(b"<!DOCTYPE html><title>403</title>")
    assert load(tmp_path, max_corrupt_fraction=0.5).skipped == (
        ("2.jpg", "a web page or other text with tags"),
    )


def test_a_link_to_itself_is_a_photo_that_cannot_be_read(tmp_path, write):
    write("1.png")
    os.symlink("2.png", tmp_path / "2.png")
    os.symlink("a.png", tmp_path / "b.png")
    os.symlink("b.png", tmp_path / "a.png")
    dataset = load(tmp_path, max_corrupt_fraction=0.9)
    assert dataset.sources == ("1.png",)
    assert [name for name, _ in dataset.skipped] == ["2.png", "a.png", "b.png"]


def test_a_folder_whose_name_has_two_lines(tmp_path, write):
    write("two\nlines/1.png")
    write("two/2.png")
    folder = str(tmp_path / "two\nlines")
    assert scan.find(folder).names == ("1.png",)
    assert (str(scan.root(folder)), scan.folders(folder)) == (folder, [folder])
    both = f"{tmp_path}/two\n{folder}/1.png"
    with pytest.raises(InputError, match="must be a folder or an image"):
        scan.find(both)


def test_of_many_kinds_of_ignored_files_some_are_named():
    kinds = [(f".{'x' * 20}{i:02}", 7) for i in range(30)]
    assert len(scan.describe_ignored(kinds[:7]).split(", ")) == 7
    said = scan.describe_ignored([*kinds, (".many", 1_000), (".rar", 1)])
    assert said.startswith("1 .rar (unpack them), 1,000 .many, 7 .xxx")
    assert said.endswith(", 168 of 24 other kinds")
    assert len(said) < 250
