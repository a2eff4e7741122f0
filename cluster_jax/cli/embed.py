"""Writes the features of images by a pretrained network into one file, or into shards.

The configs for features train on the file (--config=simclr_features --config.data.dir=FILE). A run
that was interrupted resumes.
"""

import pathlib
from collections.abc import Sequence

from cluster_jax.cli import exit_codes, flags, output
from cluster_jax.cli.flags import Parser, output_file
from cluster_jax.core.checks import InputError


def _parser() -> Parser:
    parser = flags.config_parser("embed", __doc__, "--config.data.dir=DIR")
    flags.add_encoder(parser)
    out = "an .npz file, or a folder, in which each process writes a part"
    parser.add_argument("--out", required=True, metavar="PATH", help=out)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command; `arguments` are those of the process by default."""
    with exit_codes.handle_errors():
        args, overrides = flags.parse(_parser(), arguments)
        if pathlib.PurePath(args.out).suffix not in ("", ".npz"):
            raise InputError(
                f"--out must be the path of an .npz file or of a folder to write; got {args.out}"
            )
        output_file(args.out, may_be_folder=True)
        config, _ = flags.read_config(args.config, overrides, args.encoder)

        from cluster_jax.core import devices
        from cluster_jax.runs.features import write_features
        from cluster_jax.training.config import config_json

        devices.use_cores(config.get("eval", {}).get("batch_size", 0))
        devices.join()
        sides, skipped = write_features(config_json(config), args.out)
        lines = [f"skipped {file} ({reason})" for file, reason in skipped]
        shape = " x ".join(f"{n:,}" for n in sides)
        lines.append(f"features     {shape} in {args.out}")
        written_values = {"features": args.out, "shape": sides, "skipped": dict(skipped)}
        output.end(args, "\n".join(lines), written_values)
