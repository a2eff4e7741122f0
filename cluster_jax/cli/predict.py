"""Assigns new images or embeddings to the clusters of a finished run; writes predictions.csv.

The table has the image or row, its cluster, the distance to its center (with GridShift in
bandwidths), is_novel, whether it is unlike all training images, and for the tree of groups the
probability of the cluster and its runner-up. After novel class discovery, the class
(the name of a known one, or for example "novel 2") replaces cluster and distance. Names of
clusters, given or suggested, are in the column name; -1 is no cluster.
"""

import argparse
from collections.abc import Sequence

from cluster_jax.cli import exit_codes, output
from cluster_jax.cli.flags import Parser, add_export, add_new_rows, check_export
from cluster_jax.core import buckets
from cluster_jax.core.checks import InputError


def _parser() -> Parser:
    parser = Parser("predict", __doc__)
    add = parser.add_argument
    add("--workdir", required=True, metavar="DIR", help="folder of a finished run")
    images = "folder, image file, .npy or .npz; of a run on features .npy, .npz or .csv"
    add("--images", metavar="PATH", help=images)
    add_new_rows(parser)
    table = "table to write (default: predictions.csv in the workdir)"
    add("--out", metavar="FILE", help=table)
    add_export(parser, "cluster")
    return parser


def _check(flags: argparse.Namespace) -> None:
    """Raises an `InputError` for flags that do not go with the run, or with each other."""
    from cluster_jax.runs import workdir as workdirs

    workdir = buckets.path(flags.workdir)
    if flags.features is not None and not workdir.exists():
        must = "--workdir must be a folder of a finished run"
        raise InputError(f"{must}; got {workdir}, no such folder")
    is_of_embeddings = workdirs.is_of_embeddings(workdir)
    wanted, other = ("features", "images") if is_of_embeddings else ("images", "features")
    of = "of embeddings" if is_of_embeddings else "of images"
    if (got := getattr(flags, other)) is not None:
        raise InputError(
            f"--{wanted} must be given in place of --{other} for a run {of}; got {got}"
        )
    if getattr(flags, wanted) is None:
        raise InputError(f"--{wanted} must be given for a run {of}; got none")
    if is_of_embeddings:
        if flags.export:
            must = "--export must be left out for a run of embeddings"
            raise InputError(f"{must}; got {flags.export}")
        return
    for name in ("array", "ids"):
        if value := getattr(flags, name):
            raise InputError(f"--{name} must be left out without --features; got {value!r}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command; `arguments` are those of the process by default."""
    with exit_codes.handle_errors():
        flags = _parser().parse_args(arguments)
        check_export(flags)
        _check(flags)
        out = flags.out or buckets.path(flags.workdir) / "predictions.csv"
        from cluster_jax.cli import predictions
        from cluster_jax.core import devices

        if flags.features is not None:
            rows = flags.features, out, flags.array, flags.ids
            output.end(flags, *predictions.predict_rows(flags.workdir, *rows))
            return
        devices.join()
        ended = predictions.predict(flags.workdir, flags.images, out, flags.export, by=flags.by)
        if ended is not None:
            output.end(flags, *ended)
