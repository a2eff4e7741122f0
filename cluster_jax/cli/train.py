"""`cluster-jax train --config=NAME [--workdir=DIR] [--config.KEY=VALUE ...]`: a whole run."""

import contextlib
import math
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence

from absl import logging
from etils import epath

from cluster_jax.cli import exit_codes
from cluster_jax.cli.flags import ConfigFlags, read_flags
from cluster_jax.cli.parser import Parser

CUT_SHORT = "--cut_short"


def run(flags: ConfigFlags, *, cut_short: bool = False) -> epath.Path:
    """Runs a config from its images to the report; returns the workdir."""
    import jax

    from cluster_jax.core import devices
    from cluster_jax.pipeline import export
    from cluster_jax.pipeline import run as pipeline

    logging.use_absl_handler()
    logging.set_verbosity(logging.WARNING)
    train = flags.config.get("train", {})
    devices.use_cores(math.gcd(train.get("batch_size", 0), train.get("labeled_batch_size") or 0))
    devices.distribute()
    export_folder = flags.others["export"]
    workdir = _workdir(flags)
    if export_folder is not None:
        export.check_has_images(flags.config.data.name)
        images = flags.config.data.dir if flags.config.data.name == "folder" else None
        export.check(export_folder, images, workdir)
    pipeline.run_pipeline(flags.config, workdir, flags.name, cut_short=cut_short)
    if export_folder is not None and jax.process_index() == 0:
        count = export.run_clusters(workdir, export_folder)
        sys.stdout.write(f"exported     {count:,} folders to {export_folder}\n")
    return workdir


@contextlib.contextmanager
def _failing_at_once() -> Iterator[None]:
    """Ends a process of several that fails inside without waiting for the others.

    At its end JAX waits for the other processes, and those wait for this one in their next step. A
    preemption, which all processes have agreed on, ends as usual.
    """
    try:
        yield
    except BaseException as error:
        if "jax" not in sys.modules:  # It ended before there were several.
            raise
        import jax

        from cluster_jax.training import loop

        if not jax.distributed.is_initialized() or isinstance(error.__context__, loop.Preempted):
            raise
        if not isinstance(error, SystemExit):
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        code = error.code if isinstance(error, SystemExit) else None
        os._exit(code if isinstance(code, int) else exit_codes.FAILURE)


def _workdir(flags: ConfigFlags) -> epath.Path:
    from cluster_jax.pipeline import run as pipeline
    from cluster_jax.pipeline.config import config_json

    folder: epath.PathLike | None = flags.others["workdir"]
    if not folder:
        folder = pipeline.default_workdir(config_json(flags.config), flags.name)
    return epath.Path(folder).expanduser()


def _parser() -> Parser:
    """Only for `--help`; `read_flags` parses the flags."""
    parser = Parser(
        "train",
        "Trains a network on images, clusters them and writes assignments.csv, results.json and\n"
        "report.html. A run that was interrupted resumes from its last checkpoint.",
        "configs/base.py explains the keys of a config.\n\n",
    )
    add = parser.add_argument
    add("--config", required=True, metavar="NAME", help="name or path of a config")
    values = "any value of the config, for example --config.train.batch_size=128"
    add("--config.KEY", metavar="VALUE", help=values)
    add("--workdir", metavar="DIR", help="folder of the run (default: runs/NAME-HASH)")
    now = "evaluate the newest checkpoint of an unfinished training; without it, trains on"
    add(CUT_SHORT, action="store_true", help=now)
    add(
        "--export", metavar="DIR", help="new folder for links to the images, one folder per cluster"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point; `arguments` are those of the process by default."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    with _failing_at_once(), exit_codes.handle_errors():
        if any(re.fullmatch("-h|--?help(full|short)?", argument) for argument in arguments):
            _parser().parse_args(["--help"])
        others = [argument for argument in arguments if argument != CUT_SHORT]
        flags = read_flags("train", others, ("workdir", "export"))
        run(flags, cut_short=CUT_SHORT in arguments)


if __name__ == "__main__":
    main()
