"""Which rows of a frozen EfficientNet-Lite2 to cluster: its last layer, the one before, others.

    python -m experiments.layers --data=DIR --cache=DIR

`--data` holds `images/imagenette224` and `images/tiny_imagenet10`, folders of photos, and
`tfds/cifar10`. Of each set 500 images are embedded once, whole and by their central part of 160 of
224 pixels. Rows are chosen on draws of two to five of the even classes and confirmed on draws of
the odd ones, which did not choose them; labels score only. Kept is what gains 0.01 there.
"""

import pathlib
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from cluster_jax.core.arrays import normalize_rows
from cluster_jax.core.config import load_config
from cluster_jax.data import datasets
from cluster_jax.nets.backbone import Layers
from cluster_jax.nets.backbones import efficientnet_lite
from cluster_jax.nets.norm import BatchNorm
from cluster_jax.nets.pretrained import lite
from cluster_jax.pipeline.config import parse_config
from experiments import encoders, tables

NAME, SIDE, PART, BATCH = "efficientnet_lite2", 224, 160, 20
IMAGES, DRAWS = 500, 12
OUT = pathlib.Path(__file__).parent / "layers"
FIRST = "last layer (today)"


def network() -> Any:
    """A function of images uint8 `[b, 224, 224, 3]`: pooled rows of the two last layers.

    They are `before` float32 `[b, 352]`, `last` `[b, 1280]` and `general` `[b, 1280]`, which is the
    generalized mean of exponent 3 in place of the mean (Radenovic et al. 2019).
    """
    params, stats = lite.load(NAME)
    norm = partial(BatchNorm, False, None, None, None)
    backbone = efficientnet_lite.make(NAME, width=efficientnet_lite.WIDTH, stem=None)
    module = backbone.module(Layers(norm, norm, 0, None))
    blocks = sum(stage.depth for stage in efficientnet_lite.stages_of(NAME))
    # The last block, and the normalization of the convolution behind it.
    before, head = f"InvertedBottleneck_{blocks - 1}", "BatchNorm_1"

    @jax.jit
    def forward(images: Array) -> dict[str, Array]:
        x = (images.astype(jnp.float32) / 255 - jnp.array(lite.MEAN)) / jnp.array(lite.STD)
        last, kept = module.apply(
            {"params": params, "batch_stats": stats},
            x,
            mutable=["intermediates"],
            capture_intermediates=lambda layer, _: layer.path in ((before,), (head,)),
        )
        maps = {name: kept["intermediates"][name]["__call__"][0] for name in (before, head)}
        high = jnp.clip(maps[head], 0, 6)
        return {
            "last": last,
            "before": maps[before].mean(axis=(1, 2)),
            "general": jnp.mean(high**3, axis=(1, 2)) ** (1 / 3),
        }

    return forward


def central(images: NDArray) -> NDArray:
    """The central part of images `[b, 224, 224, 3]` at their size."""
    margin = (SIDE - PART) // 2
    part = images[:, margin:-margin, margin:-margin].astype(np.float32)
    large = jax.image.resize(part, images.shape, "bicubic")
    return np.asarray(jnp.clip(jnp.round(large), 0, 255), np.uint8)


def embed(source: Mapping[str, Any], file: pathlib.Path) -> dict[str, NDArray]:
    """Rows and labels of a set, computed unless `file` has them; those of `central` in `part`."""
    if not file.exists():
        config = load_config("images")
        config.data.update(image_size=SIDE, limit=IMAGES, interpolation="bicubic", **source)
        dataset = datasets.load(parse_config(config).data)
        forward, found = network(), dict[str, list]()
        for start in range(0, dataset.size, BATCH):
            images = dataset.fetch(np.arange(start, min(start + BATCH, dataset.size)))
            rows = {**forward(images), "part": forward(central(images))["last"]}
            for name, values in rows.items():
                found.setdefault(name, []).append(np.asarray(values))
        arrays = {name: np.concatenate(values) for name, values in found.items()}
        np.savez(file, labels=dataset.labels, **arrays)
    with np.load(file) as stored:
        return dict(stored)


def rows_of(stored: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """The rows that are compared, of length one, by name."""
    last, before, general, part = (
        normalize_rows(stored[name]) for name in ("last", "before", "general", "part")
    )
    return {
        FIRST: last,
        "the layer before": before,
        "both side by side": normalize_rows(np.concatenate([last, before], axis=1)),
        "generalized mean, exponent 3": general,
        "mean of whole and central part": normalize_rows(last + part),
    }


def draws(labels: NDArray, half: int) -> list[NDArray]:
    """Rows of sets of two to five of every second class, with 20 to 50 rows each."""
    classes, drawn = np.unique(labels)[half::2], []
    for seed in range(DRAWS):
        rng = np.random.default_rng((half, seed))
        most = rng.integers(20, 51)
        members = [
            np.flatnonzero(labels == c)
            for c in rng.choice(classes, rng.integers(2, len(classes) + 1), replace=False)
        ]
        drawn.append(np.concatenate([rng.permutation(rows)[:most] for rows in members]))
    return drawn


def table(results: Mapping[str, Any], half: int) -> str:
    """Mean ARI over the draws of a half of the classes, on every set and on all, a row each."""
    lines = []
    for name, of_sets in results.items():
        means = [
            [np.mean([draw[score] for draw in halves[half]]) for score in ("found", "given")]
            for halves in of_sets.values()
        ]
        cells = [*means, np.mean(means, axis=0)]
        lines.append([name, *(f"{found:.3f}, {given:.3f}" for found, given in cells)])
    title = f"{('even', 'odd')[half]} classes: ARI found, k given"
    return tables.markdown([title, *next(iter(results.values())), "all"], lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = tables.parser("layers", __doc__)
    for flag in ("--data", "--cache"):
        parser.add_argument(flag, type=pathlib.Path, required=True)
    flags = parser.parse_args(arguments)
    flags.cache.mkdir(exist_ok=True)
    photos = {"name": "folder", "labels": "folders"}
    sets: dict[str, dict[str, Any]] = {
        "imagenette": {**photos, "dir": str(flags.data / "images/imagenette224")},
        "tiny_imagenet10": {**photos, "dir": str(flags.data / "images/tiny_imagenet10")},
        "cifar10": {"name": "cifar10", "dir": str(flags.data / "tfds"), "split": "test"},
    }
    results: dict[str, dict[str, list]] = {}
    for name, source in sets.items():
        stored = embed(source, flags.cache / f"layers_{name}.npz")
        for rows, x in rows_of(stored).items():
            results.setdefault(rows, {})[name] = [
                [encoders.score(x[i], stored["labels"][i]) for i in draws(stored["labels"], half)]
                for half in (0, 1)
            ]
        print(name, flush=True)
    about = tables.origin(f"{parser.prog} --data=DIR --cache=DIR", seeds=f"0 to {DRAWS - 1}")
    print(tables.write(OUT, {"draws": results}, about, *(table(results, h) for h in (0, 1))))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
