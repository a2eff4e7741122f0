"""Runs of several seeds, and tables of their mean and standard deviation."""

import pathlib
import statistics
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from cluster_jax.core import io
from cluster_jax.pipeline import provenance
from cluster_jax.pipeline import run as pipeline
from experiments import machine

METRICS = {
    "k-means ACC": ("kmeans", "acc"),
    "k-means NMI": ("kmeans", "nmi"),
    "GridShift ACC": ("gridshift", "acc"),
    "GridShift NMI": ("gridshift", "nmi"),
    "clusters found": ("gridshift", "n_clusters"),
    "5-NN": ("knn", "5"),
    "gradient share": ("gradient_share",),
}


def repeat(config: ConfigDict, seeds: Sequence[int], folder: str, name: str) -> list[dict]:
    """Results of a config for each seed; finished runs in `folder` are reused."""
    results = []
    for seed in seeds:
        seeded = config.copy_and_resolve_references()
        seeded.seed = seed
        workdir = pathlib.Path(folder) / f"{name}-seed{seed}"
        results.append(pipeline.run_pipeline(seeded, workdir, name))
    return results


def summarize(
    results: Sequence[dict], speeds: Sequence[float] | None, titles: Mapping[str, tuple]
) -> dict[str, dict]:
    """Values, mean, and standard deviation over the seeds of each of `titles`, and of images/s."""
    columns = {}
    for title, path in titles.items():
        values = [_at(r["metrics"], path) for r in results]
        if any(v is None for v in values):
            continue
        columns[title] = _spread(values)
    if speeds is not None:
        columns["images/s"] = _spread(speeds)
    return columns


def write(
    path: str,
    command: str,
    rows: Mapping[str, Sequence[dict]],
    note: str,
    speeds: Mapping[str, Sequence[float]] | None = None,
    titles: Mapping[str, tuple] = METRICS,
) -> str:
    """Writes `PATH.json` and `PATH.md`, a table of mean and standard deviation; returns it.

    Args:
        path: of the two files, without extension.
        command: that makes the table.
        rows: results of all seeds, by the name of the row.
        note: how the runs were made.
        speeds: images/s of each row, measured separately; None: no such column.
        titles: title of each other column -> its path in the metrics.
    """
    summary = {
        name: summarize(results, None if speeds is None else speeds[name], titles)
        for name, results in rows.items()
    }
    example = next(iter(rows.values()))[0]["provenance"]
    commits = sorted({r["provenance"]["commit"] for results in rows.values() for r in results})
    seeds = sorted({r["provenance"]["seed"] for results in rows.values() for r in results})
    about = {
        "command": command,
        "seeds": seeds,
        "machine": machine.describe(),
        "devices": example["devices"],
        "versions": provenance.versions(),
        "commits": commits,
        "images_trained": example["images_trained"],
        "images_scored": example["images_scored"],
        "note": note,
    }
    io.write_json(f"{path}.json", {"rows": summary, "provenance": about})
    text = "\n".join([_markdown(summary, titles), "", *_about(about)]) + "\n"
    io.write(f"{path}.md", text)
    return text


def _spread(values: Sequence[float]) -> dict:
    std = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"values": list(values), "mean": statistics.fmean(values), "std": std}


def _markdown(summary: Mapping[str, dict], titles: Mapping[str, tuple]) -> str:
    titles = [t for t in (*titles, "images/s") if any(t in row for row in summary.values())]
    lines = ["| | " + " | ".join(titles) + " |", "|---|" + "---:|" * len(titles)]
    for name, row in summary.items():
        cells = [_cell(title, row.get(title)) for title in titles]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(title: str, column: dict | None) -> str:
    if column is None:
        return ""
    if title == "images/s":
        return f"{column['mean']:,.0f}"
    if title.endswith("found"):
        return ", ".join(str(v) for v in column["values"])
    return f"{column['mean']:.3f} ± {column['std']:.3f}"


def _about(about: Mapping) -> list[str]:
    versions = ", ".join(f"{k} {v}" for k, v in about["versions"].items())
    return [
        f"Mean ± standard deviation over seeds {', '.join(map(str, about['seeds']))}. "
        f"Command: `{about['command']}`. Hardware: {about['machine']}. Versions: {versions}. "
        f"Commit: {', '.join(map(str, about['commits']))}.",
        "",
        f"{about['images_trained']:,} training images, {about['images_scored']:,} scored. "
        f"{about['note']}",
    ]


def _at(metrics: Mapping, path: tuple[str, ...]) -> float | None:
    for key in path:
        metrics = metrics.get(key)
        if metrics is None:
            return None
    return metrics
