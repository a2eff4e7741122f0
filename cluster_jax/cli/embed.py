"""`cluster-jax embed --config=images --config.data.dir=DIR --out=FILE`: features of images."""

import pathlib
import re
import sys
from collections.abc import Sequence

from absl import logging

from cluster_jax.cli import exit_codes
from cluster_jax.cli.flags import ConfigFlags, read_flags
from cluster_jax.cli.parser import Parser
from cluster_jax.core.checks import InputError


def _embed(flags: ConfigFlags) -> None:
    from cluster_jax.core import devices
    from cluster_jax.pipeline import feature_file
    from cluster_jax.pipeline.config import config_json

    out, views = flags.others["out"], flags.others["views"] or "0"
    if out is None or pathlib.PurePath(out).suffix != ".npz":
        raise InputError(f"--out must be the path of an .npz file to write; got {out}")
    if not re.fullmatch("[0-9]+", views):
        raise InputError(f"--views must be a whole number of at least 0; got {views!r}")
    logging.use_absl_handler()
    logging.set_verbosity(logging.WARNING)
    devices.use_cores(flags.config.get("eval", {}).get("batch_size", 0))
    written = feature_file.write(config_json(flags.config), out, int(views))
    for file, reason in written.skipped:
        sys.stdout.write(f"skipped {file} ({reason})\n")
    sys.stdout.write(f"features     {' x '.join(f'{n:,}' for n in written.shape)} in {out}\n")


def _parser() -> Parser:
    """Only for `--help`; `read_flags` parses the flags."""
    parser = Parser(
        "embed",
        "Writes the features of images by a pretrained network, in a file that the configs for\n"
        "features train on (--config=simclr_features --config.data.dir=FILE). A run that was\n"
        "interrupted resumes.",
        "configs/base.py explains the keys of a config.\n\n",
    )
    add = parser.add_argument
    add("--config", required=True, metavar="NAME", help="name or path of a config, such as images")
    values = "any value of the config, for example --config.data.dir=DIR"
    add("--config.KEY", metavar="VALUE", help=values)
    add("--out", required=True, metavar="FILE", help="the .npz file to write")
    views = "augmented views of each image beside the image itself (default: 0)"
    add("--views", metavar="V", help=views)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point; `arguments` are those of the process by default."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    with exit_codes.handle_errors():
        if any(re.fullmatch("-h|--?help(full|short)?", argument) for argument in arguments):
            _parser().parse_args(["--help"])
        _embed(read_flags("embed", arguments, ("out", "views")))


if __name__ == "__main__":
    main()
