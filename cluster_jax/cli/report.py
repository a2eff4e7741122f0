"""Takes what you corrected on the page of a run, exports its groups, or compares two runs.

Matches the clusters of two runs on the same images one to one, and lists the images that moved,
from where to where, with the metrics of both runs and, on the page, their learning curves. Or, of
one run, writes its report and its table again, with what was corrected or named in its report
(--corrections); predict, embed and export go by that from then on.
"""

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from etils import epath

from cluster_jax.cli import exit_codes, output
from cluster_jax.cli.flags import Parser, add_export, check_export, output_file
from cluster_jax.core import buckets, io
from cluster_jax.core.checks import InputError
from cluster_jax.core.names import counted
from cluster_jax.data import folder as image_files
from cluster_jax.pipeline import workdir as workdirs

if TYPE_CHECKING:
    from cluster_jax.report.comparison import Comparison, Trained


def _parser() -> Parser:
    parser = Parser("report", __doc__)
    add = parser.add_argument
    add("before", metavar="BEFORE", help="workdir of a run, or folder of `cluster`")
    after = "workdir of another run; of two versions of an updated one, W@3 W@7"
    add("after", metavar="AFTER", nargs="?", help=after)
    saved = (
        "file that a report has saved; may be given several times, and again later: all\n"
        "corrections together are kept in BEFORE/decisions.csv"
    )
    add("--corrections", metavar="FILE", action="append", default=[], help=saved)
    add_export(parser, "group of the run")
    out = (
        "of a comparison, the file to write: a page if it ends in .html, otherwise\n"
        "a CSV table of the moved images"
    )
    add("--out", metavar="PATH", help=out)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command; `arguments` are those of the process by default."""
    with exit_codes.handle_errors():
        flags = _parser().parse_args(arguments)
        if flags.after is None:
            if flags.out is not None:
                raise InputError(f"--out must be left out for one run; got {flags.out}")
            text, values = _correct(flags)
        elif flags.corrections or flags.export:
            raise InputError("arguments must be one workdir, with corrections or --export; got two")
        else:
            text, values = _compare(flags)
        output.end(flags, text, values)


def _compare(flags: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Writes the file of a comparison; returns what is printed, as text and for programs."""
    out = None if flags.out is None else output_file(flags.out)
    from cluster_jax.pipeline import history, inference
    from cluster_jax.report import comparison

    figures: list[tuple[str, str, str]] = []
    curves: list[comparison.Curves] = []
    if any(re.search("@[0-9]+$", name) for name in (flags.before, flags.after)):
        compared = history.compare(flags.before, flags.after)
    else:
        compared = comparison.compare(comparison.read(flags.before), comparison.read(flags.after))
        runs = _trained(flags.before), _trained(flags.after)
        figures = comparison.side_by_side(*runs)
        curves = comparison.learning_curves(*runs)
    text = comparison.describe(compared, figures)
    values = {**_values(compared), "figures": {name: pair for name, *pair in figures}}
    if out is None:
        return text, values
    if out.suffix == ".html":
        config = buckets.path(re.sub("@[0-9]+$", "", flags.after)) / workdirs.CONFIG
        data = workdirs.read_values(config).get("data", {}) if config.exists() else {}
        moved = [name for *_, names in compared.moves for name in names]
        folder = inference.image_folder(data.get("name", ""), data.get("dir"), moved)
        page = comparison.page(compared, flags.before, flags.after, folder, figures, curves)
        io.write(out, page.encode("utf-8", "backslashreplace"))
    else:
        io.write(out, comparison.moves_csv(compared))
    return f"{text}\n\nmoved images {out}", {**values, "out": str(out)}


def _values(compared: "Comparison") -> dict[str, Any]:
    return {
        "images": len(compared.rows),
        "moved": len(compared.moved),
        "matched": compared.matched,
        "only_before": compared.only_before,
        "only_after": compared.only_after,
    }


def _trained(workdir: str) -> "Trained":
    """Reads what a run has measured; nothing of a folder without results, as of other programs."""
    from cluster_jax.report import comparison
    from cluster_jax.training import progress

    folder = buckets.path(workdir)
    file = folder / workdirs.RESULTS
    results = workdirs.read_values(file) if file.exists() else {}
    return comparison.Trained(results, progress.read_log(folder))


def _correct(flags: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Writes table and report again, exports if asked; returns what `_compare` does."""
    from cluster_jax.pipeline import corrections, export

    check_export(flags)
    if flags.export is not None:
        export.check(flags.export, _image_folders(flags.before), flags.before, flags.by)
    text, values = corrections.correct(flags.before, flags.corrections)
    if flags.export is not None:
        folders = export.run_clusters(flags.before, flags.export, flags.by)
        text += f"\nexported     {counted(folders, 'folder')} to {flags.export}"
        values["exported"] = flags.export
    return text, values


def _image_folders(workdir: epath.PathLike) -> list[str]:
    """Lists folders or zip of a run's images; none for others, and for a folder of `cluster`."""
    config = buckets.path(workdir) / workdirs.CONFIG
    data = workdirs.read_values(config).get("data", {}) if config.exists() else {}
    is_folder = isinstance(data, dict) and data.get("name") == "folder"
    return image_files.folders(data["dir"]) if is_folder and data.get("dir") else []
