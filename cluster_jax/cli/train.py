"""Trains a network on images and clusters them.

Writes assignments.csv, results.json and report.html. A run that was interrupted resumes from its
last checkpoint.
"""

import math
import sys
from collections.abc import Sequence

from absl import logging
from etils import epath
from ml_collections import ConfigDict

from cluster_jax.cli import exit_codes, flags
from cluster_jax.cli.flags import Parser


def run(
    config: ConfigDict,
    name: str,
    workdir: epath.PathLike | None,
    export_folder: str | None,
    *,
    by: str = "link",
    is_kept: bool = False,
    cut_short: bool = False,
) -> epath.Path:
    """Runs a config: trains, embeds, clusters, and writes the report.

    Args:
        config: the config.
        name: its name.
        workdir: folder of the run; None: `runs/NAME-HASH`.
        export_folder: new folder for the images, one folder per cluster; or None.
        by: see `export.write`.
        is_kept: whether a finished run of another number of clusters is kept, see
            `workdir.of_other_k`.
        cut_short: see `run_pipeline`.

    Returns:
        The workdir.
    """
    import jax

    from cluster_jax.core import devices
    from cluster_jax.pipeline import export
    from cluster_jax.pipeline import run as pipeline
    from cluster_jax.pipeline import workdir as workdirs
    from cluster_jax.pipeline.config import config_json, parse_config

    parse_config(config, name)
    logging.set_verbosity(logging.WARNING)
    train = config.get("train", {})
    devices.use_cores(math.gcd(train.get("batch_size", 0), train.get("labeled_batch_size") or 0))
    devices.distribute()
    workdir = workdir or workdirs.default_workdir(config_json(config), name)
    workdir = epath.Path(workdir).expanduser()
    if is_kept:
        workdir = workdirs.of_other_k(workdir, config_json(config))
    if export_folder is not None:
        export.check_has_images(config.data.name)
        images = config.data.dir if config.data.name == "folder" else None
        export.check(export_folder, images, workdir)
    pipeline.run_pipeline(config, workdir, name, cut_short=cut_short)
    if export_folder is not None and jax.process_index() == 0:
        count = export.run_clusters(workdir, export_folder, by)
        sys.stdout.write(f"exported     {count:,} folders to {export_folder}\n")
    return workdir


def _parser() -> Parser:
    parser = flags.config_parser("train", __doc__, "--config.train.batch_size=128")
    add = parser.add_argument
    workdir = "folder of the run (default: runs/NAME-HASH)"
    add("--workdir", "--out", metavar="DIR", help=workdir)
    now = "evaluate the newest checkpoint of an unfinished training; without it, trains on"
    add("--cut_short", action="store_true", help=now)
    flags.add_export(parser, "cluster")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point; `arguments` are those of the process by default."""
    with exit_codes.handle_errors():
        given, overrides = flags.parse(_parser(), arguments)
        flags.check_export(given)
        config = flags.read_config(given.config, overrides)
        run(*config, given.workdir, given.export, by=given.by, cut_short=given.cut_short)
