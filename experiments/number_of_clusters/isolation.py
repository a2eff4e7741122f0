"""Photos of kinds of their own among clusters: what ranks them high?

    python -m experiments.number_of_clusters.isolation FILE.npz ...

Each file has `features` and `labels` of images. A draw has equally many images of some classes, and
one image of each of up to 14 other classes, the strangers. Writes `isolation.md` and
`isolation.json`.
"""

import argparse
import pathlib

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from threadpoolctl import threadpool_limits

from cluster_jax.clustering import smooth
from cluster_jax.evaluation import clusters
from experiments import tables
from experiments.number_of_clusters import real

# Classes of a draw, and images of each.
DRAWS, SEEDS, N_STRANGERS = ((3, 30), (10, 60)), range(5), 14
TITLES = ("strangers", "isolation", "among the first", "distance", "1 - probability", "outliers")


def draw(y: NDArray, classes: int, images: int, seed: int) -> tuple[NDArray, NDArray]:
    """Indices of a draw, and which of its images are strangers."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(np.unique(y))
    members = [rng.permutation(np.flatnonzero(y == c))[:images] for c in order[:classes]]
    others = order[classes:][:N_STRANGERS]
    strangers = np.array([rng.choice(np.flatnonzero(y == c)) for c in others], int)
    known = np.concatenate(members)
    return np.concatenate([known, strangers]), np.arange(len(known) + len(strangers)) >= len(known)


def scores(x: NDArray, is_stranger: NDArray) -> NDArray:
    """The values of `TITLES` for the features `[n, d]` of a draw, float `[6]`."""
    found = clusters.run_tree(x, metric="cosine", seed=0)
    assert found.tree is not None
    assert found.membership is not None
    isolation = clusters.isolation(x, "cosine", found.tree.sample_)
    count = is_stranger.sum()
    first = np.argsort(-isolation, kind="stable")[:count]
    ranked = (isolation, found.distances, 1 - found.membership.probabilities)
    areas = [roc_auc_score(is_stranger, values) for values in ranked]
    share = found.outliers[is_stranger].mean()
    return np.array([count, areas[0], is_stranger[first].mean(), *areas[1:], share])


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m experiments.number_of_clusters.isolation")
    parser.add_argument("files", nargs="+", metavar="FILE")
    rows = []
    for case in real.files_of(parser.parse_args().files):
        x, y = smooth.unit_rows(case.rows).astype(np.float32), case.truths[0]
        for classes, images in DRAWS:
            if len(np.unique(y)) <= classes:
                continue
            made = [draw(y, classes, images, seed) for seed in SEEDS]
            values = np.mean([scores(x[i], is_stranger) for i, is_stranger in made], axis=0)
            cells = [f"{values[0]:.0f}", *(f"{value:.3f}" for value in values[1:])]
            rows.append([case.name, f"{classes} x {images}", *cells])
            print(*rows[-1], flush=True)
    about = tables.origin("python -m experiments.number_of_clusters.isolation FILE.npz ...")
    tables.write(
        pathlib.Path(__file__).parent / "isolation",
        {"rows": rows},
        about,
        "# Images of a kind of their own",
        "Strangers, one image of each of so many other classes, among the images of some classes. "
        "Area under the ROC curve for telling them from the others by the isolation of "
        "`assignments.csv` (mean distance to the five nearest other images), by the distance to "
        "the center of the cluster, and by the probability of the cluster; the share of strangers "
        "among as many most isolated images; and the share of them that are outliers, images of "
        f"clusters of fewer than {clusters.MIN_CLUSTER_ROWS}. Mean of {len(SEEDS)} seeds.",
        tables.markdown(["", "classes x images", *TITLES], rows),
    )


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
