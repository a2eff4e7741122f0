"""Several runs of one config, one after another: seeds, and values of keys; a table of them all."""

import csv
import io
import itertools
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath

from cluster_jax.core import io as files
from cluster_jax.core.checks import InputError

FILE = "sweep.csv"
# A comma that is not inside of brackets, as those of a list are.
_COMMA = re.compile(r",(?![^(\[]*[)\]])")
_NO_NAME = re.compile(r"[^\w.+-]+")  # what a folder's name has an underscore for


class Setting(NamedTuple):
    """The values of the keys that differ between runs; runs alike in them differ in their seed.

    Attributes:
        values: key of the config -> value as text.
    """

    values: Mapping[str, str]

    @property
    def title(self) -> str:
        """What the table calls it."""
        return ", ".join(f"{key}={value}" for key, value in self.values.items()) or "all runs"

    def folder(self, seed: int) -> str:
        """Names the folder of one of its runs, inside that of all."""
        parts = [*self.values.items(), ("seed", str(seed))]
        return "/".join(f"{key}={_NO_NAME.sub('_', value)}" for key, value in parts)

    def flags(self, seed: int) -> list[str]:
        """Returns the flags of one of its runs."""
        return [f"--config.{key}={value}" for key, value in (*self.values.items(), ("seed", seed))]


def settings(sweeps: Iterable[str]) -> list[Setting]:
    """Lists all combinations of the values of flags `KEY=VALUE,VALUE`.

    Raises:
        InputError: a flag has another form, or two have one key.

    Example:
        >>> [setting.title for setting in settings(["a.b=1,2", "c=(3, 4),(5, 6)"])]
        ['a.b=1, c=(3, 4)', 'a.b=1, c=(5, 6)', 'a.b=2, c=(3, 4)', 'a.b=2, c=(5, 6)']
    """
    choices: dict[str, list[str]] = {}
    for sweep in sweeps:
        key, equals, values = sweep.removeprefix("config.").partition("=")
        if not equals or not values or key in choices or key == "seed":
            must = "--sweep must be KEY=VALUE,VALUE, each key once, and seeds by --seeds"
            raise InputError(f"{must}; got {sweep!r}")
        choices[key] = [value.strip() for value in _COMMA.split(values)]
    products = itertools.product(*choices.values())
    return [Setting(dict(zip(choices, values, strict=True))) for values in products]


def run(
    chosen: Sequence[Setting],
    seeds: Sequence[int],
    folder: epath.Path,
    train: Callable[[list[str], epath.Path], Mapping[str, Any] | None],
    say: Callable[[str], Any],
) -> list[dict[str, Any]]:
    """Trains every setting with every seed and writes the table of their figures.

    Runs that are finished are read, an interrupted one is resumed.

    Args:
        chosen: settings.
        seeds: seeds.
        folder: of all runs and of the table.
        train: runs a config with some flags in a workdir; returns its results, or None on processes
            that have none.
        say: prints a line.

    Returns:
        The lines of the table, each with `setting`, `figure`, `mean`, `deviation` and `runs`.
    """
    from cluster_jax.report import summary

    scores: dict[Setting | str, list[dict[str, float]]] = {}
    runs = list(itertools.product(chosen, seeds))
    for number, (setting, seed) in enumerate(runs, start=1):
        say(f"\nrun {number} of {len(runs)}: {setting.title}, seed {seed}")
        results = train(setting.flags(seed), folder / setting.folder(seed))
        if results is not None:
            scores.setdefault(setting.title, []).append(summary.figures(results))
    rows = _rows(scores)
    if scores:
        files.write(folder / FILE, _csv(chosen, rows))
        say(f"\n{_table(rows)}\n\ntable        {folder / FILE}")
    return [
        {"setting": title, "figure": name, **_statistics(values)}
        for (title, name), values in rows.items()
    ]


# Title of a setting, figure -> its values in the setting's runs.
_Rows = dict[tuple[str, str], list[float]]


def _rows(scores: Mapping[Any, Sequence[Mapping[str, float]]]) -> _Rows:
    rows: _Rows = {}
    for title, runs in scores.items():
        for values in runs:
            for name, value in values.items():
                rows.setdefault((title, name), []).append(value)
    return rows


def _statistics(values: Sequence[float]) -> dict[str, float | None]:
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "deviation": deviation, "runs": len(values)}


def _csv(chosen: Sequence[Setting], rows: _Rows) -> bytes:
    """Formats a line for each setting and figure: mean, standard deviation and number of runs."""
    by_title = {setting.title: setting.values for setting in chosen}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*chosen[0].values, "figure", "mean", "deviation", "runs"])
    for (title, name), values in rows.items():
        writer.writerow([*by_title[title].values(), name, *_statistics(values).values()])
    return text.getvalue().encode()


def _table(rows: _Rows) -> str:
    """Formats a line for each figure, a column for each setting: mean ± standard deviation."""
    titles, names = (list(dict.fromkeys(key[i] for key in rows)) for i in range(2))

    def cell(title: str, name: str) -> str:
        values = rows.get((title, name))
        if values is None:
            return "-"
        mean, deviation, _ = _statistics(values).values()
        return f"{mean:.3f}" + (f" ± {deviation:.3f}" if deviation is not None else "")

    lines = [["", *titles], *([name, *(cell(title, name) for title in titles)] for name in names)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(titles) + 1)]
    return "\n".join(
        f"{first:<{widths[0]}}"
        + "".join(f"{x:>{w + 3}}" for x, w in zip(more, widths[1:], strict=True))
        for first, *more in lines
    )
