"""`cluster-jax report BEFORE AFTER [--out=FILE]`: compares the clusters of two runs."""

import sys
from collections.abc import Sequence

from cluster_jax.cli import exit_codes
from cluster_jax.cli.parser import Parser, check_output


def _parser() -> Parser:
    parser = Parser(
        "report",
        "Compares two runs on the same images: matches their clusters one to one, and lists the\n"
        "images that moved, from where to where.",
    )
    add = parser.add_argument
    add("before", metavar="BEFORE", help="workdir of a run, or folder of `cluster`")
    add("after", metavar="AFTER", help="workdir of another run")
    add(
        "--out",
        metavar="FILE",
        help="file to write: a page if it ends in .html, otherwise a CSV\n"
        "table of the moved images",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point; `arguments` are those of the process by default."""
    with exit_codes.handle_errors():
        flags = _parser().parse_args(arguments)
        if flags.out is not None:
            check_output(flags.out)
        from etils import epath

        from cluster_jax.core import io
        from cluster_jax.evaluation import comparison
        from cluster_jax.pipeline import trained_run
        from cluster_jax.pipeline import workdir as workdirs

        compared = comparison.compare(comparison.read(flags.before), comparison.read(flags.after))
        sys.stdout.write(comparison.describe(compared) + "\n")
        if flags.out is None:
            return
        if flags.out.endswith(".html"):
            config = epath.Path(flags.after).expanduser() / workdirs.CONFIG
            data = workdirs.read_values(config).get("data", {}) if config.exists() else {}
            folder = trained_run.image_folder(data.get("name", ""), data.get("dir"))
            page = comparison.page(compared, flags.before, flags.after, folder)
            io.write(flags.out, page.encode("utf-8", "backslashreplace"))
        else:
            io.write(flags.out, comparison.moves_csv(compared))
        sys.stdout.write(f"\nmoved images {flags.out}\n")
