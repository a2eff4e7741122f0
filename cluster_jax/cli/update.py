"""Updates a finished run of photos or embeddings, whose clusters keep their numbers and names.

Photos: the folders of the run are read again, and the folders that you name. New photos join a
group or make a new one, deleted photos leave, and a moved or renamed file is the same photo. If a
whole folder is missing, its photos stay until you say that it is gone (--gone); if it has moved,
name its new place. Embeddings: --features has all present rows, in the order that the tables get.
Rows that are not in the file leave, and a row whose vector has changed moves only if the new
clusters part it from its old one; with --add the rows are added, and none leaves. changes.csv lists
what has changed. Your names and corrections stay. --n-clusters clusters all into another number,
where clusters that are mostly the same keep their numbers and names; corrections of the others are
lost, which the command says, and --undo brings them back.
"""

from collections.abc import Sequence

from cluster_jax.cli import exit_codes, output
from cluster_jax.cli.flags import Parser, add_new_rows, is_of_rows
from cluster_jax.core import checks
from cluster_jax.core.checks import InputError


def _parser() -> Parser:
    parser = Parser("update", __doc__)
    add = parser.add_argument
    photos = "more folders or files of photos (default: those of the run)"
    add("photos", metavar="PHOTOS", nargs="*", help=photos)
    add("--workdir", required=True, metavar="DIR", help="folder of a finished run")
    gone = "folder of the run that is gone for good: its photos leave; may be repeated"
    add("--gone", metavar="FOLDER", action="append", default=[], help=gone)
    globs = "files or folders to leave out from now on, such as '*_edited.*'; may be repeated"
    add("--exclude", metavar="PATTERN", action="append", default=[], help=globs)
    add_new_rows(parser, "all rows that exist now; with --add only new ones")
    output.add_report(parser)
    refit = "cluster everything anew; groups that stay mostly the same keep their numbers"
    add("--refit", action="store_true", help=refit)
    number = "cluster everything anew, into N groups; see above for what is lost"
    add("--n-clusters", type=int, metavar="N", help=number)
    add("--add", action="store_true", help="the rows of --features are added, and none leaves")
    add(
        "--yes",
        action="store_true",
        help="more than half of the photos or rows may leave or change",
    )
    undo = "go back to the state before the last update or corrections"
    add("--undo", action="store_true", help=undo)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command; `arguments` are those of the process by default."""
    with exit_codes.handle_errors():
        flags = _parser().parse_args(arguments)
        changes = {"PHOTOS": flags.photos, "--features": flags.features, "--refit": flags.refit}
        changes |= {"--gone": flags.gone, "--exclude": flags.exclude}
        alone = {"--undo": flags.undo, "--n-clusters": flags.n_clusters is not None}
        given = [name for name, value in {**alone, **changes}.items() if value]
        if given[1:] and given[0] in alone:
            raise InputError(f"{given[0]} must be given alone; got {given[1]} beside it")
        checks.local(flags.workdir)
        of_photos = [*flags.photos, *flags.gone, *flags.exclude]
        of_rows = is_of_rows(flags, "PHOTOS", " ".join(of_photos))
        from cluster_jax.core import devices
        from cluster_jax.runs import rows, states, update
        from cluster_jax.runs import run as records

        report = flags.report == "yes"
        how = {"refit": flags.refit, "confirmed": flags.yes, "with_report": report}
        if flags.undo:
            ended = states.undo(flags.workdir, with_report=report)
        elif flags.n_clusters is not None:
            with checks.named({"n_clusters must": "--n-clusters must"}):
                ended = update.with_number(flags.workdir, flags.n_clusters, with_report=report)
        elif of_rows:
            if flags.features is None and not flags.refit:
                must = "--features must be the file with all rows of now"
                raise InputError(f"{must}, or --refit be given to cluster those of the run anew")
            table = None
            if flags.features is not None:
                run = records.read(flags.workdir)
                table = rows.read_rows(run, flags.features, flags.array, flags.ids)
            ended = update.update_rows(flags.workdir, table, add=flags.add, **how)
        else:
            devices.keep_compiled()
            how |= {"gone": flags.gone, "exclude": flags.exclude}
            ended = update.update_photos(flags.workdir, flags.photos, **how)
        output.end(flags, *ended)
