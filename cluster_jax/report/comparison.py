"""Comparison of two clusterings: images or rows whose cluster has changed."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from etils import epath
from sklearn.metrics import adjusted_rand_score

from cluster_jax.core.checks import InputError
from cluster_jax.core.names import counted
from cluster_jax.metrics import partition
from cluster_jax.report import assignments, pages, plots, summary

_SHOWN = 20  # kinds of moves
_PICTURES = 24  # images of a kind of move
_WIDTH, _HEIGHT = 600, 150  # of a picture of learning curves


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


class Trained(NamedTuple):
    """What a run has measured.

    Attributes:
        results: content of `results.json`, empty if there is none.
        history: logged lines of the training, each with `step` and scalars.
    """

    results: Mapping[str, Any]
    history: Sequence[Mapping[str, Any]]


class Curves(NamedTuple):
    """One logged scalar of two runs, as a picture.

    Attributes:
        name: of the scalar.
        lines: of the first run and the second, `"x,y x,y"` from the top left; steps from 0 to
            `last`, values from `low` to `high`.
        last: the largest step.
        low: the least value.
        high: the largest value.
    """

    name: str
    lines: list[str]
    last: int
    low: float
    high: float


def side_by_side(before: Trained, after: Trained) -> list[tuple[str, str, str]]:
    """Lists name and values, as text, of each metric and of the end of each learning curve."""
    metrics = summary.figures(before.results), summary.figures(after.results)
    return [
        (name, _number(first.get(name)), _number(second.get(name)))
        for first, second in (metrics, (_ends(before), _ends(after)))
        for name in {**first, **second}
    ]


def _ends(run: Trained) -> dict[str, float]:
    return {
        f"Last {name.replace('_', ' ')}": [y for y in curve.values() if y is not None][-1]
        for name, curve in plots.training_curves(run.history).items()
    }


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def learning_curves(before: Trained, after: Trained) -> list[Curves]:
    """Returns what both runs have logged, without values that are not finite."""
    first, second = (plots.training_curves(run.history) for run in (before, after))
    curves = []
    for name in (name for name in first if name in second):
        points = [
            [(x, y) for x, y in curve[name].items() if y is not None] for curve in (first, second)
        ]
        steps, values = zip(*points[0], *points[1], strict=True)
        last, low, high = max(steps), min(values), max(values)
        x_scale, y_scale = _WIDTH / max(last, 1), _HEIGHT / (high - low or 1)
        lines = [
            " ".join(f"{x * x_scale:.1f},{(high - y) * y_scale:.1f}" for x, y in line)
            for line in points
        ]
        curves.append(Curves(name.replace("_", " "), lines, last, low, high))
    return curves


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


def describe(comparison: Comparison, figures: Sequence[tuple[str, str, str]]) -> str:
    """Describes how two clusterings agree, metrics, and the most frequent moves, in lines of text.

    Args:
        comparison: of two clusterings.
        figures: see `side_by_side`.
    """
    lines, moves = _facts(comparison), comparison.moves
    if figures:
        table = [("", "before", "after"), *figures]
        widths = [max(len(row[i]) for row in table) for i in range(3)]
        lines += [
            "",
            *(f"{a:<{widths[0]}}{b:>{widths[1] + 3}}{c:>{widths[2] + 3}}" for a, b, c in table),
        ]
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


def page(
    comparison: Comparison,
    before: str,
    after: str,
    folder: str | None,
    figures: Sequence[tuple[str, str, str]],
    curves: Sequence[Curves],
) -> str:
    """Renders the comparison as HTML: moves and their images, metrics, and matched clusters.

    Args:
        comparison: of two clusterings.
        before: name of the first.
        after: name of the second.
        folder: URI of the local folder of the image files, which the page then shows; or None.
        figures: see `side_by_side`.
        curves: see `learning_curves`.
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
        figures=figures,
        curves=curves,
        size=(_WIDTH, _HEIGHT),
    )


def moves_csv(comparison: Comparison) -> str:
    """Formats the images that moved as CSV: name, cluster before, and cluster after."""
    columns = zip(*comparison.moved, strict=True) if comparison.moved else ((), (), ())
    return assignments.to_csv(dict(zip(("image", "before", "after"), columns, strict=True)))
