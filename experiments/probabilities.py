"""How far the probability of a cluster can be believed, for rows of a training and for new rows.

    python -m experiments.probabilities FEATURES.npz...

Each file has `features` `[n, d]` and `labels` `[n]` of photos. Of its classes, one half is a list
to choose by and the other one to confirm; 12 draws of 4 to 40 classes of each half are clustered by
`SmoothTree`, four fifths of the photos of each class as the training, the rest as new rows. A row
is right if the commonest class of its cluster, over the training rows, is its own. Labels score,
nothing else. The figures are in `probabilities.json`, of which `probabilities.md` is written.
"""

import argparse
import pathlib

import numpy as np
from numpy.typing import NDArray

from cluster_jax import SmoothTree
from experiments import tables

FILE = pathlib.Path(__file__).parent / "probabilities.json"
DRAWS, SURE = 12, 0.9
_COLUMNS = (": right", f": told {SURE} or more", ": right of these", ": right of the others")


def _draw(features: NDArray, labels: NDArray, rng: np.random.Generator) -> dict[str, float]:
    """The shares of one draw, of training rows and of new rows."""
    classes = np.unique(labels)
    chosen = rng.choice(classes, rng.integers(4, min(40, len(classes)) + 1), replace=False)
    rows = rng.permutation(np.flatnonzero(np.isin(labels, chosen)))
    is_new = np.zeros(len(rows), bool)
    for label in chosen:
        own = np.flatnonzero(labels[rows] == label)
        is_new[own[: len(own) // 5]] = True
    x, y = features[rows].astype(np.float32), labels[rows]
    model = SmoothTree("cosine").fit(x[~is_new])
    commonest = np.array(
        [np.bincount(y[~is_new][model.labels_ == c]).argmax() for c in range(model.n_clusters_)]
    )
    found = model.locate(x[is_new])
    shares = {}
    for name, mine, placed, sure in (
        ("training rows", y[~is_new], model.labels_, model.probabilities_),
        ("new rows", y[is_new], found.labels, found.probabilities),
    ):
        is_right, is_sure = commonest[placed] == mine, sure >= SURE
        shares |= {
            f"{name}: right": is_right.mean(),
            f"{name}: told {SURE} or more": is_sure.mean(),
            f"{name}: right of these": is_right[is_sure].mean(),
            f"{name}: right of the others": is_right[~is_sure].mean(),
        }
    return {key: float(value) for key, value in shares.items()}


def main() -> None:
    """Measures all files, and writes the table and the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=pathlib.Path, metavar="FEATURES.npz")
    entries: dict[str, dict[str, float]] = {}
    for file in parser.parse_args().files:
        with np.load(file) as stored:
            features, labels = stored["features"], stored["labels"]
        classes = np.random.default_rng(0).permutation(np.unique(labels))
        for name, half in zip(("choose", "confirm"), np.array_split(classes, 2), strict=True):
            rng, own = np.random.default_rng(1), np.isin(labels, half)
            draws = [_draw(features[own], labels[own], rng) for _ in range(DRAWS)]
            means = {key: float(np.mean([draw[key] for draw in draws])) for key in draws[0]}
            entries[f"{file.stem}, {name}"] = means
    rows = [
        (name, kind, *(f"{means[kind + of]:.3f}" for of in _COLUMNS))
        for name, means in entries.items()
        for kind in ("training rows", "new rows")
    ]
    titles = ("classes", "rows", "right", f"told {SURE} or more", "right of these", "of the others")
    about = tables.origin("python -m experiments.probabilities FEATURES.npz...", seeds="0 and 1")
    text = (
        "# Probabilities of clusters\n\nMean over "
        f"{DRAWS} draws of 4 to 40 classes of photos of each half of a set's classes, clustered by "
        "`SmoothTree`; a fifth of the rows of each class are new ones. A row is right if the "
        "commonest class of its cluster is its own, so that of a cluster of two classes one is "
        "wrong, however sure its rows are. The rule was chosen on the halves `choose`."
    )
    print(tables.write(FILE.with_suffix(""), entries, about, text, tables.markdown(titles, rows)))


if __name__ == "__main__":
    main()
