"""Applies the corrections that you saved on the page of a run, and exports its groups.

Writes the page and the table of the run again. From then on, all commands use the corrected groups.
`cluster-jax update --workdir=WORKDIR --undo` takes the last corrections back.
"""

from collections.abc import Sequence

from cluster_jax.cli import exit_codes, output
from cluster_jax.cli.flags import Parser, add_export, check_export
from cluster_jax.core.checks import InputError
from cluster_jax.core.names import counted


def _parser() -> Parser:
    parser = Parser("report", __doc__)
    add = parser.add_argument
    add("workdir", metavar="WORKDIR", help="folder of a finished run")
    saved = "file that a report has saved; give the flag once for each file"
    add("--corrections", metavar="FILE", action="append", default=[], help=saved)
    name = "names a cluster, such as 5=Snakes; may be repeated"
    add("--name", metavar="NUMBER=NAME", action="append", default=[], help=name)
    add_export(parser, "group of the run")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command; `arguments` are those of the process by default."""
    with exit_codes.handle_errors():
        flags = _parser().parse_args(arguments)
        check_export(flags)
        from cluster_jax.runs import export, states
        from cluster_jax.runs import run as records

        if flags.export is not None:
            left_out, away = export.check_of_run(flags.export, records.read(flags.workdir))
        names = _names(flags.name)
        text, values = states.correct(flags.workdir, flags.corrections, names)
        if flags.export is not None:
            run = records.read(flags.workdir)
            made = export.run_clusters(run, flags.export, flags.by, left_out)
            if left_out:
                noun = counted(len(left_out), f"{run.words[0]} is", f"{run.words[0]}s are")
                text += f"\n{noun} away, and left out: bring {away[0]} back"
            text += f"\n{export.told(made, flags.export)}"
            values["exported"] = flags.export
        output.end(flags, text, values)


def _names(texts: Sequence[str]) -> dict[str, str]:
    """Returns the name of each cluster, by its number as text."""
    names = dict[str, str]()
    for text in texts:
        number, sign, name = text.partition("=")
        if not sign:
            raise InputError(f"--name must be a number and a name, such as 5=Snakes; got {text!r}")
        if number.strip() in names:
            raise InputError(f"--name must name a cluster once; got a second name by {text!r}")
        names[number.strip()] = name
    return names
