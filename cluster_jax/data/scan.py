"""Finding image files: in folders, a list of names, a zip, tars, or Parquet files."""

import codecs
import collections
import contextlib
import fnmatch
import io
import itertools
import os
import stat
import zipfile
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple

from etils import epath
from PIL import Image

from cluster_jax.core import buckets, checks
from cluster_jax.core.checks import InputError
from cluster_jax.core.names import counted, natural
from cluster_jax.data import packed, pixels, raw

try:
    import pillow_heif
except ImportError:  # the extra "heic"
    HEIC: tuple[str, ...] = ()
else:
    pillow_heif.register_heif_opener()
    HEIC = (".heic", ".heif", ".hif")

# Suffixes that Pillow gives to a format of its own, but most such files are something else: rides
# of a sports watch, patches of Windows, mouse pointers, ...
_SOMETHING_ELSE = (".fit", ".msp", ".im", ".iim", ".vst", ".vda", ".icb", ".ftc", ".ftu", ".cur")


def suffixes() -> tuple[str, ...]:
    """Returns the suffixes of the files that Pillow can read, in lower case."""
    Image.init()
    formats = Image.registered_extensions().items()
    readable = {s for s, name in formats if name in Image.OPEN and name not in pixels.NOT_DECODED}
    # A format by several names.
    return tuple(sorted((readable | {".mpo", *HEIC}) - {*_SOMETHING_ELSE}))


_HEIC = (".heic", ".heif", ".hif")
_ARCHIVES = (".zip", ".rar", ".7z", ".tar", ".gz", ".tgz", ".tbz2", ".xz")
# Kinds of what is left out besides suffixes.
_HIDDEN, _EXCLUDED = "with a dot before the name", "excluded"
_SPECIAL, _LINK = "pipes or devices", "links to other photos here"
_AROUND = "links to a folder around this one"
_TWIN = "raw beside an image of the same name"
_OUTSIDE = "that lead out of the archive"
# What one of them is called.
_ONE = {
    _SPECIAL: "pipe or device",
    _LINK: "link to another photo here",
    _AROUND: "link to a folder around this one",
    _OUTSIDE: "that leads out of the archive",
}
# Characters of a list of ignored files, which is a part of a sentence.
_MOST_NAMED = 220
# Bytes that a file in a zip may have once it is unpacked, which bounds memory.
_MOST_UNPACKED = 2**30

# Globs of folders whose pictures are no photos of the user's, in lower case, some with the folder
# above -> what they are. Folders that begin with a dot are left out anyway.
NO_PHOTOS = {
    # Network drives.
    "@eadir": "thumbnails of a Synology NAS",
    "#recycle": "deleted files of a Synology NAS",
    "#snapshot": "snapshots of a Synology NAS",
    "@sharebin": "deleted files of a Synology NAS",
    "@sharesnap": "snapshots of a Synology NAS",
    "@tmp": "temporary files of a Synology NAS",
    "@appstore": "programs of a Synology NAS",
    "@appdata": "files of programs of a Synology NAS",
    "@apptemp": "temporary files of a Synology NAS",
    "@synologydrive": "earlier versions in Synology Drive",
    "@recycle": "deleted files of a QNAP NAS",
    "@recently-snapshot": "snapshots of a QNAP NAS",
    "@thumb": "thumbnails of a QNAP NAS",
    "@transcode": "videos for phones of a QNAP NAS",
    "network trash folder": "deleted files of macOS on a network drive",
    # Systems.
    "$recycle.bin": "deleted files of Windows",
    "recycler": "deleted files of Windows",
    "system volume information": "of Windows",
    "$windows.~*": "an update of Windows",
    "appdata/local": "files of programs of Windows",
    "__macosx": "resource forks of macOS",
    "library/caches": "caches of programs of macOS",
    "*.app": "a program of macOS",
    "android/data": "caches of apps on Android",
    "android/obb": "files of apps on Android",
    "node_modules": "packages of JavaScript",
    # Cameras.
    "thmbnl": "thumbnails of videos by Sony cameras",
    # Servers of photos and films.
    "appdata_oc*": "previews of Nextcloud",
    "files_trashbin": "deleted files of Nextcloud",
    "files_versions": "earlier versions in Nextcloud",
    "encoded-video": "videos of Immich",
    "storage/cache": "previews of PhotoPrism",
    "storage/sidecar": "copies that PhotoPrism has made",
    "_data/i": "previews of Piwigo",
    "pwg_representative": "previews of videos in Piwigo",
    "protected_media": "previews of LibrePhotos",
    "*.trickplay": "previews of videos in Jellyfin",
    "extrafanart": "pictures about films, of Kodi and Jellyfin",
    "extrathumbs": "pictures of films, of Kodi and Jellyfin",
    "plex media server": "pictures about films, of Plex",
    # Programs for photos and films.
    "captureone/cache": "previews of Capture One",
    "*.cocatalog/cache": "previews of Capture One",
    "*.lrdata": "previews of Lightroom",
    "*.dtrash": "deleted files of digiKam",
    "cacheclip": "a cache of DaVinci Resolve",
    # Google Takeout, in the language of the account.
    "google photos/trash": "deleted photos of Google Photos",
    "google photos/bin": "deleted photos of Google Photos",
    "google fotos/papierkorb": "deleted photos of Google Photos",
    "google photos/corbeille": "deleted photos of Google Photos",
    "google fotos/papelera": "deleted photos of Google Photos",
    "google foto/cestino": "deleted photos of Google Photos",
}
# Such folders whose names are ordinary words: name -> a folder that must lie beside it, and what
# the pictures are.
NO_PHOTOS_BESIDE = {
    "thumbs": ("encoded-video", "thumbnails of Immich"),
    "profile": ("encoded-video", "pictures of users of Immich"),
    "backups": ("encoded-video", "backups of Immich"),
    "trash": ("selects", "deleted photos of Capture One"),
}
# A library of Apple's Photos: the photos, and beside them thumbnails of the same.
_LIBRARIES = (".photoslibrary", ".photolibrary", ".migratedphotolibrary", ".aplibrary")
_ORIGINALS = ("originals", "masters")
# Bytes of files of a bucket that are kept in memory.
_KEPT = 2**28


class Files(NamedTuple):
    """Image files.

    Attributes:
        root: the folder that `names` are relative to; of a zip, the zip. Names in tars and Parquet
            files begin with that of the file.
        names: paths of the files, in the order of `natural`.
        open: name -> the file, opened to read its bytes; of a raw photo, those of its preview.
        ignored: (suffix or kind, number) of other files.
        unreadable: (path, reason) of folders that cannot be read.
        classes: name -> class, where tars or Parquet files have one for every image.
    """

    root: epath.Path
    names: tuple[str, ...]
    open: Callable[[str], BinaryIO]
    ignored: tuple[tuple[str, int], ...]
    unreadable: tuple[tuple[str, str], ...] = ()
    classes: Mapping[str, str] = {}


def find(
    dir: str | None,
    exclude: Sequence[str] = (),
    include_all: bool = False,
    label: str | None = None,
) -> Files:
    """Finds the images of `data.dir`, see `DataConfig`.

    Folders are searched with their subfolders. A file that is in several of them, also by a link,
    counts once, and so does a raw photo beside an image of the same name. Files that are named one
    by one are taken whatever their name. Of a folder without images the tars and Parquet files are
    read, see `packed.index`.

    Args:
        dir: a folder, a `.zip`, `.tar` or `.parquet`, `@LIST`, a text file of one name a line,
            relative to its folder; or several folders and files, one a line.
        exclude: globs of names, or of paths in the folder, that are left out.
        include_all: whether hidden files and folders of `NO_PHOTOS` are taken too.
        label: where tars and Parquet files have classes, see `packed.index`.

    Raises:
        InputError: something does not exist or cannot be read, or there is no image.
    """
    rule = _Rule(tuple(exclude), include_all, label)
    paths = _given(dir or "")
    if not paths:
        raise InputError("data.dir must be a folder of images; got none")
    if len(paths) == 1 and paths[0].startswith("@") and not os.path.exists(paths[0]):
        paths = _listed(paths[0])
    elif len(paths) == 1:
        path = buckets.path(paths[0])
        if not _is_local(path):
            return _in_bucket(path, rule)
        if not path.exists():
            raise InputError(f"data.dir must be an existing folder of images; got {path}")
        if path.suffix.lower() == ".zip" and path.is_file():
            return _in_zip(path, rule)
        if path.suffix.lower() in packed.SUFFIXES and path.is_file():
            return _in_packed(path.parent, [path.name], rule)
        if not path.is_dir():
            raise InputError(f"data.dir must be a folder of images; got the file {path}")
        return _checked(_Search(rule).folder(path, "").files(path), str(path))
    return _several(paths, rule)


def root(dir: str) -> epath.Path:
    """Returns the folder that names of `find` are relative to: a zip itself, a file's folder."""
    paths = _given(dir)
    if len(paths) == 1 and paths[0].startswith("@") and not os.path.exists(paths[0]):
        paths = _listed(paths[0])
    elif len(paths) == 1:
        path = buckets.path(paths[0])
        return path.parent if path.is_file() and path.suffix.lower() != ".zip" else path
    return _common(paths)


def folders(dir: str) -> list[str]:
    """Lists the folders in `data.dir`, and the zip, without files that are named one by one."""
    paths = _given(dir)
    if len(paths) == 1 and paths[0].startswith("@") and not os.path.exists(paths[0]):
        paths = _listed(paths[0])
    elif len(paths) == 1 and paths[0].lower().endswith(".zip"):
        return paths
    return [name for name in paths if buckets.path(name).is_dir()]


def shown(dir: str) -> str:
    """Shortens `data.dir` for a sentence: of several paths the first, and how many others."""
    first, *others = _given(dir) or [""]
    return f"{first} and {len(others):,} more" if others else first


def _given(dir: str) -> list[str]:
    """Lists the names in `data.dir`, one a line: a single one if there is a file of all of it."""
    lines = [dir] if os.path.exists(os.path.expanduser(dir)) else dir.split("\n")
    return [checks.local(line) for line in lines if line]


def describe_ignored(ignored: Sequence[tuple[str, int]]) -> str:
    """Counts ignored files by kind, and names the packages that read HEIC and raw photos.

    Of many kinds those about which something can be done, and the most frequent ones, are named.
    """
    kinds = list[tuple[bool, int, str]]()
    for kind, count in ignored:
        reason = to_do = None
        if kind.startswith("in "):
            reason = _what(kind.removeprefix("in ").lower())
        elif kind in _HEIC and not HEIC:
            to_do = "to read HEIC: pip install pillow-heif"
        elif kind in raw.SUFFIXES:
            to_do = "to read raw photos: pip install rawpy"
        elif kind in _ARCHIVES:
            can_be_read = kind in (".zip", *packed.SUFFIXES)
            to_do = "unpack them, or give one alone" if can_be_read else "unpack them"
        about = f" ({reason or to_do})" if reason or to_do else ""
        called = _ONE.get(kind) if count == 1 else None
        called = called or checks.short(kind, 60) or "without suffix"
        kinds.append((to_do is None, -count, f"{count:,} {called}{about}"))
    if sum(len(text) + 2 for *_, text in kinds) > _MOST_NAMED:
        kinds.sort(key=lambda kind: kind[:2])
    lengths = itertools.accumulate(len(text) + 2 for *_, text in kinds)
    named = sum(length <= _MOST_NAMED for length in lengths)
    parts = [text for *_, text in kinds[:named]]
    if rest := kinds[named:]:
        files = -sum(count for _, count, _ in rest)
        parts.append(f"{files:,} of {counted(len(rest), 'other kind')}")
    return ", ".join(parts)


def _what(folder: str, beside: Container[str] | None = None) -> str | None:
    """Says what the pictures in a folder of `NO_PHOTOS` are; None for other folders.

    Args:
        folder: its name, or with that of the folder above, in lower case.
        beside: names of what lies beside it, in lower case; None: it was found to be such a folder.
    """
    if folder in NO_PHOTOS_BESIDE and (beside is None or NO_PHOTOS_BESIDE[folder][0] in beside):
        return NO_PHOTOS_BESIDE[folder][1]
    globs = (glob for glob in NO_PHOTOS if glob.count("/") == folder.count("/"))
    return next((NO_PHOTOS[glob] for glob in globs if fnmatch.fnmatchcase(folder, glob)), None)


class _Rule(NamedTuple):
    """What is left out: globs, and the defaults unless `include_all`; and `label` of `find`."""

    exclude: tuple[str, ...]
    include_all: bool
    label: str | None

    def kind(self, path: str, is_folder: bool, beside: Container[str] = ()) -> str | None:
        """Says why a file or folder is left out, as a kind of ignored files; None: it is taken.

        Args:
            path: of the file or folder.
            is_folder: which of both it is.
            beside: names of what lies beside it, in lower case.
        """
        *above, name = path.split("/")
        if any(fnmatch.fnmatch(name, p) or fnmatch.fnmatch(path, p) for p in self.exclude):
            return _EXCLUDED
        if self.include_all:
            return None
        if name.startswith("."):
            return _HIDDEN
        if not is_folder:
            return None
        low, parent = name.lower(), above[-1].lower() if above else ""
        if _what(low, beside):
            return f"in {name}"
        if _what(f"{parent}/{low}", beside):
            return f"in {above[-1]}/{name}"
        is_library = os.path.splitext(parent)[1] in _LIBRARIES
        return f"in {above[-1]}/{name}" if is_library and low not in _ORIGINALS else None


class _Entry(NamedTuple):
    """A file or folder of a bucket, and the number of files below a folder."""

    name: str
    files: int

    def is_dir(self) -> bool:
        return self.files > 0


def _entries(folder: epath.Path) -> Iterable[os.DirEntry]:
    """Lists the entries of a folder; os.scandir tells folders without asking the disk."""
    return os.scandir(folder)


class _Search:
    """A search for images in folders; those of a bucket have generations, by their paths."""

    def __init__(
        self,
        rule: _Rule,
        entries: Callable[[epath.Path], Iterable] = _entries,
        generations: Mapping[str, int] = {},
    ) -> None:
        self._entries, self._generations = entries, generations
        self._rule, self._suffixes = rule, (*suffixes(), *raw.SUFFIXES)
        self._paths: list[str] = []
        self._packed: list[str] = []
        self._links: list[tuple[str, str]] = []  # path, and where it leads
        self._real: dict[str, str] = {}  # folder that was visited -> its prefix
        self._others: collections.Counter[str] = collections.Counter()
        self._unreadable: list[tuple[str, str]] = []

    def folder(self, top: epath.Path, prefix: str) -> "_Search":
        """Searches a folder, whose paths get a prefix, and its subfolders.

        Raises:
            InputError: it cannot be read.
        """
        to_visit, linked = [(top, prefix)], list[tuple[epath.Path, str]]()
        while to_visit or linked:
            # Links come last, so that a folder is found by its own name.
            folder, prefix = to_visit.pop() if to_visit else linked.pop(0)
            if self._is_known(folder, prefix):
                continue
            if folder != top and _is_around(folder, top):
                self._others[_AROUND] += 1
                continue
            try:
                entries = sorted(self._entries(folder), key=lambda entry: entry.name)
            except OSError as error:
                if folder == top:
                    raise InputError(
                        f"{folder} must be a folder that can be read; got {error.strerror or error}"
                    ) from error
                self._unreadable.append((prefix, f"{type(error).__name__}: {error.strerror}"))
                continue
            beside = {entry.name.lower() for entry in entries}
            for entry in entries:
                below = self._take(entry, prefix + entry.name, beside)
                if below is not None:
                    item = folder / entry.name, below
                    (linked if _is_link(entry) else to_visit).append(item)
        return self

    def _is_known(self, folder: epath.Path, prefix: str) -> bool:
        """Returns whether a folder was visited before, such as a parent by a link inside it."""
        real = os.path.realpath(folder) if _is_local(folder) else str(folder)
        is_known = real in self._real
        self._real.setdefault(real, prefix)
        return is_known

    def _take(self, entry: os.DirEntry | _Entry, path: str, beside: Container[str]) -> str | None:
        """Notes a file; of a folder that is to be visited, returns its prefix."""
        suffix = os.path.splitext(entry.name)[1].lower()
        local = entry if isinstance(entry, os.DirEntry) else None
        is_folder = _is_dir(entry)
        kind = self._rule.kind(path, is_folder, beside)
        if is_folder:
            if kind is None:
                return path + "/"
            below = os.walk(local.path) if local else ()
            count = entry.files if isinstance(entry, _Entry) else 0
            self._others[kind] += sum((len(files) for *_, files in below), count)
        elif kind is not None:
            self._others[kind] += 1
        elif suffix not in self._suffixes:
            self._others[suffix] += 1
            if suffix in packed.SUFFIXES and (local is None or local.is_file()):
                self._packed.append(path)
        elif local and not _is_file(local) and not _is_broken(local):
            self._others[_SPECIAL] += 1
        elif local and local.is_symlink():
            self._links.append((path, os.path.realpath(local.path)))
        else:
            self._paths.append(path)
        return None

    def file(self, file: epath.Path, path: str) -> None:
        """Takes a file that was named, unless it is no file that can be read."""
        if _is_local(file) and not stat.S_ISREG(os.stat(file).st_mode):
            raise InputError(f"{file} must be an image; got a pipe or a device")
        self._links.append((path, os.path.realpath(file) if _is_local(file) else str(file)))

    def files(self, root: epath.Path) -> Files:
        """Returns all that was found."""
        if self._links:
            prefixes = {prefix: real for real, prefix in self._real.items()}
            real_paths = set()
            for path in self._paths:
                prefix, _, name = path.rpartition("/")
                real_paths.add(os.path.join(prefixes[f"{prefix}/" if prefix else ""], name))
            for path, real in self._links:
                if real in real_paths:
                    self._others[_LINK] += 1
                else:
                    self._paths.append(path)

        if self._packed and not self._paths:
            for suffix in packed.SUFFIXES:
                del self._others[suffix]
            return _in_packed(root, self._packed, self._rule, self._others, self._unreadable)
        kept = _kept(lambda name: (root / name).read_bytes())

        def read(name: str) -> BinaryIO:
            if _is_local(root):
                return _opened(name, (root / name).open("rb"))
            return _opened(name, io.BytesIO(kept(name)))

        return _files(root, self._paths, read, self._others, self._unreadable)


def _kept(load: Callable[[str], bytes]) -> Callable[[str], bytes]:
    """Reads files of a bucket; a run reads each several times, so the first ones are kept."""
    cache, free = dict[str, bytes](), [_KEPT]

    def read(name: str) -> bytes:
        data = cache.get(name)
        if data is None:
            data = load(name)
            if len(data) <= free[0]:
                cache[name] = data
                free[0] -= len(data)
        return data

    return read


def _files(
    root: epath.Path,
    paths: Sequence[str],
    read: Callable[[str], BinaryIO],
    others: collections.Counter[str],
    unreadable: Sequence[tuple[str, str]] = (),
) -> Files:
    """Sorts files by name, without raw photos that are not to be, or cannot be, read."""
    left_out = dict.fromkeys(raw.twins(paths), _TWIN)
    if not raw.can_read():
        raws = filter(raw.is_raw, paths)
        left_out = {path: os.path.splitext(path)[1].lower() for path in raws} | left_out
    others.update(left_out.values())
    names = tuple(sorted((path for path in paths if path not in left_out), key=natural))
    ignored = tuple(sorted((kind, n) for kind, n in others.items() if n))
    return Files(root, names, read, ignored, tuple(unreadable))


def _opened(name: str, file: BinaryIO) -> BinaryIO:
    """Opens a file, or the preview of a raw photo."""
    if not raw.is_raw(name):
        return file
    with file:
        return raw.preview(file)


def _is_local(path: epath.PathLike) -> bool:
    return "://" not in os.fspath(path)


def _is_dir(entry: os.DirEntry | _Entry) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # A loop of links.
        return False


def _is_around(folder: epath.Path, top: epath.Path) -> bool:
    """Returns whether a linked folder is one of those that a local folder is in."""
    if not _is_local(top):
        return False
    inner, outer = os.path.realpath(top), os.path.realpath(folder)
    return inner != outer and os.path.commonpath([inner, outer]) == outer


def _is_file(entry: os.DirEntry) -> bool:
    try:
        return entry.is_file()
    except OSError:  # As above.
        return False


def _is_link(entry: os.DirEntry | _Entry) -> bool:
    return isinstance(entry, os.DirEntry) and entry.is_symlink()


def _is_broken(entry: os.DirEntry) -> bool:
    """Returns whether an entry is a link that leads nowhere: an image that cannot be read."""
    return entry.is_symlink() and not os.path.exists(entry.path)


def _listed(name: str) -> list[str]:
    """Reads the names in the text file of `@LIST`, one a line, relative to its folder."""
    file = buckets.path(name[1:])
    if not file.exists() or file.is_dir():
        raise InputError(f"{name} must be @ and a text file of names; got no such file")
    data = file.read_bytes()
    is_utf_16 = data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    text = data.decode("utf-16", "replace") if is_utf_16 else None
    lines = (text or data.decode("utf-8-sig", "surrogateescape")).splitlines()
    names = []
    for number, line in enumerate(lines, 1):
        # A name in quotes, or with the separators of Windows.
        forms = [line, line.strip().strip("\"'"), line.strip().replace("\\", "/")]
        candidates = [f if "://" in f else str(file.parent / os.path.expanduser(f)) for f in forms]
        path = next((name for name in candidates if "://" in name or os.path.exists(name)), None)
        if path is None and line.strip():
            must = f"line {number} of {file} must be a folder or an image"
            raise InputError(f"{must}; got {line.strip()}, which does not exist")
        names += [path] if line.strip() and path else []
    if not names:
        raise InputError(f"{file} must name images, one a line; got an empty file")
    return names


def _common(names: Sequence[str]) -> epath.Path:
    """Returns the folder that has all of several folders and files in it."""
    if any("://" in name for name in names):
        raise InputError("several folders of images must be local ones; got one in a bucket")
    paths = [os.path.abspath(os.path.expanduser(name)) for name in names]
    return epath.Path(os.path.commonpath([os.path.dirname(path) for path in paths]))


def _several(paths: Sequence[str], rule: _Rule) -> Files:
    """Finds the images of several folders and files."""
    root, search = _common(paths), _Search(rule)
    if all(name.lower().endswith(packed.SUFFIXES) and os.path.isfile(name) for name in paths):
        return _in_packed(root, [os.path.relpath(name, root) for name in paths], rule)
    for name in paths:
        path = epath.Path(os.path.abspath(os.path.expanduser(name)))
        if not path.exists():
            raise InputError(f"{name} must be a folder or an image; got no such file")
        relative = os.path.relpath(path, root)
        if path.is_dir():
            search.folder(path, f"{relative}/")
        else:
            search.file(path, relative)
    return _checked(search.files(root), shown("\n".join(paths)))


def _in_bucket(path: epath.Path, rule: _Rule) -> Files:
    """Finds the images of a folder of a bucket, which is listed as a whole, or of a zip there.

    Raises:
        InputError: there is no such folder, or it may not be read.
    """
    with _explained():
        tree = dict[str, int]()
        if not tree and path.suffix.lower() == ".zip":
            return _in_zip(path, rule)
    if not tree and path.suffix.lower() in packed.SUFFIXES:
        return _in_packed(path.parent, [path.name], rule)
    if not tree:
        raise InputError(f"data.dir must be an existing folder of images; got {path}")
    below: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for name in tree:
        *above, last = name.split("/")
        if last:  # An object whose name ends on "/" marks a folder.
            for i, part in enumerate(above):
                below["/".join(above[:i])][part] += 1
            below["/".join(above)].setdefault(last, 0)

    def entries(folder: epath.Path) -> list[_Entry]:
        inside = str(folder).removeprefix(str(path)).strip("/")
        return [_Entry(name, files) for name, files in below[inside].items()]

    return _checked(_Search(rule, entries, tree).folder(path, "").files(path), str(path))


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Turns an error of a bucket into an `InputError` with its cause."""
    try:
        yield
    except Exception as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"data.dir: {error}") from error


def _in_zip(path: epath.Path, rule: _Rule) -> Files:
    """Finds the images of a zip archive, which are read in place.

    Raises:
        InputError: it is damaged.
    """
    try:
        archive = zipfile.ZipFile(path if _is_local(path) else io.BytesIO(path.read_bytes()))
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} must be a zip archive; got {error}") from error
    names, readable = [], (*suffixes(), *raw.SUFFIXES)
    others: collections.Counter[str] = collections.Counter()
    files = {entry.filename: 0 for entry in archive.infolist() if not entry.is_dir()}
    beside = collections.defaultdict[str, set[str]](set)
    for folder in {os.path.dirname(name) for name in files}:
        parts = folder.split("/")
        for i, part in enumerate(parts):
            beside["/".join(parts[:i])].add(part.lower())
    for name in files:
        parts, suffix = name.split("/"), os.path.splitext(name)[1].lower()
        above = ("/".join(parts[:i]) for i in range(1, len(parts)))
        kinds = (rule.kind(folder, True, beside[os.path.dirname(folder)]) for folder in above)
        kind = _OUTSIDE if {"..", ""} & set(parts) else next(filter(None, kinds), None)
        kind = kind or rule.kind(name, False)
        if kind is None and suffix in readable:
            names.append(name)
        else:
            others[kind or suffix] += 1

    def read(name: str) -> BinaryIO:
        if (size := archive.getinfo(name).file_size) > _MOST_UNPACKED:
            raise ValueError(f"{size:,} bytes once unpacked; at most {_MOST_UNPACKED:,} are read")
        return _opened(name, io.BytesIO(archive.read(name)))

    return _checked(_files(path, names, read, others), str(path))


def _in_packed(
    root: epath.Path,
    files: Sequence[str],
    rule: _Rule,
    others: collections.Counter[str] | None = None,
    unreadable: Sequence[tuple[str, str]] = (),
) -> Files:
    """Finds the images in tars and Parquet files, which are read in place."""
    readable = (*suffixes(), *raw.SUFFIXES)

    def kind(name: str) -> str | None:
        suffix = os.path.splitext(name)[1].lower()
        reason = _OUTSIDE if ".." in name.split("/") else rule.kind(name, False)
        return reason or (None if suffix in readable else suffix)

    with _explained():
        index = packed.index(root, sorted(files, key=natural), kind, rule.label)
    load = index.read if _is_local(root) else _kept(index.read)

    def read(name: str) -> BinaryIO:
        return _opened(name, io.BytesIO(load(name)))

    ignored = index.ignored + (others or collections.Counter())
    listing = _files(root, index.names, read, ignored, unreadable)
    return listing._replace(classes=index.classes)


def _checked(files: Files, where: str) -> Files:
    """Returns the files; raises an `InputError` if there are none."""
    if files.names:
        return files
    parts = [f"other files: {describe_ignored(files.ignored)}"] if files.ignored else []
    if any(kind == "" for kind, _ in files.ignored):
        parts.append("images without a suffix are not read: add .jpg to their names")
    parts += [f"{path} cannot be read ({reason})" for path, reason in files.unreadable[:1]]
    raise InputError(
        f"data.dir must hold images, such as jpg, png, tif, webp or heic; got no image file in "
        f"{where} or its subfolders{''.join(f'; {part}' for part in parts)}"
    )
