"""Comparison of two clusterings: images or rows whose cluster has changed."""

import os
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
from etils import epath
from sklearn.metrics import adjusted_rand_score

from cluster_jax.core.checks import InputError
from cluster_jax.core.names import counted
from cluster_jax.evaluation import assignments, pages
from cluster_jax.metrics import partition

_SHOWN = 20  # kinds of moves
_PICTURES = 24  # images of a kind of move


Row = tuple[str, str, str]  # name of an image, its cluster before, and its cluster after


class Comparison(NamedTuple):
    """Two clusterings, matched one to one.

    Attributes:
        rows: of the images in both, by name.
        matched: cluster of the second -> cluster of the first, matched one to one so that matched
            clusters have most images in common; clusters without a match are not in it.
        only_before: number of images in the first alone.
        only_after: number of images in the second alone.
    """

    rows: list[Row]
    matched: dict[str, str]
    only_before: int
    only_after: int

    @property
    def moved(self) -> list[Row]:
        """Images whose two clusters are not matched."""
        return [row for row in self.rows if self.matched.get(row[2]) != row[1]]

    @property
    def moves(self) -> list[tuple[str, str, list[str]]]:
        """Cluster before, cluster after and names of the images that moved so, most first."""
        groups: dict[tuple[str, str], list[str]] = {}
        for name, before, after in self.moved:
            groups.setdefault((before, after), []).append(name)
        return sorted(((*ids, names) for ids, names in groups.items()), key=lambda m: -len(m[2]))


def read(workdir: epath.PathLike) -> dict[str, str]:
    """Reads `assignments.csv` of a workdir: name -> cluster, or class in novel class discovery.

    Names of several rows are left out.
    """
    table = assignments.read_workdir(workdir)
    counts = Counter(row[table.name] for row in table.rows)
    rows = [row for row in table.rows if row[table.cluster] and counts[row[table.name]] == 1]
    return {assignments.unescaped(row[table.name]): row[table.cluster] for row in rows}


def compare(before: Mapping[str, str], after: Mapping[str, str]) -> Comparison:
    """Matches the clusters of two clusterings by their common images.

    Args:
        before: name -> cluster.
        after: name -> cluster.

    Raises:
        InputError: they have no name in common.
    """
    rows = [(name, before[name], after[name]) for name in sorted(before.keys() & after.keys())]
    if not rows:
        raise InputError("the runs must have images in common; got none of the same name")
    _, old, new = zip(*rows, strict=True)
    old_names, old_codes = np.unique(old, return_inverse=True)
    new_names, new_codes = np.unique(new, return_inverse=True)
    pairs = partition.matching(old_codes, new_codes).items()
    matched = {str(new_names[b]): str(old_names[a]) for b, a in pairs}
    return Comparison(rows, matched, len(before) - len(rows), len(after) - len(rows))


def describe(comparison: Comparison) -> str:
    """The agreement of two clusterings, and the most frequent moves, as lines of text."""
    lines, moves = _facts(comparison), comparison.moves
    lines += ["", f"{'images':>7}  that changed their cluster"] if moves else []
    for before, after, names in moves[:_SHOWN]:
        match = comparison.matched.get(after)
        was = "a new one" if match is None else f"which was {match} before"
        lines.append(f"{len(names):>7,}  from {before} to {after} ({was}), for example {names[0]}")
    if (more := len(moves) - _SHOWN) > 0:
        lines.append(f"and {counted(more, 'more kind')} of moves")
    return "\n".join(lines)


def _facts(comparison: Comparison) -> list[str]:
    moved, total = comparison.moved, len(comparison.rows)
    _, before, after = zip(*comparison.rows, strict=True)
    lines = [
        f"{total:,} in both runs: {counted(len(set(before)), 'cluster')} before, "
        f"{len(set(after))} after, ARI {adjusted_rand_score(before, after):.3f}",
        f"{len(moved):,} moved ({len(moved) / total:.1%}): the others are still together",
    ]
    for name, count in (("first", comparison.only_before), ("second", comparison.only_after)):
        lines += [f"{count:,} only in the {name} run"] if count else []
    return lines


def page(comparison: Comparison, before: str, after: str, folder: str | None) -> str:
    """The comparison as a page of HTML: matched clusters, moves, and the images that moved.

    Args:
        comparison: of two clusterings.
        before: name of the first.
        after: name of the second.
        folder: URI of the local folder of the image files, which the page then shows; or None.
    """
    _, *clusters = zip(*comparison.rows, strict=True)
    old, new = map(Counter, clusters)
    pairs = Counter(zip(*clusters, strict=True))
    matched = [(b, old[b], a, new[a], pairs[b, a]) for a, b in comparison.matched.items()]
    return pages.fill(
        "comparison.html",
        before=before,
        after=after,
        facts=_facts(comparison),
        matched=sorted(matched, key=lambda row: -row[1]),
        comparison=comparison,
        uri=lambda name: None if folder is None else folder + quote(os.fsencode(name)),
        shown=_PICTURES,
    )


def moves_csv(comparison: Comparison) -> str:
    """CSV table of the images that moved: name, cluster before, and cluster after."""
    columns = zip(*comparison.moved, strict=True) if comparison.moved else ((), (), ())
    return assignments.to_csv(dict(zip(("image", "before", "after"), columns, strict=True)))
