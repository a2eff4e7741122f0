"""Trains a network on images and clusters them.

Writes assignments.csv, results.json and report.html. A run that was interrupted resumes from its
last checkpoint.
"""

import argparse
import math
from collections.abc import Sequence
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from cluster_jax.cli import exit_codes, flags, output
from cluster_jax.cli.flags import Parser
from cluster_jax.core import buckets
from cluster_jax.core.checks import InputError


def run(
    config: ConfigDict, name: str, workdir: epath.PathLike | None, *, report: bool
) -> epath.Path:
    """Runs a config: trains, embeds, clusters, and writes the report.

    Args:
        config: the config.
        name: its name.
        workdir: folder of the run; None: `runs/NAME-HASH`.
        report: whether the page is written.

    Returns:
        The workdir.
    """
    from cluster_jax.core import devices
    from cluster_jax.runs import begin, claims
    from cluster_jax.training.config import config_json, parse_config

    parse_config(config, name)
    train = config.get("train", {})
    devices.use_cores(math.gcd(train.get("batch_size", 0), train.get("labeled_batch_size") or 0))
    workdir = workdir or claims.default_workdir(config_json(config), name)
    workdir = buckets.path(workdir)
    devices.keep_compiled()
    devices.distribute()
    begin.run_pipeline(config, workdir, name, report=report)
    return workdir


def end(args: argparse.Namespace, workdir: epath.Path, text: str = "") -> None:
    """Prints the end of a run, of several processes in the first alone.

    Args:
        args: the flags of the command.
        workdir: of the run.
        text: lines for a person.
    """
    from cluster_jax.core import devices
    from cluster_jax.runs import workdir as workdirs

    if not devices.is_first():
        return
    values: dict[str, Any] = {"workdir": str(workdir), **workdirs.outputs(workdir)}
    if finished := workdirs.about(workdir):
        values["results"] = finished["results"]
    output.end(args, text, values)


def _parser() -> Parser:
    parser = flags.config_parser("train", __doc__, "--config.train.batch_size=128", required=False)
    add = parser.add_argument
    add("--workdir", metavar="DIR", help="folder of the run (default: runs/NAME-HASH)")
    output.add_report(parser)
    return parser


def _config(args: argparse.Namespace, overrides: Sequence[str]) -> tuple[ConfigDict, str]:
    """Reads the config of `--config`, or else that of the run in `--workdir`; and its name."""
    if args.config is not None:
        return flags.read_config(args.config, overrides)
    from cluster_jax.runs import workdir as workdirs

    if args.workdir is None:
        raise InputError("--config must be given, or --workdir of a run that began; got neither")
    workdir = buckets.path(args.workdir)
    if not (workdir / workdirs.CONFIG).exists():
        raise InputError(
            f"--config must be given for a new run; got none, and there is no run in {workdir}"
        )
    if overrides:
        raise InputError(f"{overrides[0]} must come with --config=NAME; got no --config")
    name = workdirs.read_values(workdir / workdirs.IMAGES).get("config", "run")
    return ConfigDict(workdirs.stored_config(workdir), convert_dict=True), name


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command; `arguments` are those of the process by default."""
    with exit_codes.handle_errors():
        args, overrides = flags.parse(_parser(), arguments)
        end(args, run(*_config(args, overrides), args.workdir, report=args.report == "yes"))
