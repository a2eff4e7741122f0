"""Writes the features of images by a pretrained or trained network into a file, or into shards.

The configs for features train on the file (--config=simclr_features --config.data.dir=FILE). A run
that was interrupted resumes. --workdir=RUN takes images and network of a finished training, and
--split=test those of its images that were held out, or a split of a TFDS set.
"""

import argparse
import pathlib
from collections.abc import Sequence
from typing import Any

from cluster_jax.cli import exit_codes, flags, output
from cluster_jax.cli.flags import Parser, output_file
from cluster_jax.core.checks import InputError


def _parser() -> Parser:
    parser = flags.config_parser("embed", __doc__, "--config.data.dir=DIR", required=False)
    flags.add_encoder(parser)
    run = "finished training whose network embeds its images, instead of --config"
    parser.add_argument("--workdir", metavar="RUN", help=run)
    split = "which images of RUN: train or test, or the name of a split of a TFDS set"
    parser.add_argument("--split", metavar="NAME", help=split)
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
        from cluster_jax.core import devices
        from cluster_jax.runs.features import write_features

        read = _config if args.workdir is None else _run
        values, trained = read(args, overrides)
        devices.use_cores(values.get("eval", {}).get("batch_size", 0))
        devices.keep_compiled()
        devices.join()
        sides, skipped = write_features(values, args.out, **trained)
        lines = [f"skipped {file} ({reason})" for file, reason in skipped]
        shape = " x ".join(f"{n:,}" for n in sides)
        lines.append(f"features     {shape} in {args.out}")
        written_values = {"features": args.out, "shape": sides, "skipped": dict(skipped)}
        output.end(args, "\n".join(lines), written_values)


def _config(
    args: argparse.Namespace, overrides: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the values of `--config`, and no further arguments of `write_features`.

    Raises:
        InputError: there is no such config, a flag is missing, or one cannot be used.
    """
    if args.config is None:
        raise InputError("--config must be given, or --workdir of a finished training; got neither")
    if args.split is not None:
        raise InputError(f"--split must be left out without --workdir; got {args.split}")
    config, _ = flags.read_config(args.config, overrides, args.encoder)

    from cluster_jax.training.config import config_json

    return config_json(config), {}


def _run(
    args: argparse.Namespace, overrides: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the config of a training, and its encoder and split for `write_features`.

    Raises:
        InputError: it is no finished training, or other images or networks are named as well.
    """
    others = [args.config and f"--config={args.config}", args.encoder and "--encoder", *overrides]
    if given := [flag for flag in others if flag]:
        raise InputError(f"--workdir must be alone, with --split and --out; got {given[0]}, too")

    from cluster_jax.core import buckets
    from cluster_jax.encoding.encoder import Encoder
    from cluster_jax.runs.trainings import read_config

    encoder = Encoder.load(args.workdir)
    values = dict(read_config(buckets.path(args.workdir)).values)
    return values, {"trained": encoder, "split": args.split or "train"}
