"""The picture of `SmoothTree` in the guide: sharp rows, smooth rows, and the score of each k.

    python -m experiments.number_of_clusters.figure

Writes `experiments/tutorials/smooth_tree.svg`, of scikit-learn's wine (178 rows of 13 standardized
columns): both panels of rows show the plane through the means of the clusters found.
"""

import pathlib

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_wine
from sklearn.decomposition import PCA
from sklearn.preprocessing import scale

from cluster_jax.clustering.smooth_tree import SmoothTree
from cluster_jax.evaluation.report_data import COLORS

_SIDE, _GAP, _TITLE = 240, 30, 24
_MOST = 20  # clusters on the horizontal axis


def points(rows: NDArray, labels: NDArray) -> str:
    """Circles of rows `[n, 2]`, scaled to a panel, in the color of their cluster."""
    low, high = rows.min(axis=0), rows.max(axis=0)
    placed = ((rows - low) / (high - low) * (_SIDE - 8) + 4).round(1)
    groups = []
    for c in np.unique(labels):
        circles = "".join(f'<circle cx="{x}" cy="{y}" r="2"/>' for x, y in placed[labels == c])
        groups.append(f'<g fill="{COLORS[c % len(COLORS)]}">{circles}</g>')
    return "".join(groups)


def curve(scores: dict[int, float], chosen: int) -> str:
    """The score of each number of clusters up to `_MOST`, the chosen one marked."""
    ks = [k for k in sorted(scores) if k <= _MOST]
    top = max(scores.values()) * 1.1
    place = {k: (k / _MOST * _SIDE, _SIDE * (1 - scores[k] / top)) for k in ks}
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in place.values())
    x, y = place[chosen]
    return (
        f'<polyline points="{line}" fill="none" stroke="#4477aa" stroke-width="2"/>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#cc3311"/>'
        f'<text x="{x + 6:.1f}" y="{y - 6:.1f}">k = {chosen}</text>'
        f'<text x="{_SIDE}" y="{_SIDE - 6}" text-anchor="end">k up to {_MOST}</text>'
    )


def main() -> None:
    """Entry point."""
    model = SmoothTree("euclidean").fit(scale(load_wine().data))
    labels = model.labels_[model.sample_]
    rows = model.smoother_
    means = np.stack([rows.smooth[labels == c].mean(axis=0) for c in range(model.n_clusters_)])
    axes = PCA(2).fit(means)
    panels = [
        ("Sharp rows", points(axes.transform(rows.sharp), labels)),
        ("Smooth rows", points(axes.transform(rows.smooth), labels)),
        ("Score of each number of clusters", curve(model.scores_, model.n_clusters_)),
    ]
    parts = [
        f'<g transform="translate({i * (_SIDE + _GAP)},{_TITLE})"><text y="-8">{title}</text>'
        f'<rect width="{_SIDE}" height="{_SIDE}" fill="none" stroke="#bbb"/>{content}</g>'
        for i, (title, content) in enumerate(panels)
    ]
    size = 3 * _SIDE + 2 * _GAP, _SIDE + _TITLE
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-1 0 {size[0] + 2} {size[1] + 1}"'
    sheet = f'<rect x="-1" width="{size[0] + 2}" height="{size[1] + 1}" fill="white"/>'
    text = f'{head} font-family="sans-serif" font-size="13">{sheet}{"".join(parts)}</svg>\n'
    folder = pathlib.Path(__file__).parents[1] / "tutorials"
    (folder / "smooth_tree.svg").write_text(text)


if __name__ == "__main__":
    main()
