"""Which runs make which table of the papers, and what the papers print in it.

The tables are in `experiments/PAPER/tables.yaml`, or in a file of one's own: named variants, each
the fields of `Variant` and which other it is `from`, and the rows, `[name, variant, score,
printed]`; scales and sets are in `experiments/sets.yaml`. This module turns a table and a scale
into runs, whose results are lines of a file.
"""

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import yaml
from ml_collections import ConfigDict

from cluster_jax.core import config as configs
from cluster_jax.core.checks import InputError
from cluster_jax.training.config import config_json
from experiments.tables import Lines

PAPERS = ("nrcc", "ncc", "cueco", "kernel_infonce", "ncl")
# Folders with tables; those of the digits and of other sets are no paper's.
GROUPS = (*PAPERS, "digits", "real")
FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results.jsonl"
# Columns of GridShift's clusters, whatever the score of the row.
OF_GRIDSHIFT = {"clusters", "their-ACC"}
# A change that is no key of a config: class sizes fall to one of so many, see `run.long_tail`.
TAIL = "data.tail"


@functools.cache
def _read(file: str) -> dict:
    return yaml.safe_load((FOLDER / file).read_text())


_SETS = _read("sets.yaml")
SCALES: dict[str, str] = _SETS["scales"]
SEEDS: dict[str, int] = _SETS["seeds"]


class Run(NamedTuple):
    """A training with its evaluation.

    Attributes:
        config: name of a config.
        changes: dotted keys of the config and their values; a dict replaces a whole section.
        steps: factor of all durations in steps.
        seed: random seed.
    """

    config: str
    changes: Mapping = {}
    steps: float = 1.0
    seed: int = 0


class Variant(NamedTuple):
    """What a row trains, at every scale.

    Attributes:
        config: name or file of a config, at every scale; "": that of the scale.
        digits: name of the config at the scales `config` and `digits`; "": none.
        full: name of the config at the scale `full`, or "".
        changes: of the config, at every scale; see `Run`.
        small: changes at the scales `config` and `digits`.
        large: changes at the scale `full`.
        missing: why there is no run.
    """

    config: str = ""
    digits: str = ""
    full: str = ""
    changes: Mapping = {}
    small: Mapping = {}
    large: Mapping = {}
    missing: str = ""


class Row(NamedTuple):
    """A row of a table.

    Attributes:
        name: as in the paper.
        variant: what is trained.
        score: which scores of the run: "kmeans", "gridshift", "discovery.novel", ...
        printed: what the paper prints, a word for each metric of each set, "-" for an empty one;
            "": nothing.
    """

    name: str
    variant: Variant
    score: str
    printed: str = ""


class Table(NamedTuple):
    """A table or figure of a paper.

    Attributes:
        title: what it shows.
        metrics: columns of each set: "ACC" is the entry "acc" of a row's score; see `table.PATHS`.
        sets: data sets of the paper, in the order of its columns. Of the digits ours stands beside
            the first one.
        rows: in the order of the paper.
        protocol: of the paper.
        source: the table or figure of the paper, "Table A1"; several here can be parts of one.
            "": of no paper.
    """

    title: str
    metrics: list[str]
    sets: list[str]
    rows: list[Row]
    protocol: str
    source: str = ""


class Cell(NamedTuple):
    """A row of a table on one data set: its run, or why there is none, and what is printed."""

    row: Row
    data: str
    run: Run | None
    missing: str
    printed: tuple[str, ...]


def tables(group: str) -> dict[str, Table]:
    """Number -> table, of a paper, of the digits or real sets, or of a file "mine.yaml".

    Raises:
        InputError: no such paper or file, or the file is no file of tables.
    """
    stored, found = _stored(group), {}
    for number, table in stored["tables"].items():
        lacking = {"title", "metrics", "rows"} - set(table)
        spare = set(table) - set(Table._fields)
        if lacking or spare:
            names = ", ".join(sorted(lacking or spare))
            raise InputError(f"table {number} of {group} {'lacks' if lacking else 'has'} {names}")
        rows = [Row(name, _variant(made, group), *rest) for name, made, *rest in table["rows"]]
        lists = {"metrics": table["metrics"].split(), "sets": table.get("sets", group).split(", ")}
        filled = {"protocol": stored.get("protocol", ""), **table, **lists, "rows": rows}
        found[str(number)] = Table(**filled)
    return found


def _stored(group: str) -> dict:
    if group in GROUPS:
        return _read(f"{group}/tables.yaml")
    file = Path(group).resolve()
    if file.suffix != ".yaml":
        raise InputError(
            f"paper must be one of {', '.join(GROUPS)}, or a .yaml file of tables; got {group!r}"
        )
    if not file.is_file():
        raise InputError(f"{group} must be an existing file of tables; got no such file")
    try:
        stored = _read(str(file))
    except yaml.YAMLError as error:
        raise InputError(f"{group} must be YAML: {' '.join(str(error).split())}") from error
    if not isinstance(stored, dict) or not isinstance(stored.get("tables"), dict):
        raise InputError(f"{group} must have tables, as experiments/digits/tables.yaml has them")
    return stored


def _variant(made: str | Mapping, group: str) -> Variant:
    """A variant by its name, of another paper "ncc.moco34", or by its fields and `from`.

    Raises:
        InputError: there is no such variant, or it has another field.
    """
    if isinstance(made, str):
        other, _, name = made.rpartition(".")
        known = _stored(other or group).get("variants", {})
        if name not in known:
            must = f"variant of {other or group} must be one of {', '.join(known) or 'none'}"
            raise InputError(f"{must}; got {name!r}")
        return _variant(known[name], other or group)
    fields = dict(made)
    base = _variant(fields.pop("from"), group) if "from" in fields else Variant()
    for name in fields.keys() - set(Variant._fields):
        known = ", ".join(("from", *Variant._fields))
        raise InputError(f"a variant of {group} may have {known}; got {name!r}")
    for name in ("changes", "small", "large"):
        fields[name] = {**getattr(base, name), **fields.get(name, {})}
    return base._replace(**fields)


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


# Read once each, and not to be changed: a table at full scale asks for configs hundreds of times.
_known = functools.cache(configs.config_names)
_config = functools.cache(configs.load_config)


def _run(variant: Variant, data: str, scale: str) -> tuple[Run | None, str]:
    """The run of a variant on a set of the paper, or None and why there is none."""
    if variant.missing:
        return None, variant.missing
    if variant.config:
        configs.find_config(variant.config)
        changes = {**variant.changes, **(variant.large if scale == "full" else variant.small)}
        return Run(variant.config, changes, 1 / 3 if scale == "digits" else 1.0), ""
    config, known = variant.full if scale == "full" else variant.digits, _known()
    if scale == "full" and data not in _SETS["sets"]:
        return None, f"there is no config of {data} yet"
    if config not in known:
        return None, f"there is no config {config}".rstrip() + f" for the scale {scale}"
    if scale == "full":
        name, changes, classes = _SETS["sets"][data]
        # A subset of ImageNet has no other split, whatever the variant takes of CIFAR.
        split = {key: changes[key] for key in ("data.split",) if key in changes}
        if _config(config).novel.test_split is None:
            changes = {key: value for key, value in changes.items() if key != "novel.test_split"}
        own = config.replace("cifar10", name)
        if own in known:
            config, changes = own, {}
        wanted = {**variant.changes, **variant.large}
        sections = {"method": _config(config).method, **wanted}
        for section in ("method", "term"):
            if "n_clusters" in sections.get(section, {}):
                changes = {**changes, f"{section}.n_clusters": classes}
        # Twice, because a section is replaced before its keys are.
        return Run(config, {**wanted, **changes, **wanted, **split}), ""
    whole = config.startswith("ncl") or scale == "config"
    return Run(config, {**variant.changes, **variant.small}, 1.0 if whole else 1 / 3), ""


def needs_map(group: str) -> bool:
    """Whether a row of a file of tables has scores of GridShift, which clusters UMAP's map.

    Tables of the papers share their runs, which therefore have all scores.
    """
    if group in GROUPS:
        return True
    every = tables(group).values()
    scores = {row.score for table in every for row in table.rows}
    metrics = {metric for table in every for metric in table.metrics}
    return "gridshift" in scores or bool(metrics & OF_GRIDSHIFT)


def build(run: Run, data_dir: str | None = None) -> ConfigDict:
    """The config of a run.

    Args:
        run: what is trained.
        data_dir: folder of the data sets; the `data.dir` of a variant, a file, is in it. None: that
            of the config.

    Raises:
        InputError: a change has an unknown key.
    """
    made, values = configs.load_config(run.config), {**run.changes, "seed": run.seed}
    values.pop(TAIL, None)
    if data_dir is not None:
        values["data.dir"] = str(Path(data_dir, values.get("data.dir", "")))
    for key, value in values.items():
        configs.override(made, key, ConfigDict(value) if isinstance(value, Mapping) else value)
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


def digest(config: ConfigDict) -> str:
    """A digest of a config, whatever its seed and the folder of its data."""
    values = config_json(config)
    values |= {"seed": 0, "data": {**values["data"], "dir": None}}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def stored(file: Path = RESULTS) -> Lines:
    """The results of the runs in a file, which `find` finds by `run._asdict()`."""
    return Lines(file, *Run._fields)
