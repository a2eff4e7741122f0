"""The report of a run: one HTML file that opens offline, with plots, pictures and tables."""

import html
import json
import string
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from etils import epath
from plotly.offline import get_plotlyjs

from cluster_jax.core import io
from cluster_jax.evaluation import content, exemplars, markup, plots, summary
from cluster_jax.evaluation.content import ReportData
from cluster_jax.evaluation.markup import Html, Section, count, fill, join


def write_report(path: epath.PathLike, data: ReportData) -> None:
    """Writes the report to `path`, whole or not at all.

    Args:
        path: local or remote (`gs://...`) file in a folder that is there; an old file is replaced.
        data: what to show. The same data give the same bytes.

    Raises:
        ValueError: arrays that do not belong together.
    """
    # A file name may hold bytes that are not UTF-8 (lone surrogates); those are spelled out.
    io.write(path, render(data).encode("utf-8", "backslashreplace"))


def render(data: ReportData) -> str:
    """The page as text; arguments and errors are those of `write_report`."""
    content.check(data)
    groups = plots.by_size(data.clusters, data.distances)
    names = data.label_names
    if data.labels is not None and names is None:
        names = tuple(map(str, range(int(data.labels.max()) + 1)))
    labels = None if data.labels is None else [names[label] for label in data.labels.tolist()]
    chart = plots.scatter(
        data.points,
        data.clusters,
        data.distances,
        groups,
        data.outliers,
        labels,
        data.sources,
        data.thumbnails,
    )
    history = plots.history_series(data.history)
    record = {
        "nouns": content.nouns(data),
        "map": chart,
        "sizes": plots.size_bars(groups),
        "history": {key: line | {"title": markup.name(key)} for key, line in history.items()},
    }
    strip, clusters = exemplars.section(data, groups, names)
    sections = [_metrics(data.results, data.labels is None)]
    if data.history:
        sections.append(_training(data.history, history))
    sections += [_map(data, groups, chart["count"]), clusters, _sizes(data, groups)]
    if data.curve is not None:
        record["curve"] = plots.bandwidth_curve(data.curve)
        sections.append(_bandwidth(data))
    if data.labels is not None:
        record["confusion"], (rows, columns) = plots.confusion(data.labels, names, groups)
        values = {"labels": count(rows, "label"), "clusters": count(columns, "cluster")}
        values |= content.nouns(data)
        sections.append(markup.section("labels", values, hidden=rows + columns > 0))
    if data.skipped:
        sections.append(_skipped(data.skipped))
    links = join(fill("link", name=name, title=name.capitalize()) for name, _ in sections)
    text = json.dumps(record, allow_nan=False)
    return string.Template(markup.file("report.html")).substitute(
        title=html.escape(data.title),
        css=markup.file("report.css"),
        head=_head(data, groups, labels, strip, links),
        sections=join(piece for _, piece in sections),
        # Inside a script element these could end it or start a comment.
        data=text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
        plotly=get_plotlyjs(),
        script=markup.file("report.js"),
    )


def _head(data: ReportData, groups: list, labels: list | None, strip: Html, links: Html) -> Html:
    """What was found, in words, one entry for each cluster, and links to the sections."""
    nouns, metrics = content.nouns(data), data.results["metrics"]
    novel = metrics.get("discovery")
    method = "gridshift" if "gridshift" in metrics else "kmeans"
    entry = novel["novel"] if novel else metrics.get(method, {})
    acc = plots.number(entry.get("acc"))
    origin = data.results["provenance"].get("number_of_clusters", {}).get(method)
    outliers = 0 if data.outliers is None else int(np.sum(data.outliers))
    doubt = summary.doubt(novel) if novel else None
    large, small = content.tally(data, [group.members for group in groups])
    values = {
        "points": count(len(data.points), nouns["thing"]),
        "groups": summary.groups(large, small, "group"),
        "origin": "given" if novel or origin == "given" else "not given",
        "labels": "" if labels is None else count(len(set(labels)), "label"),
        "acc": "" if acc is None else f"{acc:.1%}",
        "outliers": f"{count(outliers, nouns['thing'])} {'is' if outliers == 1 else 'are'}",
        "small": count(small, "further group"),
        "files": count(len(data.skipped), "file"),
        "found": summary.groups(*summary.tally(metrics["gridshift"]), "cluster") if novel else "",
        "doubt": "" if doubt is None else doubt[0].upper() + doubt[1:],
        **nouns,
    }
    notes = {
        "single": large == 1,
        "novel": novel is not None,
        "unclear": not novel and data.curve and _verdict(data.curve) == "no clear answer",
        "outliers": outliers > 0,
        "labeled": labels is not None and acc is not None,
        "unlabeled": labels is None,
        "doubt": doubt is not None,
        "skipped": len(data.skipped) > 0,
    }
    text = join(fill(f"head_{note}", **values) for note, there in notes.items() if there)
    return fill("head", title=data.title, notes=text, strip=strip, links=links, **values)


def _flat(path: tuple, value: object) -> Iterator[tuple[tuple, object]]:
    """Nested measurements one by one, each with its keys; those that are None left out."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat((*path, key), item)
    elif value is not None:
        yield path, value


def _metrics(results: dict, unlabeled: bool) -> Section:
    """Tables: clusterings against the labels, other measurements, protocol."""
    origin = results["provenance"].get("number_of_clusters", {})
    columns = ("n_clusters", "acc", "nmi", "ari", "ami")
    methods, others = [], {}
    entries = dict(results["metrics"])
    if entries.get("discovery"):
        head = {"novel head": entries["discovery"]["novel"]}
        rest = {k: v for k, v in entries["discovery"].items() if k != "novel"}
        entries, origin = {**head, **entries, "discovery": rest}, {**origin, "novel head": "given"}
    for key, entry in entries.items():
        if isinstance(entry, Mapping) and "n_clusters" in entry:
            shown = {score: markup.value(entry.get(score)) for score in columns}
            shown["n_clusters"] = summary.number(*summary.tally(entry))
            row = {"name": markup.name(key), "origin": origin.get(key, ""), **shown}
            methods.append(fill("method", **row))
            # What there is one of for each cluster is shown with the clusters.
            entry = {
                k: v
                for k, v in entry.items()
                if k not in (*shown, "n_large", "k_given") and not isinstance(v, Mapping)
            }
        others[key] = entry
    others["images per second in training"] = results.get("images_per_second")
    others["seconds to"] = results.get("seconds")
    measured = [(markup.name(*path), markup.value(item)) for path, item in _flat((), others)]
    protocol = [
        (markup.name(key), str(entry) if key == "seed" else markup.value(entry, decimals=False))
        for key, entry in results["provenance"].items()
    ]
    tables = (
        markup.pairs("Other measurements", measured, "n"),
        markup.pairs("Protocol", protocol, ""),
    )
    parts = {"methods": join(methods), "tables": join(tables)}
    return markup.section("metrics", parts, unlabeled=unlabeled)


def _training(history: Sequence[dict], series: dict) -> Section:
    logged = [line for line in history if "loss" in line]
    bad = [line["step"] for line in logged if plots.number(line["loss"]) is None]
    values = {"steps": count(len(bad), "logged step"), "first": f"{min(bad, default=0):,}"}
    if series:
        name, line = next(iter(series.items()))
        seen = [value for value in line["value"] if value is not None]
        values |= {"name": markup.name(name), "start": f"{seen[0]:.4g}", "end": f"{seen[-1]:.4g}"}
    part = "training" if series else "training_none"
    return markup.section("training", values, part, gaps=len(bad) > 0)


def _map(data: ReportData, groups: list, drawn: int) -> Section:
    n, dimensions = data.points.shape
    nouns = content.nouns(data)
    tally = content.tally(data, [group.members for group in groups])
    values = {
        "points": count(drawn, nouns["thing"]),
        "clusters": summary.groups(*tally, "cluster"),
        "all": f"{n:,}",
        "pictures": f"{plots.MAP_PICTURES:,}",
        "dimensions": dimensions,
        "views": fill("map_views") if dimensions > 2 else "",
        **nouns,
    }
    notes = {
        "images": data.thumbnails is not None,
        "rows": data.thumbnails is None,
        "outliers": data.outliers is not None and bool(np.any(data.outliers)),
        "sampled": drawn < n,
        "pictured": data.thumbnails is not None and drawn > plots.MAP_PICTURES,
    }
    return markup.section("map", values, plane=dimensions > 2, **notes)


def _sizes(data: ReportData, groups: list) -> Section:
    sizes = [len(group.members) for group in groups]
    tally = content.tally(data, [group.members for group in groups])
    values = {
        "largest": count(sizes[0], content.nouns(data)["thing"]),
        "smallest": f"{sizes[-1]:,}",
        "median": f"{np.median(sizes):,.0f}",
        "shown": plots.BARS,
        "clusters": summary.groups(*tally, "cluster"),
    }
    return markup.section("sizes", values, hidden=len(groups) > plots.BARS)


def _verdict(curve: dict) -> str:
    return curve.get("verdict") or ("clear" if curve["clear"] else "no clear answer")


def _bandwidth(data: ReportData) -> Section:
    """The scan over bandwidths, what it says, and the answers that came next."""
    curve = data.curve
    width, clusters = (curve[key][curve["best_index"]] for key in ("bandwidths", "n_clusters"))
    answers = [a if isinstance(a, Mapping) else a._asdict() for a in curve.get("runners_up") or ()]
    rows = [
        fill(
            "answer",
            width=f"{answer['bandwidth']:.4g}",
            clusters=f"{answer['n_clusters']:,}",
            score=markup.value(float(answer["score"])),
        )
        for answer in answers
    ]
    values = {
        "width": f"{width:.4g}",
        "clusters": count(int(clusters), "cluster"),
        "answers": fill("answers", rows=join(rows)) if rows else "",
        **content.nouns(data),
    }
    verdict = _verdict(curve)
    notes = {"single": verdict == "one cluster", "unclear": verdict == "no clear answer"}
    return markup.section("bandwidth", values, **notes)


def _skipped(skipped: Sequence[tuple[str, str]]) -> Section:
    rows = join(fill("skipped_file", name=name, reason=why) for name, why in skipped)
    values = {"files": count(len(skipped), "file"), "rows": rows}
    return markup.section("skipped", values)
