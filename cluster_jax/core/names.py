"""Names and numbers as people count them."""

import re
import unicodedata
from collections.abc import Collection


def natural(name: str) -> tuple:
    """Returns a key to sort names by, in which numbers are numbers: `part_2` before `part_10`.

    Example:
        >>> sorted(["part_10", "part_2", "Part", "part_02"], key=natural)
        ['Part', 'part_02', 'part_2', 'part_10']
    """
    parts = re.split("([0-9]+)", name)
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], name


def composed(name: str) -> str:
    """Returns a name in the form in which names are compared: an old Mac writes accents apart."""
    return unicodedata.normalize("NFC", name)


def counted(n: int, noun: str, plural: str | None = None) -> str:
    """Formats a number of things in words: "1 image", "2,000 images"; by default adds an "s"."""
    if n == 1:
        return f"{n:,} {noun}"
    return f"{n:,} {plural or noun + 's'}"


def files_and_folders(paths: Collection[str]) -> str:
    """Counts files and folders in words; those of folders end on "/".

    Example:
        >>> files_and_folders(["a.jpg", "b.jpg", "lost+found/"])
        '2 files and 1 folder'
    """
    folders = sum(path.endswith("/") for path in paths)
    files = len(paths) - folders
    parts = [counted(n, noun) for n, noun in ((files, "file"), (folders, "folder")) if n]
    return " and ".join(parts)
