"""Accuracy against steps of the trainings of `experiments.run real all`, from their checkpoints."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cluster_jax import metrics
from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.core.arrays import normalize_rows
from cluster_jax.metrics.knn import knn_accuracy
from cluster_jax.runs import trainings
from cluster_jax.training import build, checkpoint, stages
from cluster_jax.training.config import RunConfig

STEPS = (100, 300, 600, 900, 1200, 1500)
# Of color maps that people with a color blindness can read: Okabe and Ito (2008).
COLORS = ("#000000", "#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#0072b2", "#d55e00", "#999999")


class Plot(NamedTuple):
    """A plot of the picture: a metric of some lines, whose axis begins at a percentage."""

    metric: str
    title: str
    lowest: float


PLOTS = (Plot("knn", "5-NN accuracy, %", 70.0), Plot("acc", "k-means ACC, k given, %", 40.0))
WIDTH, HEIGHT, LEFT, TOP, SIDE = 940, 330, 50, 30, 300


def measure(workdir: Path, steps: Iterable[int]) -> list[dict]:
    """Returns 5-NN accuracy and k-means ACC in percent of the checkpoints of a training.

    Args:
        workdir: of the run.
        steps: of the checkpoints, of which those that are there are taken.
    """
    config = trainings.read_config(workdir)
    assert isinstance(config, RunConfig), "a run of photos has no checkpoints"
    stage = build.build_run(config)
    run, found, folder = stage.training, list[dict](), workdir / "checkpoints"
    labels = np.asarray(run.dataset.labels)
    for step in sorted(set(steps) & set(checkpoint.steps(folder))):
        state = checkpoint.read(folder, build.abstract_state(run), step)
        rows = stages.embed_all(stage, run.dataset, state)[stage.config.eval.features]
        rows = normalize_rows(np.asarray(rows, np.float32))
        near = knn_accuracy(rows, labels, n_neighbors=(5,))[5]
        of_k = np.asarray(kmeans(rows, len(np.unique(labels))).labels)
        acc = metrics.scores(labels, of_k)["acc"]
        found.append({"step": step, "knn": 100 * (near or 0.0), "acc": 100 * acc})
    return found


def draw(curves: Mapping[str, Sequence[Mapping]]) -> str:
    """Returns an SVG picture of the curves, a line of each name, side by side of each metric."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for i, plot in enumerate(PLOTS):
        parts += _plot(plot, curves, LEFT + i * (SIDE + LEFT))
    for i, (name, color) in enumerate(zip(curves, COLORS, strict=False)):
        y = TOP + 14 + 20 * i
        x = LEFT + 2 * (SIDE + LEFT) - 25
        parts.append(f'<path d="M{x} {y - 4}h20" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<text x="{x + 26}" y="{y}">{name}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _plot(plot: Plot, curves: Mapping[str, Sequence[Mapping]], left: int) -> list[str]:
    """Returns the axes and lines of a plot."""
    bottom, height = HEIGHT - 50, HEIGHT - 50 - TOP

    def x_of(step: float) -> float:
        return left + SIDE * step / max(STEPS)

    def y_of(value: float) -> float:
        return bottom - height * (value - plot.lowest) / (100.0 - plot.lowest)

    parts = [f'<text x="{left}" y="{TOP - 10}">{plot.title}</text>']
    for value in np.linspace(plot.lowest, 100.0, 4):
        y = y_of(float(value))
        parts.append(f'<path d="M{left} {y:.1f}h{SIDE}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.0f}</text>')
    for step in (0, 500, 1000, 1500):
        text = f'<text x="{x_of(step):.0f}" y="{bottom + 18}" text-anchor="middle">{step}</text>'
        parts.append(text)
    parts.append(f'<text x="{left + SIDE / 2}" y="{bottom + 36}" text-anchor="middle">steps</text>')
    for (_, points), color in zip(curves.items(), COLORS, strict=False):
        line = " ".join(
            f"{x_of(p['step']):.1f},{y_of(max(p[plot.metric], plot.lowest)):.1f}" for p in points
        )
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
    return parts


def read(file: Path) -> dict[str, list[dict]]:
    """Returns the curves of a file of lines, by the name of the row."""
    curves: dict[str, list[dict]] = {}
    for line in map(json.loads, file.read_text().splitlines() if file.exists() else ()):
        curves.setdefault(line["row"], []).append(line)
    return curves
