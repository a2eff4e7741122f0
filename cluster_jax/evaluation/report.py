"""The report of a run: one HTML file that opens offline, with plots, pictures and tables."""

import functools
import html
import importlib.resources
import json
import math
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from etils import epath
from plotly.offline import get_plotlyjs

from cluster_jax import storage
from cluster_jax.evaluation import figures


class ReportData(NamedTuple):
    """Everything the report shows.

    Attributes:
        title: name of the run.
        results: what `results.json` holds; figures that need labels are None without them.
        history: logged lines, each a dict with `step` and scalars.
        points: float `[n, d]`, d >= 2, the space the clusters were found in.
        clusters: int `[n]`, found without a given number of clusters.
        distances: float `[n]`, to the centre of the own cluster, in the space of `points`.
        labels: int `[n]`, or None.
        label_names: name of each label number, or None.
        thumbnails: image numbers -> uint8 `[b, height, width, 1 or 3]`.
        sources: file name of each image, or None.
        curve: a `bandwidth.Curve` as a dict, or None.
        skipped: file name and reason of each image that could not be read.
    """

    title: str
    results: dict
    history: list[dict]
    points: np.ndarray
    clusters: np.ndarray
    distances: np.ndarray
    labels: np.ndarray | None
    label_names: tuple[str, ...] | None
    thumbnails: Callable[[np.ndarray], np.ndarray]
    sources: tuple[str, ...] | None
    curve: dict | None
    skipped: tuple[tuple[str, str], ...]


class Html(str):
    """Text that is markup already; any other text is escaped when it is filled in."""


Section = tuple[str, Html]  # name, which is also its anchor, and all of its markup


def write_report(path: epath.PathLike, data: ReportData) -> None:
    """Writes the report to `path`, whole or not at all.

    Args:
        path: local or remote (`gs://...`) file in a folder that is there; an old file is replaced.
        data: what to show. The same data give the same bytes.

    Raises:
        ValueError: arrays that do not belong together.
    """
    # A file name may hold bytes that are not UTF-8 (lone surrogates); those are spelt out.
    storage.write(path, render(data).encode("utf-8", "backslashreplace"))


def render(data: ReportData) -> str:
    """The page as text; arguments and errors are those of `write_report`."""
    figures.check(data)
    groups = figures.by_size(data.clusters, data.distances)
    names = data.label_names
    if data.labels is not None and names is None:
        names = tuple(map(str, range(int(data.labels.max()) + 1)))
    labels = None if data.labels is None else [names[label] for label in data.labels.tolist()]
    history = figures.history_series(data.history)
    chart = figures.scatter(
        data.points, data.clusters, data.distances, groups, labels, data.sources, data.thumbnails
    )
    titles = {name: line | {"title": _name(name)} for name, line in history.items()}
    record = {"map": chart, "sizes": figures.size_bars(groups), "history": titles}
    strip, clusters = _clusters(data, groups, labels)
    sections = [
        _metrics(data.results, data.labels is None),
        _training(data.history, history),
        _map(data, groups, chart["count"]),
        clusters,
        _sizes(groups),
    ]
    if data.curve is not None:
        record["curve"] = figures.bandwidth_curve(data.curve)
        sections.append(_bandwidth(data.curve))
    if data.labels is not None:
        record["confusion"], (rows, columns) = figures.confusion(data.labels, names, groups)
        values = {"labels": _count(rows, "label"), "clusters": _count(columns, "cluster")}
        sections.append(_section("labels", values, hidden=rows + columns > 0))
    if data.skipped:
        sections.append(_skipped(data.skipped))
    links = _join(_fill("link", name=name, title=name.capitalize()) for name, _ in sections)
    text = json.dumps(record, allow_nan=False)
    return string.Template(_file("report.html")).substitute(
        title=html.escape(data.title),
        css=_file("report.css"),
        head=_head(data, groups, labels, strip, links),
        sections=_join(content for _, content in sections),
        # Inside a script element these could end it or start a comment.
        data=text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
        plotly=get_plotlyjs(),
        script=_file("report.js"),
    )


def _file(name: str) -> str:
    return (importlib.resources.files("cluster_jax.evaluation") / name).read_text("utf-8")


@functools.cache
def _parts() -> dict[str, string.Template]:
    """The pieces of the page by name; each stands under its name in a comment."""
    _, *pieces = re.split(r"<!-- (\w+) -->\n", _file("report_parts.html"))
    pairs = zip(pieces[::2], pieces[1::2], strict=True)
    return {name: string.Template(text.strip()) for name, text in pairs}


def _fill(part: str, **values: object) -> Html:
    """A piece of the page with its values, escaped unless they are `Html`."""
    safe = {k: v if isinstance(v, Html) else html.escape(str(v)) for k, v in values.items()}
    return Html(_parts()[part].substitute(safe))


def _join(pieces: Iterable[Html]) -> Html:
    return Html("\n".join(pieces))


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def _section(name: str, values: dict, part: str = "", **notes: bool) -> Section:
    """A section filled with `values`; of the optional `notes` beside it those that are true."""
    pieces = ["about", *(note for note, there in notes.items() if there)]
    about = _join(_fill(f"{name}_{piece}", **values) for piece in pieces)
    parts = {"about": about, "content": _fill(part or name, **values)}
    return name, _fill("section", name=name, title=name.capitalize(), **parts)


def _head(data: ReportData, groups: list, labels: list | None, strip: Html, links: Html) -> Html:
    """What was found, in words, one picture of each cluster, and links to the sections."""
    acc = figures.number(data.results["metrics"].get("gridshift", {}).get("acc"))
    values = {
        "images": _count(len(data.points), "image"),
        "groups": _count(len(groups), "group"),
        "labels": "" if labels is None else _count(len(set(labels)), "label"),
        "acc": "" if acc is None else f"{acc:.1%}",
        "files": _count(len(data.skipped), "file"),
    }
    notes = {
        "single": len(groups) == 1,
        "labelled": labels is not None and acc is not None,
        "unlabelled": labels is None,
        "skipped": len(data.skipped) > 0,
    }
    text = _join(_fill(f"head_{note}", **values) for note, there in notes.items() if there)
    return _fill("head", title=data.title, notes=text, strip=strip, links=links, **values)


def _words() -> dict[str, str]:
    """Keys of the results that read better as other words."""
    return dict(line.split(": ", 1) for line in _parts()["words"].template.splitlines())


def _name(*path: object) -> str:
    name = " ".join(_words().get(str(part), str(part).replace("_", " ")) for part in path)
    return name if name.startswith("k-") else name[:1].upper() + name[1:]  # k-means, k-NN


def _value(value: object, decimals: bool = True) -> str:
    """Any entry of the results as text; a dash where there is nothing to show."""
    if isinstance(value, Mapping):
        pairs = [
            (_words().get(k, k), _value(v, decimals)) for k, v in value.items() if v is not None
        ]
        return ", ".join(map(" ".join, pairs))
    if isinstance(value, list | tuple):
        return ", ".join(_value(item, decimals) for item in value) or "nothing"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == "" or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, int) or (decimals and isinstance(value, float) and abs(value) >= 1000):
        return f"{value:,.0f}"
    if not isinstance(value, float):
        return str(value)
    if not decimals or 0 < abs(value) < 0.0005:  # three decimals would show nothing of it
        return f"{value:.4g}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def _pairs(title: str, rows: Sequence[tuple[str, str]], kind: str) -> Html:
    """A table of names and values; empty if there are no rows."""
    cells = _join(_fill("pair", name=name, value=value, kind=kind) for name, value in rows)
    return _fill("pairs", title=title, rows=cells) if rows else Html("")


def _flat(path: tuple, value: object) -> Iterator[tuple[tuple, object]]:
    """Nested measurements one by one, each with its keys; those that are None left out."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat((*path, key), item)
    elif value is not None:
        yield path, value


def _metrics(results: dict, unlabelled: bool) -> Section:
    """Tables: clusterings against the labels, other measurements, protocol."""
    origin = results["protocol"].get("number_of_clusters", {})
    columns = ("n_clusters", "acc", "nmi", "ari", "ami")
    methods, others = [], {}
    for key, value in results["metrics"].items():
        if isinstance(value, Mapping) and "n_clusters" in value:
            shown = {score: _value(value.get(score)) for score in columns}
            methods.append(_fill("method", name=_name(key), origin=origin.get(key, ""), **shown))
            value = {k: v for k, v in value.items() if k not in shown and k != "k_given"}
        others[key] = value
    others["images per second in training"] = results.get("images_per_second")
    others["seconds to"] = results.get("seconds")
    measured = [(_name(*path), _value(item)) for path, item in _flat((), others)]
    protocol = [
        (_name(key), str(value) if key == "seed" else _value(value, decimals=False))
        for key, value in results["protocol"].items()
    ]
    tables = (_pairs("Other measurements", measured, "n"), _pairs("Protocol", protocol, ""))
    parts = {"methods": _join(methods), "tables": _join(tables)}
    return _section("metrics", parts, unlabelled=unlabelled)


def _training(history: Sequence[dict], series: dict) -> Section:
    logged = [line for line in history if "loss" in line]
    bad = [line["step"] for line in logged if figures.number(line["loss"]) is None]
    values = {"steps": _count(len(bad), "logged step"), "first": f"{min(bad, default=0):,}"}
    if series:
        name, line = next(iter(series.items()))
        seen = [value for value in line["value"] if value is not None]
        values |= {"name": _name(name), "start": f"{seen[0]:.4g}", "end": f"{seen[-1]:.4g}"}
    return _section("training", values, "" if series else "training_none", gaps=len(bad) > 0)


def _map(data: ReportData, groups: list, drawn: int) -> Section:
    n, dimensions = data.points.shape
    values = {
        "images": _count(drawn, "image"),
        "clusters": _count(len(groups), "cluster"),
        "all": f"{n:,}",
        "pictures": f"{figures.MAP_PICTURES:,}",
        "dimensions": dimensions,
        "views": _fill("map_views") if dimensions > 2 else "",
    }
    notes = {"sampled": drawn < n, "pictured": drawn > figures.MAP_PICTURES}
    return _section("map", values, plane=dimensions > 2, **notes)


def _clusters(data: ReportData, groups: list, labels: list[str] | None) -> tuple[Html, Section]:
    """The strip of the head, one picture per cluster, and the contact sheets."""
    strip, articles = [], []
    swatches = {g.id: _fill("swatch", symbol=g.symbol, color=g.color) for g in groups}
    for group in groups[: figures.SHOWN]:
        parts = figures.sheets(data.points, data.clusters, group)
        rows = np.array([i for part in parts.values() for i, _ in part])
        images = figures.pictures(data.thumbnails, rows, figures.SHEET_SIDE)
        uris = [figures.data_uri(image, figures.is_lossless(image)) for image in images]
        common, share = (None, 0.0) if labels is None else figures.composition(group, labels)
        look = {
            "id": group.id,
            "swatch": swatches[group.id],
            "color": group.color,
            "sharp": " pixels" if max(images[0].shape[:2]) <= figures.LOSSLESS_SIDE else "",
            "count": f"{len(group.members):,}",
            "size": _count(len(group.members), "image"),
            "share": f"{len(group.members) / len(data.points):.1%}",
            "note": "" if labels is None else f"; {share:.1%} labelled {common}",
        }
        strip.append(_fill("strip", uri=uris[0], **look))
        queue, sheets = iter(uris), []
        for title, part in parts.items():
            tiles = []
            for i, other in part:
                words = [f"image {i}" if data.sources is None else data.sources[i]]
                words += [] if labels is None else [f"label {labels[i]}"]
                words += [f"distance {data.distances[i]:.3g}"]
                words += [] if other is None else [f"next to cluster {other}"]
                picture = {"uri": next(queue), "sharp": look["sharp"], "alt": ", ".join(words)}
                odd = Html(' class="odd"') if labels is not None and labels[i] != common else ""
                badge = "" if other is None else _fill("badge", swatch=swatches[other], id=other)
                tiles.append(_fill("tile", odd=odd, badge=badge, **picture))
            across = 3 if title in ("Least typical", "Borderline") else 6
            sheets.append(_fill("sheet", title=title, across=across, tiles=_join(tiles)))
        articles.append(_fill("cluster", sheets=_join(sheets), **look))
    rest = len(groups) - figures.SHOWN
    values = {"shown": figures.SHOWN, "rest": _count(rest, "smaller one"), "all": _join(articles)}
    notes = {"borderline": len(groups) > 1, "labelled": labels is not None, "hidden": rest > 0}
    return _join(strip), _section("clusters", values, **notes)


def _sizes(groups: list) -> Section:
    sizes = [len(group.members) for group in groups]
    values = {
        "largest": _count(sizes[0], "image"),
        "smallest": f"{sizes[-1]:,}",
        "median": f"{np.median(sizes):,.0f}",
        "shown": figures.BARS,
        "clusters": _count(len(groups), "cluster"),
    }
    return _section("sizes", values, hidden=len(groups) > figures.BARS)


def _bandwidth(curve: dict) -> Section:
    width, count = (curve[key][curve["chosen"]] for key in ("bandwidths", "n_clusters"))
    values = {"width": f"{width:.4g}", "clusters": _count(int(count), "cluster")}
    return _section("bandwidth", values, unclear=not curve["clear"])


def _skipped(skipped: Sequence[tuple[str, str]]) -> Section:
    rows = _join(_fill("skipped_file", name=name, reason=why) for name, why in skipped)
    return _section("skipped", {"files": _count(len(skipped), "file"), "rows": rows})
