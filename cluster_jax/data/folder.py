"""Image folders: nested or flat, with or without class folders; a zip, or single files."""

import collections
import errno
import fnmatch
import functools
import itertools
import os
import pathlib
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from cluster_jax.core import checks
from cluster_jax.core.checks import InputError
from cluster_jax.core.names import composed, natural
from cluster_jax.data import decode, images
from cluster_jax.data.images import DataConfig, Dataset

_HEIC = (".heic", ".heif", ".hif")
# Suffixes of images, in lower case; others name something else, such as the ride of a sports watch.
SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".webp", ".tif", ".tiff", ".bmp"),
    *(".dib", ".gif", ".avif", ".avifs", ".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k", ".jpx"),
    *decode.HEIC,
    *decode.RAW,
)
_ARCHIVES = (".zip", ".rar", ".7z", ".tar", ".gz", ".tgz", ".tbz2", ".xz", ".parquet")
# Kinds of what is left out besides suffixes.
_HIDDEN, _EXCLUDED = "with a dot before the name", "excluded"
_SPECIAL = "links to folders, broken links, pipes or devices"
_TWIN = "raw beside an image of the same name"
_OUTSIDE = "that lead out of the archive"
# Kind of what is left out -> what a user can do so that it is read.
_TO_DO = {
    "": " (images need one, such as .jpg)",
    **dict.fromkeys(_HEIC, " (to read HEIC: pip install pillow-heif)"),
    **dict.fromkeys(decode.RAW, " (to read raw photos: pip install rawpy)"),
    **dict.fromkeys(_ARCHIVES, " (unpack them)"),
}
# Bytes that a file in a zip may have once it is unpacked, which bounds memory.
_MOST_UNPACKED = 2**30

# Globs of folders whose pictures are no photos of the user's, in lower case, some with the folder
# above. Folders that begin with a dot are left out anyway.
NO_PHOTOS = (
    # Network drives: thumbnails, deleted files, snapshots.
    *("@eadir", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "@thumb", "@tmp"),
    # Systems: deleted files, caches, programs.
    *("$recycle.bin", "system volume information", "appdata/local", "__macosx", "library/caches"),
    *("*.app", "android/data", "android/obb", "node_modules"),
    # Programs for photos: previews, deleted files; Apple's libraries but their originals.
    *("captureone/cache", "*.cocatalog/cache", "*.lrdata", "*.dtrash", "appdata_oc*"),
    *("files_trashbin", "google photos/trash", "google photos/bin", "google fotos/papierkorb"),
    *("*.photoslibrary/[!om]*", "*.photolibrary/[!om]*", "*.aplibrary/[!om]*"),
)


class Files(NamedTuple):
    """Image files.

    Attributes:
        root: the folder that `names` are relative to; of a zip, the zip.
        names: paths of the files with "/", relative to `root`, in the order of `natural`; if only
            files were named, as they were named.
        read: name -> the bytes of the file; raises an OSError if the file cannot be read, and other
            errors for a damaged entry of a zip.
        ignored: (suffix or kind, number) of other files.
        unreadable: (path, reason) of folders that cannot be read.
    """

    root: pathlib.Path
    names: tuple[str, ...]
    read: Callable[[str], bytes]
    ignored: tuple[tuple[str, int], ...]
    unreadable: tuple[tuple[str, str], ...] = ()


def load(config: DataConfig, known: np.ndarray | None = None) -> Dataset:
    """Loads the images of `data.dir` and all its subfolders, in the order of paths, as RGB.

    With `data.labels` "folders", labels are the first-level subfolders if there are at least two
    and every image lies in one. See `images.load` for what is read when.

    Args:
        config: the section `data`.
        known: facts about files, see `images.ItemReader`.

    Raises:
        InputError: the folder is missing or has no image. Without `data.image_size` the first
            readable image is read, and too many files may turn out to be unreadable. Later `fetch`
            raises it for this reason, and if images differ in size.
        OSError: a disk or network fails, or a file was deleted; `fetch` raises it, too.
    """
    listing = find(config.dir, config.exclude)
    labels, label_names = _labels(listing) if config.labels == "folders" else (None, None)

    def read(i: int) -> bytes:
        return listing.read(listing.names[i])

    return images.load(
        "folder",
        images.ItemReader(read, listing.names, config, str(listing.root), known=known),
        labels=labels,
        label_names=label_names,
        skipped=listing.unreadable,
        ignored=listing.ignored,
        notes=tuple(_notes(listing)),
    )


def find(dir: str | None, exclude: Sequence[str] = ()) -> Files:
    """Finds the images of `data.dir`, see `DataConfig`.

    Folders are searched with their subfolders, but not links to folders; one that is given twice,
    once by a link, is searched once. A raw photo beside an
    image of the same name counts once. Files that are named one by one are taken whatever their
    name; without a folder or zip beside them they keep their order and repeats.

    Args:
        dir: a folder, a `.zip`, or several folders and files, one a line.
        exclude: globs of names, or of paths in the folder, that are left out.

    Raises:
        InputError: a path in `dir` does not exist, cannot be read or is an address such as
            `gs://...`, a zip is not alone, `dir` is None, or there is no image.
    """
    paths = _given(dir or "")
    if not paths:
        raise InputError("data.dir must be a folder of images; got none")
    for name, path in paths.items():
        if not (os.path.isdir(path) or os.path.isfile(path)):
            raise InputError(f"data.dir must be an existing folder of images; got {name}")
    if len(paths) > 1 and (zips := [name for name, path in paths.items() if _is_zip(path)]):
        must = "data.dir must be folders and files of images, or a .zip alone"
        raise InputError(f"{must}; got {zips[0]} and {len(paths) - 1:,} more: unpack it")
    base = root(dir or "")
    unreadable: list[tuple[str, str]] = []
    kind_of = _sorter(exclude)
    # Why a file is left out, by its path; None: it is an image.
    kinds: dict[str, str | None] = {}
    if _is_zip(base):
        names, read = _unzipped(base)
        for file in names:
            leads_out = bool({"..", ""} & set(file.split("/")))
            kinds[file] = _OUTSIDE if leads_out else kind_of(file)
    else:
        read = reader(dir or "")
        for path in _without_links_to_others([*paths.values()]):
            prefix = _prefix(path, base)
            for file in _walk(path, prefix, unreadable) if os.path.isdir(path) else ():
                is_file = os.path.isfile(os.path.join(path, file))
                kinds[prefix + file] = kind_of(file) if is_file else _SPECIAL
            if path.is_file():
                kinds[prefix.removesuffix("/")] = None
    _leave_out_raw(kinds)
    files = sorted((file for file, kind in kinds.items() if kind is None), key=natural)
    if not folders(dir or ""):
        named = [os.path.relpath(paths[line], base) for line in str(dir).split("\n") if line]
        files = [file for file in named if kinds[file] is None]
    others = collections.Counter(kind for kind in kinds.values() if kind is not None)
    ignored = tuple(sorted(others.items()))
    if not files:
        parts = [f"; other files: {describe_ignored(ignored)}"] if ignored else []
        parts += [f"; {path} cannot be read ({reason})" for path, reason in unreadable[:1]]
        must = "data.dir must hold images, such as jpg, png, tif, webp or heic"
        where = f"{shown(dir or '')} or its subfolders{''.join(parts)}"
        raise InputError(f"{must}; got no image file in {where}")
    return Files(base, tuple(files), read, ignored, tuple(unreadable))


def _without_links_to_others(paths: Sequence[pathlib.Path]) -> list[pathlib.Path]:
    """Returns paths without links to a folder among them, or into one."""
    links = [path for path in paths if os.path.abspath(path) != os.path.realpath(path)]
    kept = [path for path in paths if path not in links]
    for link in links:
        place = os.path.realpath(link)
        around = [os.path.realpath(path) for path in kept if os.path.isdir(path)]
        is_inside = any(place == path or place.startswith(path + os.sep) for path in around)
        if not is_inside or not os.path.isdir(place):
            kept.append(link)
    return kept


def reader(dir: str) -> Callable[[str], bytes]:
    """Returns the function that reads an image of `data.dir` by its name, see `find`.

    The function raises a `FileNotFoundError` if the image is gone.

    Raises:
        InputError: a zip is damaged, or a path is an address such as `gs://...`.
    """
    base = root(dir)
    if _is_zip(base):
        return _unzipped(base)[1]
    return lambda name: (base / name).read_bytes()


def root(dir: str) -> pathlib.Path:
    """Returns the folder that names of `find` are relative to; a zip itself.

    Of several paths, or a single file, it is the deepest folder that holds them all. `dir` is as in
    `find`, and not empty; a path that does not exist is a file if it has the suffix of an image.
    """
    paths = list(_given(dir).values())
    if len(paths) == 1 and not os.path.isfile(paths[0]):
        is_file = not os.path.isdir(paths[0]) and paths[0].suffix.lower() in SUFFIXES
        return paths[0].parent if is_file else paths[0]
    if len(paths) == 1 and _is_zip(paths[0]):
        return paths[0]
    absolute = [os.path.abspath(path) for path in paths]
    return pathlib.Path(os.path.commonpath([os.path.dirname(path) for path in absolute]))


def folders(dir: str) -> list[str]:
    """Lists the existing folders and zips in `data.dir`, as written, without files of images."""
    return [name for name, path in _given(dir).items() if os.path.isdir(path) or _is_zip(path)]


def shown(dir: str) -> str:
    """Shortens `data.dir` for a sentence: of several paths the first, and how many others."""
    first, *others = _given(dir) or [""]
    return f"{first} and {len(others):,} more" if others else first


def _given(dir: str) -> dict[str, pathlib.Path]:
    """Returns the paths in `data.dir` by what the user wrote, one a line.

    Raises:
        InputError: a path is an address such as `gs://...`.
    """
    names = [checks.local(line) for line in dir.split("\n") if line]
    return {name: pathlib.Path(name).expanduser() for name in names}


def _is_zip(path: pathlib.Path) -> bool:
    """Returns whether a path is an existing file with the suffix of a zip, in any case."""
    return path.suffix.lower() == ".zip" and os.path.isfile(path)


def describe_ignored(ignored: Sequence[tuple[str, int]]) -> str:
    """Counts ignored files by kind, and says what to do about some, in at most 300 characters.

    `ignored` is as in `Files`.
    """
    kinds = sorted(ignored, key=lambda kind: (kind[0] not in _TO_DO, -kind[1]))
    texts = (f"{n:,} {kind or 'without suffix'}{_TO_DO.get(kind, '')}" for kind, n in kinds)
    return checks.short(", ".join(texts), 300)


def _sorter(exclude: Sequence[str]) -> Callable[[str], str | None]:
    """Returns a function of a file's path in a folder: why it is left out, None for an image.

    The reason is `_EXCLUDED`, `_HIDDEN`, "in FOLDER" for a folder in `NO_PHOTOS`, or the suffix of
    a file that is no image, which is "" for a file without one. `exclude` is as in `find`.
    """
    globs = [composed(glob) for glob in exclude]

    def left_out(path: str) -> str | None:
        name = os.path.basename(path)
        forms = composed(name), composed(path)
        if any(fnmatch.fnmatch(form, glob) for form in forms for glob in globs):
            return _EXCLUDED
        return _HIDDEN if name.startswith(".") else None

    @functools.cache
    def of_folder(path: str) -> str | None:
        if not path:
            return None
        above, name = os.path.split(path)
        places = name, os.path.join(os.path.basename(above), name)
        others = [p for p in places if any(fnmatch.fnmatchcase(p.lower(), g) for g in NO_PHOTOS)]
        return of_folder(above) or left_out(path) or (f"in {others[0]}" if others else None)

    def kind_of(path: str) -> str | None:
        suffix = os.path.splitext(path)[1].lower()
        other = None if suffix in SUFFIXES else suffix
        return of_folder(os.path.dirname(path)) or left_out(path) or other

    return kind_of


def _leave_out_raw(kinds: dict[str, str | None]) -> None:
    """Leaves out raw photos that are beside another image of their name, or cannot be read.

    `kinds` has the kind of each file by its path, None for an image, and is changed in place.
    """
    files = [file for file, kind in kinds.items() if kind is None]
    raw = set(filter(decode.is_raw, files))
    stems = {os.path.splitext(file)[0].lower() for file in files if raw and file not in raw}
    for file in raw:
        stem, suffix = os.path.splitext(file.lower())
        if stem in stems:
            kinds[file] = _TWIN
        elif not decode.can_read_raw():
            kinds[file] = suffix


def _walk(top: pathlib.Path, before: str, unreadable: list[tuple[str, str]]) -> Iterator[str]:
    """Yields the paths of all files in a folder, and of links to folders, which are not followed.

    Folders that cannot be read are added to `unreadable`, with `before` in front of their paths.

    Raises:
        InputError: the folder itself cannot be read.
    """

    def refused(error: OSError) -> None:
        name = os.path.relpath(error.filename, top)
        if name == ".":
            must = f"{top} must be a folder that can be read"
            raise InputError(f"{must}; got {error.strerror or error}") from error
        unreadable.append((f"{before}{name}/", error.strerror or str(error)))

    for folder, folders, files in os.walk(top, onerror=refused):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        prefix = _prefix(folder, top)
        for name in (*files, *links):
            yield prefix + name


def _prefix(path: str | os.PathLike, folder: pathlib.Path) -> str:
    """Returns what the names of files at a path begin with, relative to a folder: "" or "a/b/"."""
    relative = os.path.relpath(path, folder)
    return "" if relative == "." else f"{relative}/"


def _unzipped(path: pathlib.Path) -> tuple[list[str], Callable[[str], bytes]]:
    """Returns the names of the files in a zip archive, and a function that reads one by its name.

    Of several files of one name the later ones get a number, "a_2.jpg", but for equal ones. The
    function raises a FileNotFoundError for a missing name, and a ValueError for a file of more than
    1 GiB.

    Raises:
        InputError: the archive is damaged.
    """
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} must be a zip archive; got {error}") from error

    entries = dict[str, zipfile.ZipInfo]()
    contents = set[tuple[str, int, int]]()
    packed = [entry for entry in archive.infolist() if not entry.is_dir()]
    taken = {entry.filename for entry in packed}
    for entry in packed:
        name = entry.filename
        content = entry.filename, entry.CRC, entry.file_size
        if content in contents:
            continue
        contents.add(content)
        stem, suffix = os.path.splitext(name)
        numbered = (f"{stem}_{number}{suffix}" for number in itertools.count(2))
        if name in entries:
            name = next(free for free in numbered if free not in entries and free not in taken)
        entries[name] = entry

    def read(name: str) -> bytes:
        if name not in entries:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        if (size := entries[name].file_size) > _MOST_UNPACKED:
            raise ValueError(f"{size:,} bytes once unpacked; at most {_MOST_UNPACKED:,} are read")
        try:
            return archive.read(entries[name])
        except (zipfile.BadZipFile, zlib.error) as error:
            raise OSError(f"{name} in {path} is damaged ({error})") from error

    return list(entries), read


def _notes(listing: Files) -> Iterator[str]:
    """Yields what a user is told of a folder before its images are read."""
    if listing.ignored:
        yield f"ignored files: {describe_ignored(listing.ignored)}"
    if listing.unreadable:
        names = ", ".join(f"{path} ({reason})" for path, reason in listing.unreadable)
        yield f"folders that cannot be read: {checks.short(names, 200)}"


def _labels(listing: Files) -> tuple[np.ndarray | None, tuple[str, ...] | None]:
    """Returns the number of each file's first-level subfolder, int32, and the subfolders' names.

    The names are in the order of `natural`. The result is None twice if there are fewer than two
    subfolders, or a file lies in none.
    """
    tops = [name.split("/", 1)[0] if "/" in name else "" for name in listing.names]
    names = tuple(sorted(set(tops), key=natural))
    if len(names) < 2 or "" in names:
        return None, None
    number = {name: i for i, name in enumerate(names)}
    return np.array([number[top] for top in tops], np.int32), names
