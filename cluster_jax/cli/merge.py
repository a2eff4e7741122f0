"""Makes one run of two: what is in the second joins the groups of the first, whose ids stay.

Of runs of photos, the photos of the second must be where they were; of embeddings, both workdirs
are enough. What you have corrected and named in the second is not taken over.
"""

from collections.abc import Sequence

from cluster_jax.cli import exit_codes, output
from cluster_jax.cli.flags import Parser


def _parser() -> Parser:
    parser = Parser("merge", __doc__)
    add = parser.add_argument
    add("first", metavar="W1", help="folder of a finished run")
    add("second", metavar="W2", help="folder of another one")
    add("--out", required=True, metavar="DIR", help="new folder for the run of both")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command; `arguments` are those of the process by default."""
    with exit_codes.handle_errors():
        flags = _parser().parse_args(arguments)
        from cluster_jax.pipeline import updates

        output.end(flags, *updates.merge(flags.first, flags.second, flags.out))
