"""Adds new photos or embeddings to a finished run, whose groups keep their ids and names.

The photos are those that are there now, in the folders of the run and in others that are named: new
files join the groups or make new ones, a moved or renamed file is the same photo, deleted files
leave. Photos of a folder that is not there stay; name the place to which it has moved. New rows of
embeddings come from --features. assignments.csv has the columns name and since (the update in which
the photo came), report.html is the page of all photos, history.jsonl has a line for each update.
What you have corrected or named holds.
"""

from collections.abc import Sequence

from cluster_jax.cli import exit_codes, output
from cluster_jax.cli.flags import Parser, add_new_rows
from cluster_jax.core import checks
from cluster_jax.core.checks import InputError


def _parser() -> Parser:
    parser = Parser("update", __doc__)
    add = parser.add_argument
    photos = "more folders or files of photos (default: those of the run)"
    add("photos", metavar="PHOTOS", nargs="*", help=photos)
    add("--workdir", required=True, metavar="DIR", help="folder of a finished run")
    add_new_rows(parser)
    output.add_report(parser)
    refit = "cluster everything anew; groups that stay mostly the same keep their ids"
    add("--refit", action="store_true", help=refit)
    add("--yes", action="store_true", help="more than half of the photos may leave")
    add("--undo", action="store_true", help="take the last update back")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command; `arguments` are those of the process by default."""
    with exit_codes.handle_errors():
        flags = _parser().parse_args(arguments)
        for name in ("array", "ids"):
            if (value := getattr(flags, name)) is not None and flags.features is None:
                raise InputError(f"--{name} must come with --features; got {value!r} alone")
        change = flags.photos or flags.features or flags.refit
        if flags.undo and change:
            raise InputError(f"--undo must be given alone; got {change} beside it")
        checks.local(flags.workdir)
        from cluster_jax.pipeline import embeddings, updates

        how = {"refit": flags.refit, "with_report": flags.report == "yes"}
        if flags.undo:
            ended = updates.undo(flags.workdir)
        elif embeddings.is_run(flags.workdir):
            if flags.photos:
                raise InputError(
                    f"--features must be given in place of PHOTOS for a run of embeddings; got "
                    f"{flags.photos[0]}"
                )
            table = None
            if flags.features is not None:
                table = embeddings.read_rows(
                    embeddings.read(flags.workdir), flags.features, flags.array, flags.ids
                )
            ended = updates.update_rows(flags.workdir, table, **how)
        else:
            if flags.features is not None:
                raise InputError(
                    f"PHOTOS must be given in place of --features for a run of photos; got "
                    f"{flags.features}"
                )
            how["confirmed"] = flags.yes
            ended = updates.update_photos(flags.workdir, flags.photos, **how)
        output.end(flags, *ended)
