"""Image folders: nested or flat, with or without class folders; a zip, or single files."""

import collections
import fnmatch
import functools
import os
import pathlib
import zipfile
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
_OUTSIDE = "that lead out of the archive, or have the name of another"
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
        names: paths of the files, in the order of `natural`.
        read: name -> the bytes of the file.
        ignored: (suffix or kind, number) of other files.
        unreadable: (path, reason) of folders that cannot be read.
    """

    root: pathlib.Path
    names: tuple[str, ...]
    read: Callable[[str], bytes]
    ignored: tuple[tuple[str, int], ...]
    unreadable: tuple[tuple[str, str], ...] = ()


def load(config: DataConfig) -> Dataset:
    """Loads the images of `data.dir` and all its subfolders, in the order of paths, as RGB.

    With `data.labels` "folders", labels are the first-level subfolders if there are at least two
    and every image lies in one. See `images.load` for what is read when.

    Args:
        config: the section `data`.

    Raises:
        ValueError: the folder is missing or has no image; an `InputError` if too many files are
            unreadable, images differ in size without `data.image_size`, or a file was deleted,
            which for a streamed set `fetch` raises.
    """
    listing = find(config.dir, config.exclude)
    labels, label_names = _labels(listing) if config.labels == "folders" else (None, None)

    def read(i: int) -> bytes:
        return listing.read(listing.names[i])

    return images.load(
        "folder",
        images.ItemReader(read, listing.names, config, str(listing.root)),
        labels=labels,
        label_names=label_names,
        original=read,
        skipped=listing.unreadable,
        ignored=listing.ignored,
        notes=tuple(_notes(listing)),
    )


def find(dir: str | None, exclude: Sequence[str] = ()) -> Files:
    """Finds the images of `data.dir`, see `DataConfig`.

    Folders are searched with their subfolders, but not links to folders. A raw photo beside an
    image of the same name counts once. Files that are named one by one are taken whatever their
    name.

    Args:
        dir: a folder, a `.zip`, or several folders and files, one a line.
        exclude: globs of names, or of paths in the folder, that are left out.

    Raises:
        InputError: something does not exist or cannot be read, or there is no image.
    """
    paths = _given(dir or "")
    if not paths:
        raise InputError("data.dir must be a folder of images; got none")
    for name, path in paths.items():
        if not (path.is_dir() or path.is_file()):
            raise InputError(f"data.dir must be an existing folder of images; got {name}")
    found, base = _Found(exclude), root(dir or "")
    if _is_zip(base):
        return found.files(base, _in_zip(base, found), name)
    for path in paths.values():
        prefix = os.path.relpath(path, base)
        if path.is_dir():
            _in_folder(os.fspath(path), "" if prefix == "." else f"{prefix}/", found)
        else:
            found.paths[prefix] = None
    return found.files(base, lambda name: (base / name).read_bytes(), shown(dir or ""))


def root(dir: str) -> pathlib.Path:
    """Returns the folder that names of `find` are relative to; a zip itself."""
    paths = list(_given(dir).values())
    if len(paths) == 1 and (paths[0].is_dir() or _is_zip(paths[0])):
        return paths[0]
    absolute = [os.path.abspath(path) for path in paths]
    return pathlib.Path(os.path.commonpath([os.path.dirname(path) for path in absolute]))


def folders(dir: str) -> list[str]:
    """Lists the folders in `data.dir`, and the zip, without files that are named one by one."""
    return [name for name, path in _given(dir).items() if path.is_dir() or _is_zip(path)]


def shown(dir: str) -> str:
    """Shortens `data.dir` for a sentence: of several paths the first, and how many others."""
    first, *others = _given(dir) or [""]
    return f"{first} and {len(others):,} more" if others else first


def _given(dir: str) -> dict[str, pathlib.Path]:
    """Returns the paths in `data.dir`, one a line: a single one if there is a file of all of it."""
    lines = [dir] if os.path.exists(os.path.expanduser(dir)) else dir.split("\n")
    names = [checks.local(line) for line in lines if line]
    return {name: pathlib.Path(name).expanduser() for name in names}


def _is_zip(path: pathlib.Path) -> bool:
    return path.suffix.lower() == ".zip" and path.is_file()


def describe_ignored(ignored: Sequence[tuple[str, int]]) -> str:
    """Counts ignored files by kind, and says what to do about some."""
    kinds = sorted(ignored, key=lambda kind: (kind[0] not in _TO_DO, -kind[1]))
    texts = (f"{n:,} {kind or 'without suffix'}{_TO_DO.get(kind, '')}" for kind, n in kinds)
    return checks.short(", ".join(texts), 300)


class _Found:
    """What a search for images finds, without what `exclude` and the defaults leave out.

    Attributes:
        paths: of the images, in the order in which they were found.
        others: suffix or kind -> number of other files.
        unreadable: (path, reason) of folders that cannot be read.
    """

    def __init__(self, exclude: Sequence[str]) -> None:
        self._globs = [composed(glob) for glob in exclude]
        self.paths: dict[str, None] = {}
        self.others: collections.Counter[str] = collections.Counter()
        self.unreadable: list[tuple[str, str]] = []

    def left_out(self, path: str, is_folder: bool) -> str | None:
        """Says why a file or folder is left out, as a kind of ignored files; None: it is taken."""
        *above, name = path.split("/")
        forms = composed(name), composed(path)
        if any(fnmatch.fnmatch(form, glob) for glob in self._globs for form in forms):
            return _EXCLUDED
        if name.startswith("."):
            return _HIDDEN
        for place in (name, "/".join([*above[-1:], name])) if is_folder else ():
            if any(fnmatch.fnmatchcase(place.lower(), glob) for glob in NO_PHOTOS):
                return f"in {place}"
        return None

    def add(self, path: str, other: str | None = None) -> None:
        """Adds a file: an image, or one that is left out, as one of the kind `other` is."""
        suffix = os.path.splitext(path)[1].lower()
        kind = other or self.left_out(path, False)
        if kind is None and suffix not in SUFFIXES:
            kind = suffix
        if kind is None:
            self.paths[path] = None
        else:
            self.others[kind] += 1

    def files(self, root: pathlib.Path, read: Callable[[str], bytes], where: str) -> Files:
        """Sorts files by name, without raw photos that are not to be, or cannot be, read.

        Raises:
            InputError: no image is left.
        """
        can_read, others = decode.can_read_raw(), self.others
        stems = {os.path.splitext(x)[0].lower() for x in self.paths if not decode.is_raw(x)}
        names = []
        for path in self.paths:
            stem, suffix = os.path.splitext(path.lower())
            if not decode.is_raw(path) or (can_read and stem not in stems):
                names.append(path)
            else:
                others[_TWIN if stem in stems else suffix] += 1
        ignored = tuple(sorted(others.items()))
        if names:
            ordered = tuple(sorted(names, key=natural))
            return Files(root, ordered, read, ignored, tuple(self.unreadable))
        parts = [f"; other files: {describe_ignored(ignored)}"] if others else []
        parts += [f"; {path} cannot be read ({reason})" for path, reason in self.unreadable[:1]]
        raise InputError(
            f"data.dir must hold images, such as jpg, png, tif, webp or heic; got no image file in "
            f"{where} or its subfolders{''.join(parts)}"
        )


def _in_folder(top: str, prefix: str, found: _Found) -> None:
    """Searches a folder, whose paths get a prefix, and its subfolders.

    Raises:
        InputError: it cannot be read.
    """
    to_visit: list[tuple[str, str, str | None]] = [(top, prefix, None)]
    while to_visit:
        folder, prefix, kind = to_visit.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError as error:
            if folder == top:
                must = f"{folder} must be a folder that can be read"
                raise InputError(f"{must}; got {error.strerror or error}") from error
            if kind is None:
                found.unreadable.append((prefix, f"{type(error).__name__}: {error.strerror}"))
            continue
        for entry in entries:
            path = prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                to_visit.append((entry.path, f"{path}/", kind or found.left_out(path, True)))
            else:
                is_file = entry.is_file(follow_symlinks=False) or os.path.isfile(entry.path)
                found.add(path, kind or (None if is_file else _SPECIAL))


def _in_zip(path: pathlib.Path, found: _Found) -> Callable[[str], bytes]:
    """Finds the images of a zip archive; returns what reads them, in place.

    Raises:
        InputError: it is damaged.
    """
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} must be a zip archive; got {error}") from error
    kind_of = functools.cache(found.left_out)  # of a folder, for each file in it
    for name in (entry.filename for entry in archive.infolist() if not entry.is_dir()):
        parts = name.split("/")
        above = (kind_of("/".join(parts[:i]), True) for i in range(1, len(parts)))
        is_outside = bool({"..", ""} & set(parts)) or name in found.paths
        found.add(name, _OUTSIDE if is_outside else next(filter(None, above), None))

    def read(name: str) -> bytes:
        if (size := archive.getinfo(name).file_size) > _MOST_UNPACKED:
            raise ValueError(f"{size:,} bytes once unpacked; at most {_MOST_UNPACKED:,} are read")
        return archive.read(name)

    return read


def _notes(listing: Files) -> Iterator[str]:
    """Yields what a user is told of a folder before its images are read."""
    if listing.ignored:
        yield f"ignored files: {describe_ignored(listing.ignored)}"
    if listing.unreadable:
        names = ", ".join(f"{path} ({reason})" for path, reason in listing.unreadable)
        yield f"folders that cannot be read: {checks.short(names, 200)}"


def _labels(listing: Files) -> tuple[np.ndarray | None, tuple[str, ...] | None]:
    """Returns each file's first-level subfolder, int32, and their sorted names, or None twice."""
    tops = [name.split("/", 1)[0] if "/" in name else "" for name in listing.names]
    names = tuple(sorted(set(tops), key=natural))
    if len(names) < 2 or "" in names:
        return None, None
    number = {name: i for i, name in enumerate(names)}
    return np.array([number[top] for top in tops], np.int32), names
