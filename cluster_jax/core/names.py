"""Names and numbers as people count them."""

import re


def natural(name: str) -> tuple:
    """Key to sort names by, in which numbers are numbers: `part_2` comes before `part_10`.

    Example:
        >>> sorted(["part_10", "part_2", "Part", "part_02"], key=natural)
        ['Part', 'part_02', 'part_2', 'part_10']
    """
    parts = re.split("([0-9]+)", name)
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], name


def counted(n: int, noun: str, plural: str | None = None) -> str:
    """A number of things in words: "1 image", "2,000 images"; the plural is regular by default."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {plural or noun + 's'}"
