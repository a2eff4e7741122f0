"""Runs of several seeds, and tables of their mean and standard deviation."""

import pathlib
import statistics
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from cluster_jax.core import io
from cluster_jax.pipeline import provenance
from cluster_jax.pipeline import run as pipeline
from experiments import machine

FIGURES = {
    "k-means ACC": ("kmeans", "acc"),
    "k-means NMI": ("kmeans", "nmi"),
    "GridShift ACC": ("gridshift", "acc"),
    "GridShift NMI": ("gridshift", "nmi"),
    "clusters found": ("gridshift", "n_clusters"),
    "5-NN": ("knn", "5"),
    "gradient share": ("gradient_share",),
}


def repeat(config: ConfigDict, seeds: Sequence[int], folder: str, name: str) -> list[dict]:
    """Results of a config for each seed; runs that are finished in `folder` are not run again."""
    results = []
    for seed in seeds:
        seeded = config.copy_and_resolve_references()
        seeded.seed = seed
        workdir = pathlib.Path(folder) / f"{name}-seed{seed}"
        results.append(pipeline.run_pipeline(seeded, workdir, name))
    return results


def figures(
    results: Sequence[dict], speeds: Sequence[float] | None, titles: Mapping[str, tuple]
) -> dict[str, dict]:
    """Figures of `titles` over the seeds, and images/s: values, mean, standard deviation."""
    found = {}
    for title, path in titles.items():
        values = [_at(r["metrics"], path) for r in results]
        if any(v is None for v in values):
            continue
        found[title] = _spread(values)
    if speeds is not None:
        found["images/s"] = _spread(speeds)
    return found


def write(
    path: str,
    command: str,
    rows: Mapping[str, Sequence[dict]],
    note: str,
    speeds: Mapping[str, Sequence[float]] | None = None,
    titles: Mapping[str, tuple] = FIGURES,
) -> str:
    """Writes `PATH.json` and `PATH.md`, a table of mean and standard deviation; returns it.

    `speeds` are images/s of each row, measured apart; None: no such column. `titles` says where
    each other column is in the metrics.
    """
    summary = {
        name: figures(results, None if speeds is None else speeds[name], titles)
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


def _cell(title: str, figure: dict | None) -> str:
    if figure is None:
        return ""
    if title == "images/s":
        return f"{figure['mean']:,.0f}"
    if title.endswith("found"):
        return ", ".join(str(v) for v in figure["values"])
    return f"{figure['mean']:.3f} ± {figure['std']:.3f}"


def _about(about: Mapping) -> list[str]:
    versions = ", ".join(f"{k} {v}" for k, v in about["versions"].items())
    return [
        f"Mean ± standard deviation over seeds {', '.join(map(str, about['seeds']))}. "
        f"Command: `{about['command']}`. Hardware: {about['machine']}. Versions: {versions}. "
        f"Commit: {', '.join(map(str, about['commits']))}.",
        "",
        f"{about['images_trained']:,} images trained on, {about['images_scored']:,} scored. "
        f"{about['note']}",
    ]


def _at(metrics: Mapping, path: tuple[str, ...]) -> float | None:
    for key in path:
        metrics = metrics.get(key)
        if metrics is None:
            return None
    return metrics
