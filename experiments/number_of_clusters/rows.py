"""Unit, sharp and smooth rows compared: nearest images, placement of new ones, and novelty.

    python -m experiments.number_of_clusters.rows FILE.npz ...

Each file has `features` and `labels` of images. Every second class is known: half of its
rows are training images, the others new ones. The rows of the other classes are novel; which
classes these are alternates with the seed. Writes `rows.md` and `rows.json`.
"""

import argparse
import pathlib

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from threadpoolctl import threadpool_limits

from cluster_jax.clustering import knn, smooth
from experiments import tables
from experiments.number_of_clusters import real

KINDS, SEEDS = ("unit", "sharp", "smooth"), range(4)


def compare(x: NDArray, y: NDArray, seed: int) -> NDArray:
    """Scores float `[3, 3]` of unit, sharp and smooth rows, see `main`."""
    rng = np.random.default_rng(seed)
    y = np.unique(y, return_inverse=True)[1]
    is_known = y % 2 == seed % 2
    is_training = is_known & (rng.random(len(y)) < 0.5)
    fitted, others = x[is_training], x[~is_training]
    rows = smooth.fit(fitted)
    pairs = (
        (smooth.unit_rows(fitted).astype(np.float32), smooth.unit_rows(others).astype(np.float32)),
        (rows.sharp, rows.project(others)),
        (rows.smooth, rows.transform(others)),
    )
    classes, known = y[is_training], is_known[~is_training]
    scores = []
    for training, new in pairs:
        near = knn.nearest(training, training, 10, exclude_self=True).indices
        found = knn.nearest(new, training, 10)
        placed = knn.vote(found, classes).argmax(axis=1)
        scores.append(
            (
                (classes[near] == classes[:, None]).mean(),
                (placed == y[~is_training])[known].mean(),
                roc_auc_score(~known, found.distances[:, 0]),
            )
        )
    return np.array(scores)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m experiments.number_of_clusters.rows")
    parser.add_argument("files", nargs="+", metavar="FILE")
    rows = []
    for case in real.files_of(parser.parse_args().files):
        scores = np.mean([compare(case.rows, case.truths[0], seed) for seed in SEEDS], axis=0)
        rows.append([case.name, *(f"{value:.3f}" for value in scores.T.ravel())])
        print(*rows[-1], flush=True)
    about = tables.origin("python -m experiments.number_of_clusters.rows FILE.npz ...")
    titles = [f"{name}, {kind}" for name in ("nearest", "placed", "novel") for kind in KINDS]
    tables.write(
        pathlib.Path(__file__).parent / "rows",
        {"rows": rows},
        about,
        "# Unit, sharp and smooth rows",
        "Nearest: share of the ten nearest training images that have the class of the image. "
        "Placed: share of new images whose class the votes of ten neighbors give. Novel: area "
        "under the ROC curve of the distance to the nearest training image, for images of classes "
        f"that were not there. Mean of {len(SEEDS)} seeds.",
        tables.markdown(["", *titles], rows),
    )


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
