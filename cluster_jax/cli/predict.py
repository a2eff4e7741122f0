"""Assigns new images to the clusters of a finished run and writes predictions.csv.

The table has the image, its cluster, the distance to its center (with GridShift in bandwidths),
is_novel, whether the image is unlike all training images, and with a tree of clusters the
probability of the cluster and the likeliest other one. After novel class discovery, the class
(the name of a known one, or for example "novel 2") replaces cluster and distance. Names of
clusters, given or suggested, are in the column name; -1 is no cluster.
"""

import sys
from collections.abc import Sequence

from absl import logging
from etils import epath

from cluster_jax.cli import exit_codes
from cluster_jax.cli.flags import Parser, add_export, check_export


def _parser() -> Parser:
    parser = Parser("predict", __doc__)
    add = parser.add_argument
    add("--workdir", required=True, metavar="DIR", help="folder of a finished run")
    images = "folder, image file, .npy or .npz; of a run on features .npy, .npz or .csv"
    add("--images", required=True, metavar="PATH", help=images)
    table = "table to write (default: predictions.csv in the workdir)"
    add("--out", metavar="FILE", help=table)
    page = "page to write: new images beside typical ones of their clusters"
    add("--report", metavar="FILE", help=page)
    saved = "file that the page of --report has saved; may be given several times"
    add("--corrections", metavar="FILE", action="append", default=[], help=saved)
    add_export(parser, "cluster")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point; `arguments` are those of the process by default."""
    with exit_codes.handle_errors():
        flags = _parser().parse_args(arguments)
        check_export(flags)
        from cluster_jax.cli import predictions
        from cluster_jax.core import devices

        devices.join()
        logging.set_verbosity(logging.WARNING)
        out = flags.out or epath.Path(flags.workdir).expanduser() / "predictions.csv"
        text = predictions.predict(
            flags.workdir,
            flags.images,
            out,
            flags.export,
            flags.report,
            by=flags.by,
            corrections=flags.corrections,
        )
        sys.stdout.write("" if text is None else f"{text}\n")
