"""Pieces of the report's page: they stand in `report_parts.html` and are filled in safely."""

import functools
import html
import importlib.resources
import math
import re
import string
from collections.abc import Iterable, Mapping, Sequence


class Html(str):
    """Text that is markup already; any other text is escaped when it is filled in."""


Section = tuple[str, Html]  # name, which is also its anchor, and all of its markup


def file(name: str) -> str:
    """A file that the page is made of."""
    return (importlib.resources.files("cluster_jax.evaluation") / name).read_text("utf-8")


@functools.cache
def _parts() -> dict[str, string.Template]:
    """The pieces of the page by name; each stands under its name in a comment."""
    _, *pieces = re.split(r"<!-- (\w+) -->\n", file("report_parts.html"))
    pairs = zip(pieces[::2], pieces[1::2], strict=True)
    return {name: string.Template(text.strip()) for name, text in pairs}


def fill(part: str, **values: object) -> Html:
    """A piece of the page with its values, escaped unless they are `Html`."""
    safe = {k: v if isinstance(v, Html) else html.escape(str(v)) for k, v in values.items()}
    return Html(_parts()[part].substitute(safe))


def join(pieces: Iterable[Html]) -> Html:
    """Pieces one after the other."""
    return Html("\n".join(pieces))


def count(n: int, noun: str) -> str:
    """A number of things in words."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def section(name: str, values: dict, part: str = "", **notes: bool) -> Section:
    """A section filled with `values`; of the optional `notes` beside it those that are true."""
    pieces = ["about", *(note for note, there in notes.items() if there)]
    about = join(fill(f"{name}_{piece}", **values) for piece in pieces)
    parts = {"about": about, "content": fill(part or name, **values)}
    return name, fill("section", name=name, title=name.capitalize(), **parts)


def _words() -> dict[str, str]:
    """Keys of the results that read better as other words."""
    return dict(line.split(": ", 1) for line in _parts()["words"].template.splitlines())


def name(*path: object) -> str:
    """The keys that lead to an entry of the results, in words."""
    text = " ".join(_words().get(str(part), str(part).replace("_", " ")) for part in path)
    return text if text.startswith("k-") else text[:1].upper() + text[1:]  # k-means, k-NN


def value(entry: object, decimals: bool = True) -> str:
    """Any entry of the results as text; a dash where there is nothing to show."""
    if isinstance(entry, Mapping):
        pairs = [
            (_words().get(k, k), value(v, decimals)) for k, v in entry.items() if v is not None
        ]
        return ", ".join(map(" ".join, pairs))
    if isinstance(entry, list | tuple):
        return ", ".join(value(item, decimals) for item in entry) or "nothing"
    if isinstance(entry, bool):
        return "yes" if entry else "no"
    if entry is None or entry == "" or (isinstance(entry, float) and not math.isfinite(entry)):
        return "–"
    if isinstance(entry, int) or (decimals and isinstance(entry, float) and abs(entry) >= 1000):
        return f"{entry:,.0f}"
    if not isinstance(entry, float):
        return str(entry)
    if not decimals or 0 < abs(entry) < 0.0005:  # three decimals would show nothing of it
        return f"{entry:.4g}"
    return f"{entry:.3f}" if abs(entry) < 10 else f"{entry:.1f}"


def pairs(title: str, rows: Sequence[tuple[str, str]], kind: str) -> Html:
    """A table of names and values; empty if there are no rows."""
    cells = join(fill("pair", name=name, value=value, kind=kind) for name, value in rows)
    return fill("pairs", title=title, rows=cells) if rows else Html("")
