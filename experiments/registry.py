"""Which runs make which table of the papers, and what the papers print in it.

The tables are lists in `experiments/PAPER/tables.py`. This module turns one and a scale into runs.
"""

import functools
import importlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from cluster_jax.core import config as configs
from cluster_jax.core.checks import InputError

PAPERS = ("nrcc", "ncc", "cueco", "kernel_infonce", "ncl")
GROUPS = (*PAPERS, "digits")  # folders with tables; that of the digits is no paper's
SCALES = {
    "config": (
        "scikit-learn's digits (8 x 8 pixels) and the digits config of each method as it is, which "
        "is 1,500 steps (384,000 images seen)"
    ),
    "digits": (
        "scikit-learn's digits (8 x 8 pixels) and the digits config of each method; every duration "
        "that is given in steps is a third of the config's, so that 500 steps are trained instead "
        "of 1,500 (128,000 images seen; NCL: its config unchanged)"
    ),
    "cpu": (
        "the first 5,000 images of the paper's set (NCL: 10,000), with the augmentation of its "
        "config; network, method, and optimizer of the digits config, which is a network of three "
        "convolutions instead of a ResNet; 200 steps (51,200 images seen; NCL: 8, 50 and 40 "
        "epochs)"
    ),
    "full": "the paper's setting, see the docstring of each config for what it leaves open",
}
# What the scale "cpu" changes in NCL.
NCL_ON_A_CPU = {
    "data.limit": 10_000,
    "method.queue": 1024,
    "method.neighbors": 102,
    "method.ramp": "10 epochs",
    "method.hng.count": 204,
    "stages.rotation.train.duration": "8 epochs",
    "stages.supervised.train.duration": "50 epochs",
    "train.duration": "40 epochs",
}
SEEDS = {"config": 5, "digits": 3, "cpu": 1, "full": 3}  # where --seeds does not say which


def _imagenet(classes: str, image_size: int = 256, size: int = 224) -> dict[str, Any]:
    """Keys of a subset of ImageNet-1k, of square views of `size` pixels."""
    return {
        "data.name": "imagenet2012",
        "data.split": "train",
        "data.classes": classes,
        "data.image_size": image_size,
        "augment.size": size,
        "network.stem": "imagenet",
        "novel.test_split": "validation",
    }


# What stands for "cifar10" in the names of configs; the keys in which a set differs from CIFAR-10
# where there is no such config; the number of classes.
SETS: dict[str, tuple[str, dict[str, Any], int]] = {
    "CIFAR-10": ("cifar10", {}, 10),
    "CIFAR-20": ("cifar20", {"data.name": "cifar100", "data.label": "coarse_label"}, 20),
    "CIFAR-100": ("cifar100", {"data.name": "cifar100"}, 100),
    # The variants draw the tail.
    "CIFAR-10-LT": ("cifar10", {}, 10),
    "CIFAR-20-LT": ("cifar20", {"data.name": "cifar100", "data.label": "coarse_label"}, 20),
    "STL-10": ("stl10", {"data.name": "stl10", "augment.size": 96}, 10),
    "ImageNet-10": ("imagenet_10", _imagenet("imagenet_10"), 10),
    "ImageNet-Dogs": ("imagenet_dogs", _imagenet("imagenet_dogs"), 15),
    # NCC's size. As with 224 pixels, views are 7/8 of the square that they are taken from.
    "ImageNet-10 at 96": ("imagenet_10_96", _imagenet("imagenet_10", 110, 96), 10),
    "ImageNet-Dogs at 96": ("imagenet_dogs_96", _imagenet("imagenet_dogs", 110, 96), 15),
    # Of Tiny ImageNet's classes, all images of ImageNet; the set has 500 each, of 64 pixels.
    "TinyImageNet": ("tiny_imagenet", _imagenet("tiny_imagenet"), 200),
    "TinyImageNet at 96": ("tiny_imagenet_96", _imagenet("tiny_imagenet", 110, 96), 200),
    "ImageNet-50": ("imagenet_50", _imagenet("imagenet_50"), 50),
    # CueCo trains 400 epochs on it, with BYOL's blur; a variant may say otherwise.
    "ImageNet-100": (
        "imagenet_100",
        {
            **_imagenet("imagenet_100"),
            "augment.blur.kernel": 23,
            "train.duration": "400 epochs",
        },
        100,
    ),
    "ImageNet-200": ("imagenet_200", _imagenet("imagenet_200"), 200),
    "ImageNet-1k": ("imagenet", {}, 1000),
    "ImageNet": ("imagenet", {}, 30),  # NCL's, of which the novel classes are found
}


class Run(NamedTuple):
    """A training with its evaluation, for any seed.

    Attributes:
        config: name of a config; "" for a run of `function` alone.
        changes: dotted keys of the config and their values; a dict replaces a whole section.
        images: name of the config whose sections `data`, `augment`, and `novel` are taken; None:
            its own.
        steps: factor of all durations in steps.
        function: module of `experiments`. Without a config, its `run(seed=, **changes)` returns
            metrics, with what `PROVENANCE` says, in place of a training; with one, its
            `measure(config, workdir)` returns more metrics of the training.
    """

    config: str
    changes: Mapping[str, Any] = {}
    images: str | None = None
    steps: float = 1.0
    function: str | None = None


class Variant(NamedTuple):
    """What a row trains, at every scale.

    Attributes:
        digits: name of the config at the scales `digits` and `cpu`; "": none.
        full: name of the config at the scale `full`, or "".
        changes: of the config, at every scale; see `Run`.
        small: changes at the scales `digits` and `cpu`.
        large: changes at the scale `full`.
        function: see `Run`.
        missing: why there is no run.
    """

    digits: str = ""
    full: str = ""
    changes: Mapping[str, Any] = {}
    small: Mapping[str, Any] = {}
    large: Mapping[str, Any] = {}
    function: str | None = None
    missing: str = ""

    def but(
        self,
        changes: Mapping[str, Any] = {},
        small: Mapping[str, Any] = {},
        large: Mapping[str, Any] = {},
        **fields: str,
    ) -> "Variant":
        """The same with more changes, and other fields."""
        more = {"changes": changes, "small": small, "large": large}
        merged = {name: {**getattr(self, name), **values} for name, values in more.items()}
        return self._replace(**merged, **fields)


class Row(NamedTuple):
    """A row of a table.

    Attributes:
        name: as in the paper.
        variant: what is trained.
        score: which scores of the run: "kmeans", "gridshift", "discovery.novel", ...
        line: where it is printed, in `papers/PAPER.txt`, whose lines stand in for pages; 0: not.
        printed: what the paper prints, a word for each metric of each set, "-" for an empty one.
    """

    name: str
    variant: Variant
    score: str
    line: int = 0
    printed: str = ""


class Table(NamedTuple):
    """A table or figure of a paper.

    Attributes:
        source: line of the caption in `papers/PAPER.txt`.
        title: what it shows.
        metrics: columns of each set: "ACC" is the entry "acc" of a row's score; see `table.PATHS`.
        sets: data sets of the paper, in the order of its columns. At the scales `digits` and `cpu`
            ours stands beside the first one.
        rows: in the order of the paper.
        protocol: of the paper.
    """

    source: int
    title: str
    metrics: tuple[str, ...]
    sets: tuple[str, ...]
    rows: list[Row]
    protocol: str


def table(
    source: int, title: str, metrics: str, sets: str, rows: Iterable[Iterable], protocol: str = ""
) -> Table:
    """A table of rows and of words: metrics "NMI ACC", sets "CIFAR-10, CIFAR-20"; see `Table`."""
    names = tuple(metrics.split()), tuple(sets.split(", "))
    return Table(source, title, *names, [Row(*row) for row in rows], protocol)


def swept(
    name: str, base: Variant, key: str, values: Iterable[float], score: str = "kmeans"
) -> list[Row]:
    """Rows that differ in a key."""
    return [Row(f"{name} {x:g}", base.but({key: x}), score) for x in values]


def curve(name: str, variant: Variant, every: int) -> list[Row]:
    """Rows of five checkpoints of a training, at full scale after each `every` steps."""
    small, large = ({"train.checkpoint_every": steps} for steps in (100, every))
    kept = variant.but({"train.keep_checkpoints": 5}, small, large, function="curves")
    return [Row(f"{name}, {share} %", kept, f"after.{share}") for share in range(20, 101, 20)]


class Cell(NamedTuple):
    """A row of a table on one data set: its run, or why there is none, and what is printed."""

    row: Row
    data: str
    run: Run | None
    missing: str
    printed: tuple[str, ...]


def tables(paper: str) -> dict[str, Table]:
    """Number -> table, of a paper.

    Raises:
        InputError: no such paper.
    """
    if paper not in GROUPS:
        raise InputError(f"paper must be one of {', '.join(GROUPS)}; got {paper!r}")
    module = importlib.import_module(f"experiments.{paper}.tables")
    return {
        number: table._replace(protocol=table.protocol or module.PROTOCOL)
        for number, table in module.TABLES.items()
    }


def find(paper: str, number: str) -> Table:
    """The table of a paper, by its number ("2", "A4", "figure4").

    Raises:
        InputError: no such paper or table.
    """
    found = tables(paper)
    if number not in found:
        raise InputError(f"table of {paper} must be one of {', '.join(found)}; got {number!r}")
    return found[number]


def cells(chosen: Table, scale: str) -> list[Cell]:
    """All rows of a table at a scale, on each of its sets at the scale `full`.

    Raises:
        InputError: no such scale.
    """
    if scale not in SCALES:
        raise InputError(f"scale must be one of {', '.join(SCALES)}; got {scale!r}")
    width, found = len(chosen.metrics), []
    for row in chosen.rows:
        for i, name in enumerate(chosen.sets if scale == "full" else chosen.sets[:1]):
            run, missing = _run(row.variant, name, scale)
            printed = tuple(row.printed.split())[i * width : (i + 1) * width] or ("-",) * width
            found.append(Cell(row, name, run, missing, printed))
    return found


def _run(variant: Variant, data: str, scale: str) -> tuple[Run | None, str]:
    """The run of a variant on a set of the paper, or None and why there is none."""
    if variant.missing:
        return None, variant.missing
    if not (variant.digits or variant.full):
        return Run("", variant.changes, function=variant.function), ""
    run, missing = _training(variant, data, scale)
    return run and run._replace(function=variant.function), missing


# Read once each: a table at full scale asks for its configs hundreds of times.
_known = functools.cache(configs.config_names)
_read = functools.cache(configs.load_config)  # not to be changed


def _training(variant: Variant, data: str, scale: str) -> tuple[Run | None, str]:
    """The training of a variant on a set of the paper, or None and why there is none."""
    config, known = variant.full if scale == "full" else variant.digits, _known()
    if scale == "full" and data not in SETS:
        return None, f"there is no config of {data} yet"
    for needed in (config, variant.full if scale == "cpu" else config):
        if needed not in known:
            return None, f"there is no config {needed}".rstrip() + f" for the scale {scale}"
    if scale == "full":
        name, changes, classes = SETS[data]
        # A subset of ImageNet has no other split, whatever the variant takes of CIFAR.
        split = {key: changes[key] for key in ("data.split",) if key in changes}
        if _read(config).novel.test_split is None:
            changes = {key: value for key, value in changes.items() if key != "novel.test_split"}
        own = config.replace("cifar10", name)
        if own in known:
            config, changes = own, {}
        wanted = {**variant.changes, **variant.large}
        sections = {"method": _read(config).method, **wanted}
        for section in ("method", "term"):
            if "clusters" in sections.get(section, {}):
                changes = {**changes, f"{section}.clusters": classes}
        # Twice, because a section is replaced before its keys are.
        return Run(config, {**wanted, **changes, **wanted, **split}), ""
    is_ncl, changes = config.startswith("ncl"), {**variant.changes, **variant.small}
    if scale in ("config", "digits"):
        whole = is_ncl or scale == "config"
        return Run(config, changes, steps=1.0 if whole else 1 / 3), ""
    reduced = NCL_ON_A_CPU if is_ncl else {"data.limit": 5_000}
    steps = 1.0 if is_ncl else 2 / 15
    return Run(config, {**reduced, **changes}, variant.full, steps), ""


def build(run: Run, seed: int, data_dir: str | None = None) -> ConfigDict:
    """The config of a run with a seed.

    Args:
        run: what is trained.
        seed: random seed.
        data_dir: folder of the data sets, `data.dir`; None: that of the config.

    Raises:
        InputError: a change has an unknown key.
    """
    made = configs.load_config(run.config)
    made.seed = seed
    if run.images is not None:
        images = configs.load_config(run.images)
        made.data, made.augment, made.novel = images.data, images.augment, images.novel
    if data_dir is not None:
        made.data.dir = data_dir
    for key, value in run.changes.items():
        configs.check_key(made, key)
        *sections, name = key.split(".")
        section = made
        for part in sections:
            section = section[part]
        with section.ignore_type():  # None, or a section for None
            section[name] = ConfigDict(value) if isinstance(value, Mapping) else value
    if run.steps != 1:
        _shorten(made, run.steps)
    return made


def _shorten(section: ConfigDict, factor: float) -> None:
    """Multiplies all durations in steps; 50 epochs stay 50 epochs."""
    for key, value in section.items():
        if isinstance(value, ConfigDict):
            _shorten(value, factor)
        elif isinstance(value, str) and (steps := re.fullmatch(r"(\d+) steps?", value)):
            section[key] = f"{round(int(steps[1]) * factor)} steps"
