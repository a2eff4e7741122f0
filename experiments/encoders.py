"""Frozen encoders for photos: the clusters found in their features, and their time.

    python -m experiments.encoders --data=DIR --fashion=DIR --stamps=DIR --cache=DIR

`--data` holds `images/imagenette224` and `images/tiny_imagenet10`, folders of photos of ImageNet's
kinds, and `tfds/cifar10`; `--fashion` the files of Debian's package dataset-fashion-mnist,
`--stamps` those of tuxpaint-stamps-default, drawings and photos cut out. Of each set 800 images are
embedded, once for all runs with the same `--cache`, and twelve sets of two to ten of its classes
are drawn. An encoder is chosen on the even draws and confirmed on the odd ones; labels score only.
"""

import gzip
import pathlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from cluster_jax.clustering.smooth_tree import SmoothTree
from cluster_jax.core.arrays import normalize_rows
from cluster_jax.core.config import load_config
from cluster_jax.pipeline.config import config_json
from cluster_jax.pipeline.features import write_features
from experiments import tables
from experiments.benchmark import _measure, embed

# Network and pixels; the first is what others are compared with.
ENCODERS = (
    ("efficientnet_lite0", 224),
    ("efficientnet_lite1", 224),
    ("efficientnet_lite1", 240),
    ("efficientnet_lite2", 224),
    ("efficientnet_lite2", 260),
)
IMAGES, DRAWS, ROUNDS, FEWEST = 800, 12, 7, 12
OUT = pathlib.Path(__file__).parent / "encoders"
# Sets of the kinds of ImageNet, on whose labels the networks were trained.
SEEN = ("imagenette", "tiny_imagenet10")
SCORES = ("found", "given", "error")


def features(source: Mapping[str, Any], encoder: tuple[str, int], file: pathlib.Path) -> Any:
    """Rows float32 `[n, d]` of length one and labels of a set; embeds it unless `file` exists."""
    if not file.exists():
        config = load_config("images")
        network, side = encoder
        config.encoder = network
        config.data.update(image_size=side, limit=IMAGES, **source)
        write_features(config_json(config), epath.Path(file), 0)
    with np.load(file) as arrays:
        return normalize_rows(arrays["features"]), arrays["labels"].astype(np.int64)


def draws(labels: NDArray, count: int) -> list[NDArray]:
    """Rows of `count` sets of two to ten classes, log-uniform, with 25 to 60 rows each."""
    classes, sizes = np.unique(labels, return_counts=True)
    classes = classes[sizes >= FEWEST]
    drawn = []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        k = round(np.exp(rng.uniform(np.log(2), np.log(10))))
        most = rng.integers(25, 61)
        members = [np.flatnonzero(labels == c) for c in rng.choice(classes, k, replace=False)]
        drawn.append(np.concatenate([rng.permutation(rows)[:most] for rows in members]))
    return drawn


def score(x: NDArray, y: NDArray) -> dict[str, float]:
    """ARI with the number of clusters found and with it given, and |log2| of found over true."""
    k, found = len(np.unique(y)), SmoothTree().fit(x)
    given = SmoothTree(n_clusters=k).fit(x)
    return {
        "found": adjusted_rand_score(y, found.labels_),
        "given": adjusted_rand_score(y, given.labels_),
        "error": abs(np.log2(found.n_clusters_ / k)),
    }


def seconds() -> dict[str, Any]:
    """Seconds for 1,000 images of each encoder, from pixels to features, taking turns."""
    rng, calls = np.random.default_rng(0), {}
    for network, side in ENCODERS:
        images = rng.integers(0, 256, (embed.BATCH, side, side, 3), dtype=np.uint8)
        forward = embed.ours(network, side)
        forward(images)  # compiles
        calls[f"{network} {side}"] = lambda forward=forward, images=images: forward(images)
    times = _measure.alternate(calls, ROUNDS)
    return {
        name: _measure.spread([t * 1000 / embed.BATCH for t in values])
        for name, values in times.items()
    }


def table(names: Sequence[str], results: Mapping[str, Any], half: int) -> str:
    """Means over a half of the draws of some sets, an encoder a row."""
    rows, first = [], None
    for encoder, of_sets in results.items():
        values = np.array(
            [[draw[s] for s in SCORES] for name in names for draw in of_sets[name][half::2]]
        )
        first = values if first is None else first
        better, equal = ((values - first)[:, 0] > 0).mean(), ((values - first)[:, 0] == 0).mean()
        mean = [f"{value:.3f}" for value in values.mean(axis=0)]
        rows.append([encoder, *mean, f"{better:.0%}, {equal:.0%}" if values is not first else ""])
    title = f"{', '.join(names)}: {'odd' if half else 'even'} draws"
    columns = [title, "ARI found", "ARI k given", "abs log2(k/K)", "better, equal"]
    return tables.markdown(columns, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = tables.parser("encoders", __doc__)
    for flag in ("--data", "--fashion", "--stamps", "--cache"):
        parser.add_argument(flag, type=pathlib.Path, required=True)
    flags = parser.parse_args(arguments)
    flags.cache.mkdir(exist_ok=True)
    fashion = flags.cache / "fashion.npz"
    pixels, labels = (
        np.frombuffer(gzip.decompress((flags.fashion / f"t10k-{part}.gz").read_bytes()), np.uint8)
        for part in ("images-idx3-ubyte", "labels-idx1-ubyte")
    )
    np.savez(fashion, images=pixels[16:].reshape(-1, 28, 28), labels=labels[8:])
    photos = {"name": "folder", "labels": "folders"}
    sets: dict[str, dict[str, Any]] = {
        "imagenette": {**photos, "dir": str(flags.data / "images/imagenette224")},
        "tiny_imagenet10": {**photos, "dir": str(flags.data / "images/tiny_imagenet10")},
        "cifar10": {"name": "cifar10", "dir": str(flags.data / "tfds"), "split": "test"},
        "fashion": {"name": "arrays", "dir": str(fashion)},
        "stamps": {**photos, "dir": str(flags.stamps)},
    }
    results: dict[str, dict[str, list]] = {}
    for encoder in ENCODERS:
        title = f"{encoder[0]} {encoder[1]}"
        results[title] = {}
        for name, source in sets.items():
            file = flags.cache / f"{name}_{encoder[0]}_{encoder[1]}.npz"
            x, y = features(source, encoder, file)
            results[title][name] = [score(x[rows], y[rows]) for rows in draws(y, DRAWS)]
        print(title, flush=True)
    times = seconds()
    fastest = next(iter(times.values()))["median"]
    about = tables.origin(f"{parser.prog} --data=DIR --fashion=DIR --stamps=DIR --cache=DIR")
    about["seeds"] = f"0 to {DRAWS - 1}"
    others = [name for name in sets if name not in SEEN]
    groups = [list(SEEN), others, *([name] for name in sets)]
    clock = tables.markdown(
        ["encoder, pixels", "s for 1,000 images", "times the first"],
        [[n, f"{t['median']:.1f}", f"{t['median'] / fastest:.2f}"] for n, t in times.items()],
    )
    texts = [table(names, results, half) for names in groups for half in (0, 1)]
    print(tables.write(OUT, {"draws": results, "seconds": times}, about, *texts, clock))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
