"""Compares the clusters of two runs, or corrects those of one.

Matches the clusters of two runs on the same images one to one, and lists the images that moved,
from where to where. Or, with --corrections, applies to one run what was corrected in its
report.html.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from etils import epath

from cluster_jax.cli import exit_codes
from cluster_jax.cli.flags import Parser, output_file
from cluster_jax.core import checks, io
from cluster_jax.core.checks import InputError
from cluster_jax.pipeline import workdir as workdirs


def _parser() -> Parser:
    parser = Parser("report", __doc__)
    add = parser.add_argument
    add("before", metavar="BEFORE", help="workdir of a run, or folder of `cluster`")
    add("after", metavar="AFTER", nargs="?", help="workdir of another run")
    saved = (
        "corrections.csv that the report of the run has saved; may be given several\n"
        "times, for what was corrected later in the corrected report"
    )
    add("--corrections", metavar="FILE", action="append", help=saved)
    out = (
        "of a comparison, the file to write: a page if it ends in .html, otherwise\n"
        "a CSV table of the moved images; of corrections, a new folder for the\n"
        "corrected assignments.csv and report.html (default: BEFORE/corrected, where\n"
        "predict looks for names of clusters)"
    )
    add("--out", metavar="PATH", help=out)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point; `arguments` are those of the process by default."""
    with exit_codes.handle_errors():
        flags = _parser().parse_args(arguments)
        if (flags.after is None) == (flags.corrections is None):
            file = epath.Path(flags.before).expanduser() / workdirs.REPORT
            hint = f" (its report is {file})" if file.exists() else ""
            found = f"{flags.before} alone{hint}" if flags.after is None else "two with corrections"
            if not file.exists() and flags.after is None:
                from cluster_jax.evaluation import assignments

                assignments.read_workdir(flags.before)
            raise InputError(
                f"arguments must be two workdirs, or one and --corrections; got {found}"
            )
        text = _compare(flags) if flags.corrections is None else _correct(flags)
        sys.stdout.write(text + "\n")


def _compare(flags: argparse.Namespace) -> str:
    """Writes the file of a comparison; returns what is printed."""
    out = None if flags.out is None else output_file(flags.out)
    from cluster_jax.evaluation import comparison
    from cluster_jax.pipeline import inference

    compared = comparison.compare(comparison.read(flags.before), comparison.read(flags.after))
    text = comparison.describe(compared)
    if out is None:
        return text
    if out.suffix == ".html":
        config = epath.Path(flags.after).expanduser() / workdirs.CONFIG
        data = workdirs.read_values(config).get("data", {}) if config.exists() else {}
        folder = inference.image_folder(data.get("name", ""), data.get("dir"))
        page = comparison.page(compared, flags.before, flags.after, folder)
        io.write(out, page.encode("utf-8", "backslashreplace"))
    else:
        io.write(out, comparison.moves_csv(compared))
    return f"{text}\n\nmoved images {out}"


def _correct(flags: argparse.Namespace) -> str:
    """Writes the corrected table and report into a folder; returns what is printed."""
    from cluster_jax.evaluation import assignments, corrections, report
    from cluster_jax.pipeline import export

    workdir = epath.Path(flags.before).expanduser()
    table = assignments.read_workdir(workdir)
    corrected = corrections.apply(table, flags.corrections)
    results = workdirs.finished_results(workdir, ())
    if results is None:
        raise InputError(f"the run in {workdir} must be finished to be corrected; got no results")
    with checks.named({"the folder to export to": "--out"}):
        out = export.check(flags.out or workdir / assignments.CORRECTED)
    has_images = (workdir / workdirs.CLUSTERS).exists()
    names = [assignments.unescaped(row[table.name]) for row in table.rows]
    known = _known(workdir, corrected, names) if has_images else {}
    data = corrections.report_data(table, corrected, results, workdir.name, **known)
    # What takes time comes first: after an interrupt there, the same command must find no files.
    page = None if data is None else report.render(data).encode("utf-8", "backslashreplace")
    out.mkdir(parents=True, exist_ok=True)
    written = "none, because the run has no map" if data is None else out / workdirs.REPORT
    try:
        io.write(out / workdirs.ASSIGNMENTS, corrected.csv)
        if page is not None:
            io.write(out / workdirs.REPORT, page)
    except BaseException:
        for name in (workdirs.ASSIGNMENTS, workdirs.REPORT):
            (out / name).unlink(missing_ok=True)
        raise
    return (
        f"corrected    {corrected.summary}\nassignments  {out / workdirs.ASSIGNMENTS}\n"
        f"report       {written}"
    )


def _known(workdir: Any, corrected: Any, names: Sequence[str]) -> dict[str, Any]:
    """What the report of a run of images shows beside its table: images, labels, copies, ..."""
    from cluster_jax.clustering.tree import linkage_of_means
    from cluster_jax.data.images import select
    from cluster_jax.evaluation import duplicates
    from cluster_jax.pipeline import inference

    run = inference.read(workdir)
    linkage = linkage_of_means(run.features, corrected.labels)
    dataset = inference.training_images(run)
    if [*(dataset.sources or map(str, range(dataset.size)))] != names:
        raise InputError(
            f"assignments.csv in {workdir} must have the images of the run in their order; got "
            "others: run the command of the run again"
        )
    copies = None
    if dataset.shown is not None:
        repeated = duplicates.find(dataset.shown, run.all_features)
        rows = run.clusters.unlabeled_rows
        if repeated.n_groups:
            copies = duplicates.Shown(repeated, dataset.shown.fetch, dataset.sources, rows)
    dataset = select(dataset, corrected.rows)
    return {
        "duplicates": copies,
        "skipped": dataset.skipped,
        "linkage": linkage,
        "features": run.features,
        "fetch_images": None if dataset.shown is None else dataset.shown.fetch,
        "sources": dataset.sources,
        "true_labels": dataset.labels,
        "label_names": dataset.label_names,
        "folder": inference.image_folder(run.config.data.name, run.config.data.dir),
    }
