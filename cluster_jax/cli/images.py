"""Finds groups of similar photos, and estimates how many there are.

Writes report.html, assignments.csv and results.json. A pretrained network embeds the photos, by
default EfficientNet-Lite2, which was trained on the labels of ImageNet; nothing is trained here.
"""

import argparse
import pathlib
import shlex
import webbrowser
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from etils import epath

from cluster_jax.cli import exit_codes, flags, output
from cluster_jax.cli.flags import Parser
from cluster_jax.core import checks
from cluster_jax.core.checks import InputError
from cluster_jax.core.config import override_all
from cluster_jax.core.names import counted

if TYPE_CHECKING:
    from cluster_jax.runs.run import Run

# By the tree's verdict.
_SURENESS = {
    "clear": "clearly apart",
    "unclear": "a best guess: they are not clearly apart",
    "one_cluster": "no split separates the photos clearly",
}
# Where `Run.origin` is no verdict's.
_ORIGINS = {
    "given": "the number asked for",
    "corrected": "as you have corrected them",
    "kept": "as before; `update --refit` finds them anew",
}
_FILES = (".npy", ".npz", ".zip")  # of images
_NAMED, _SIZES = 8, 10  # names and sizes of groups that are printed
# Keys of the config, and what the search for clusters calls one of them -> the arguments of this
# command that set them, which errors name.
_ARGUMENTS = {"data.dir": "PHOTOS", "eval.n_clusters": "--n-clusters", "data.labels": "--labels"}
_ARGUMENTS |= {"n_clusters must": "--n-clusters must"}


def _parser() -> Parser:
    details = "configs/images.py has the keys of the config; configs/base.py explains them.\n\n"
    parser = Parser("images", __doc__, details)
    add = parser.add_argument
    photos = f"folders or files of images, or one file {', '.join(_FILES)} of images"
    add("photos", metavar="PHOTOS", help=photos)
    add("--workdir", metavar="DIR", help="folder of the results (default: runs/images-HASH)")
    add("--n-clusters", type=int, metavar="N", help="number of groups (default: estimated)")
    flags.add_encoder(parser)
    output.add_report(parser)
    labels = "only to score: folders (labels are subfolders), or a CSV of image, label"
    add("--labels", metavar="folders|FILE", help=labels)
    add("--open", action="store_true", help="open the report in the browser")
    globs = "files or folders to leave out, such as '*_edited.*'; may be repeated"
    add("--exclude", metavar="PATTERN", action="append", default=[], help=globs)
    values = "any value of the config, for example --config.seed=1"
    add("--config.KEY", metavar="VALUE", help=values)
    return parser


def _photos(first: str, others: Sequence[str]) -> tuple[str, list[str]]:
    """Finds PHOTOS as `data.dir`, several of them one a line, and the flags among arguments."""
    more = [argument for argument in others if not argument.startswith("-")]
    if "" in (first, *more):
        raise InputError("PHOTOS must be folders or files of images; got an empty name")
    return "\n".join([first, *more]), [other for other in others if other not in more]


def _values(args: argparse.Namespace, photos: str) -> dict[str, Any]:
    """Returns the values of the config that the other flags set."""
    is_array = pathlib.Path(args.photos).suffix in (".npy", ".npz")
    values = {
        "data.dir": photos,
        "data.name": "arrays" if is_array else None,
        "data.exclude": tuple(args.exclude) or None,
        "data.labels": args.labels,
        "eval.n_clusters": args.n_clusters,
    }
    return {key: value for key, value in values.items() if value is not None}


def _listed(texts: Sequence[str], most: int) -> str:
    """Returns the first of these texts as a list: "a, b, and 3 more"."""
    more = [f"and {len(texts) - most:,} more"] if len(texts) > most else []
    return ", ".join([*texts[:most], *more])


def _conclusion(run: "Run", workdir: epath.Path) -> str:
    """Describes the groups and their certainty, the report's path, and the next commands."""
    from cluster_jax.nets import pretrained
    from cluster_jax.report import summary
    from cluster_jax.runs import measured
    from cluster_jax.training.config import parse_config

    metrics = measured.scores(run)
    groups = summary.groups(*summary.tally(metrics), "group")
    photos = counted(len(run.columns), "photo")
    doubtful = measured.count_doubtful(run)
    doubts = f"; {counted(doubtful, 'photo is', 'photos are')} doubtful" if doubtful else ""
    sure = _SURENESS.get(str(metrics.get("verdict")))
    if (metrics.get("verdict"), metrics["n_clusters"]) == ("unclear", 1):
        sure = "a best guess"
    if summary.is_too_few(metrics):
        sure = "too few different photos to look for more"
    sure = _ORIGINS.get(run.origin, sure)
    lines = [f"{photos}, {groups}{f' ({sure})' if sure else ''}{doubts}."]
    sizes = np.sort(np.unique(run.labels[run.labels >= 0], return_counts=True)[1])[::-1].tolist()
    lines += [f"Sizes: {_listed([f'{size:,}' for size in sizes], _SIZES)}."] if sizes else []
    if names := list(run.cluster_names.values()):
        verb = "They are called" if run.named else "They look like"
        if len(sizes) == 1:
            verb = "It is called" if run.named else "It looks like"
        lines.append(f"{verb} {_listed(names, _NAMED)}.")
    if weights := parse_config(run.config).network.weights:
        lines.append(f"Compared by {pretrained.describe(weights)}.")
    if run.copies is not None and (copies := run.copies.n_groups):
        lines.append(f"{counted(copies, 'set')} of equal or nearly equal photos.")
    folder = shlex.quote(str(workdir))
    page = workdir / "report.html"
    where = f"{page}" if page.exists() else f"none yet: cluster-jax report {folder} writes it"
    again = ["  the same command with --n-clusters=N  # another number, in place of this one"]
    return "\n".join(
        [
            "",
            *lines,
            f"Report{' with your corrections' if run.is_corrected else ''}: {where}",
            "Next:",
            f"  cluster-jax report {folder} --corrections=FILE  # your corrections",
            f"  cluster-jax report {folder} --export=DIR  # a folder for each group",
            f"  cluster-jax predict --workdir={folder} --images=NEW  # where new photos belong",
            *again,
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command; `arguments` are those of the process by default."""
    with exit_codes.handle_errors():
        args, overrides = flags.parse(_parser(), arguments)
        photos, overrides = _photos(args.photos, overrides)
        place = args.workdir and pathlib.Path(args.workdir).resolve()
        if place == pathlib.Path(args.photos).resolve():
            raise InputError(f"--workdir must be another folder than PHOTOS; got {args.workdir}")
        config, name = flags.read_config("images", overrides, args.encoder)
        override_all(config, _values(args, photos))

        from cluster_jax.cli import train
        from cluster_jax.core import devices
        from cluster_jax.runs import run as records
        from cluster_jax.runs import workdir as workdirs

        with checks.named(_ARGUMENTS):
            workdir = train.run(config, name, args.workdir, report=args.report == "yes")
        if not devices.is_first():  # The first process writes the results, and ends later.
            return
        train.end(args, workdir, _conclusion(records.read(workdir), workdir))
        if args.open:
            webbrowser.open(pathlib.Path(workdir / workdirs.REPORT).resolve().as_uri())
