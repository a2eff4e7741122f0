"""Assigns new images or embeddings to the clusters of a finished run; writes predictions.csv.

The table has each image or row, its cluster (-1: none), the name of the cluster, the distance to
its center, the probability of the cluster and the most probable other one (for clusters of a tree),
the novelty, and is_novel. The novelty is the distance to the nearest image or row of the run,
divided by the 95th percentile of this distance among those of the run; is_novel is 1 if it is above
1. After novel class discovery, the class, such as "cat" or "novel 2", replaces cluster and
distance.
"""

from collections.abc import Sequence

from cluster_jax.cli import exit_codes, output
from cluster_jax.cli.flags import Parser, add_export, add_new_rows, check_export, is_of_rows
from cluster_jax.core import buckets
from cluster_jax.core.checks import InputError


def _parser() -> Parser:
    parser = Parser("predict", __doc__)
    add = parser.add_argument
    add("--workdir", required=True, metavar="DIR", help="folder of a finished run")
    images = "folder, .zip, image file, .npy or .npz; of a training on features also .csv"
    add("--images", metavar="PATH", help=images)
    add_new_rows(parser, "new rows")
    add("--out", metavar="FILE", help="the table (default: predictions.csv in the workdir)")
    add_export(parser, "cluster")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command; `arguments` are those of the process by default."""
    with exit_codes.handle_errors():
        flags = _parser().parse_args(arguments)
        check_export(flags)
        of_rows = is_of_rows(flags, "--images", flags.images)
        if not (flags.features or flags.images):
            wanted = "--features" if of_rows else "--images"
            raise InputError(f"{wanted} must be given for this kind of run; got none")
        if of_rows and flags.export:
            must = "--export must be left out for a run of embeddings"
            raise InputError(f"{must}; got {flags.export}")
        out = flags.out or buckets.path(flags.workdir) / "predictions.csv"
        from cluster_jax.cli import predictions

        if of_rows:
            rows = flags.features, out, flags.array, flags.ids
            ended = predictions.predict_rows(flags.workdir, *rows)
        else:
            from cluster_jax.core import devices

            devices.keep_compiled()
            ended = predictions.predict(flags.workdir, flags.images, out, flags.export, by=flags.by)
        output.end(flags, *ended)
