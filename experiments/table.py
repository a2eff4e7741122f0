"""The page of a table of `experiments.run`: ours beside the paper's, as Markdown."""

import json
import re
from collections.abc import Mapping
from itertools import groupby, permutations
from statistics import fmean, stdev
from typing import Any, NamedTuple

from cluster_jax.report import summary
from experiments import registry, tables
from experiments.registry import Cell, Table
from experiments.tables import Lines

# Metrics that may not be part of a row's score: path in the results of a run, and factor.
PATHS = {
    "top-1": ("metrics.linear_probe", 100.0), "top-5": ("metrics.linear_probe_top_5", 100.0),
    "5-NN": ("metrics.knn.5", 100.0), "20-NN": ("metrics.knn.20", 100.0),
    "100-NN": ("metrics.knn.100", 100.0), "std": ("metrics.collapse.projection.std", 1.0),
    "clusters": ("metrics.gridshift.n_clusters", 1.0),
    "their-ACC": ("metrics.gridshift.acc", 100.0),
    "minutes": ("provenance.seconds.train_and_embed", 1 / 60),
}  # fmt: skip
# Decimals of metrics that are no percent.
DIGITS = {"clusters": 0, "std": 3}
# Pairs of rows in another order than the paper's that are shown, the largest differences first.
SHOWN = 12
# Provenance that is stated once for a table where all rows agree.
STATED = (
    "data images_trained images_scored labels_used_for pretrained number_of_clusters "
    "clusters_given_to_training checkpoint kmeans_n_init steps batch_size devices precision "
    "machine versions commit"
)


class Value(NamedTuple):
    """One number beside the paper's: ours over the seeds, and what is printed."""

    row: str
    data: str
    metric: str
    ours: list[float]
    printed: float | None
    text: str


def number(text: str) -> float | None:
    """The number that a paper prints: "79.4±1.7" is 79.4, "5h33m" is 333 minutes, "-" is None."""
    if text == "-":
        return None
    if clock := re.fullmatch(r"(\d+)h(\d+)m", text):
        return 60.0 * int(clock[1]) + int(clock[2])
    return float(text.split("±")[0])


def lookup(row: Mapping, score: str, metric: str) -> float | None:
    """A metric of a run, in percent where the papers have it; `own.x` is of `eval.metrics`."""
    prefix = score if score.endswith("_") else f"{score}."
    own = (f"metrics.{metric}", 1.0) if metric.startswith("own.") else ("", 100.0)
    path, factor = PATHS.get(metric, own)
    value = entry(row, f"metrics.{prefix}{metric.lower()}")
    if value is None:
        value = entry(row, path)
    return None if value is None else factor * value


def entry(values: Any, path: str) -> Any:
    """The entry of nested dictionaries under dotted keys, or None."""
    for part in path.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def collect(
    chosen: Table, scale: str, seeds: list[int], results: Lines
) -> tuple[list[Value], list[dict], dict[str, list[str]]]:
    """The numbers of a table, its finished runs, and its gaps: why -> names of rows."""
    values, runs, gaps = list[Value](), [], dict[str, list[str]]()
    for cell in registry.cells(chosen, scale):
        finished, problem = _finished(cell, seeds, results)
        name = f"{cell.row.name}, {cell.data}" if scale == "full" else cell.row.name
        runs += finished
        if problem:
            gaps.setdefault(problem, []).append(name)
        for metric, text in zip(chosen.metrics, cell.printed, strict=True):
            ours = [lookup(row, cell.row.score, metric) for row in finished]
            numbers = [x for x in ours if x is not None]
            if finished and not numbers and not chosen.source:
                gaps.setdefault(f"no {metric} of {cell.row.score} in the results", []).append(name)
            values.append(Value(cell.row.name, cell.data, metric, numbers, number(text), text))
    return values, runs, gaps


def _finished(cell: Cell, seeds: list[int], results: Lines) -> tuple[list[dict], str]:
    """The finished runs of a cell, and what is wrong with the others."""
    if cell.run is None:
        return [], cell.missing
    found = {seed: results.find(cell.run._replace(seed=seed)._asdict()) for seed in seeds}
    failed = [f"seed {s}: {row['error']}" for s, row in found.items() if "error" in row]
    missing = [str(seed) for seed, row in found.items() if not row]
    if missing:
        failed.append(f"seed {', '.join(missing)} not run")
    return [row for row in found.values() if "metrics" in row], "; ".join(failed)


def is_earlier(row: Mapping) -> bool:
    """Whether a config or the code has changed since a finished run."""
    config = registry.build(registry.Run(*(row[name] for name in registry.Run._fields)))
    made = row["provenance"]
    is_of_config = made.get("config_digest") == registry.digest(config)
    code = tables.current(made.get("code_digest"))
    return not is_of_config or code != tables.code_digest(tables.TRAININGS)


def markdown(values: list[Value]) -> str:
    """Ours, the paper's, and the difference, for every row, set, and metric.

    Where the paper prints nothing, ours alone; of a number of clusters that of each seed.
    """
    columns, lines = [""], []
    is_printed = any(value.text != "-" for value in values)
    for row, group in groupby(values, lambda value: value.row):
        cells, columns = [row], [""]
        for value in group:
            metric, difference = value.metric, ""
            digits = DIGITS.get(metric, 1)
            ours = tables.mean(value.ours, digits) if value.ours else ""
            if metric == "clusters":
                ours = ", ".join(f"{x:.0f}" for x in value.ours)
            if value.ours and value.printed is not None:
                difference = f"{fmean(value.ours) - value.printed:+.{digits}f}"
            if is_printed:
                columns += [f"{metric}, ours", f"{metric}, paper, {value.data}", "difference"]
                cells += [ours, value.text, difference]
            else:
                columns.append(metric)
                cells.append(ours)
        lines.append(cells)
    return tables.markdown(columns, lines)


def orderings(values: list[Value]) -> str:
    """Where our rows are in another order than the paper's, in words."""
    known = [v for v in values if v.ours and v.printed is not None]
    metrics = [v.metric for v in known]
    metric = next((m for m in ("ACC", "ARI", *metrics) if m in metrics), "")
    several = all(len(v.ours) > 1 for v in known)
    gaps = [
        (fmean(b.ours) - fmean(a.ours), a, b)
        for a, b in permutations(known, 2)
        if a.metric == b.metric == metric and a.data == b.data
        if a.printed is not None and b.printed is not None and a.printed > b.printed
    ]
    if not gaps:
        return ""
    wrong = [(gap, a, b) for gap, a, b in gaps if gap > 0]
    shown = [
        (gap, f"{b.row} is above {a.row} ({gap:.{DIGITS.get(metric, 1)}f})")
        for gap, a, b in wrong
        if not several or gap > stdev(a.ours) + stdev(b.ours)
    ]
    shown.sort(reverse=True)
    chance = "one seed does not say which of them are chance"
    if several:
        chance = f"{len(shown)} of them by more than both standard deviations"
    words = "; ".join(text for _, text in shown[:SHOWN])
    more = f"; and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
    return (
        f"Orderings by {metric}: of {len(gaps)} pairs of rows that the paper orders, {len(wrong)} "
        f"are in the other order here, {chance}{': ' if shown else ''}{words}{more}."
    )


def in_words(value: Any) -> str:
    """An entry of the provenance."""
    if isinstance(value, Mapping):
        known = {summary.TITLES.get(key, key): v for key, v in value.items() if v is not None}
        return ", ".join(f"{key} {in_words(each)}" for key, each in known.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(in_words, value)) or "nothing"
    return f"{value:,.10g}" if isinstance(value, int | float) else str(value)


def provenance(blocks: list[Mapping]) -> str:
    """What all runs have in common, and the names of what they do not."""
    stated, differing = [], []
    for name in STATED.split():
        found = {json.dumps(block.get(name), sort_keys=True) for block in blocks}
        words = summary.entry_name(name)
        if len(found) > 1:
            differing.append(words)
        elif (value := blocks[0].get(name)) is not None:
            stated.append(f"{words}: {in_words(value)}")
    text = f"Ours: {'; '.join(stated)}."
    return text + (f" Rows differ in: {', '.join(differing)}." if differing else "")


def trained(chosen: Table, scale: str) -> str:
    """What each row of a table of one's own trains: its config, and the changes of it."""
    lines = {}
    for cell in registry.cells(chosen, scale):
        if cell.run is not None:
            changes = [f"{key} = {value}" for key, value in cell.run.changes.items()]
            shorter = [] if cell.run.steps == 1 else ["a third of the steps"]
            lines[cell.row.name] = ", ".join([f"`{cell.run.config}`", *changes, *shorter])
    return "\n".join(f"- {name}: {what}" for name, what in lines.items())


def pages(paper: str, numbers: list[str], scale: str, seeds: list[int], results: Lines) -> str:
    """The tables that have a run, in Markdown.

    Args:
        paper: of the tables.
        numbers: of the tables.
        scale: of their runs.
        seeds: of their runs.
        results: see `registry.stored`.

    Raises:
        InputError: no such paper, table or scale.
    """
    words = " ".join(map(str, seeds))
    command = f"`python -m experiments.run {paper} {{}} --scale={scale}{{}} --seeds {words}`"
    found = []
    for number in numbers:
        chosen = registry.find(paper, number)
        values, runs, gaps = collect(chosen, scale, seeds, results)
        if runs:
            kind = number.replace("figure", "Figure ") if "figure" in number else f"Table {number}"
            # The other scales are of scikit-learn's digits.
            is_own = paper not in (*registry.PAPERS, "digits")
            source = f"The paper ({chosen.source})" if chosen.source else "Protocol"
            # Files of images that the user has.
            cells = registry.cells(chosen, scale)
            is_of_files = any("data.dir" in cell.run.changes for cell in cells if cell.run)
            data = " --data=DIR" if is_of_files else ""
            title = chosen.title if is_own else f"{paper} {kind}: {chosen.title}"
            parts = [
                f"## {title}",
                f"{command.format(number, data)}. Mean ± standard deviation; scores in percent.",
                trained(chosen, scale) if is_own else f"Scale {scale}: {registry.SCALES[scale]}.",
                tables.EARLIER if any(map(is_earlier, runs)) else "",
                markdown(values),
                orderings(values),
                f"{source}: {chosen.protocol}." if chosen.protocol else "",
                provenance([row["provenance"] for row in runs]),
                "\n".join(f"- Gap, {', '.join(names)}: {why}." for why, names in gaps.items()),
            ]
            found.append("\n\n".join(part for part in parts if part) + "\n")
    return "\n".join(found)
