"""`cluster-jax export --workdir=W --out=FILE`: the encoder of a run without this package."""

import importlib.util
import sys
from collections.abc import Sequence

from cluster_jax.cli import exit_codes
from cluster_jax.cli.flags import Parser, check_output
from cluster_jax.core.checks import InputError

# What the file runs on, in the words of `jax.export`.
_PLATFORMS = ("cpu", "cuda", "tpu")


def _parser() -> Parser:
    parser = Parser(
        "export",
        "Writes the network of a finished run as StableHLO (jax.export), with its weights and the\n"
        "standardization of images. Any program with JAX loads it, without this package:\n\n"
        "  encode = jax.export.deserialize(open(FILE, 'rb').read()).call\n"
        "  features = encode(images)",
    )
    add = parser.add_argument
    add("--workdir", required=True, metavar="DIR", help="folder of a finished run on images")
    add("--out", required=True, metavar="FILE", help="file to write")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point; `arguments` are those of the process by default."""
    with exit_codes.handle_errors():
        flags = _parser().parse_args(arguments)
        check_output(flags.out)
        import jax
        import jax.numpy as jnp
        from jax import export

        from cluster_jax.core import io
        from cluster_jax.pipeline import inference

        run = inference.read(flags.workdir)
        encode = jax.jit(inference.encoder(run))
        height, width, channels = run.images["shape"]
        batch = export.symbolic_shape(f"b, {height}, {width}, {channels}")
        images = jax.ShapeDtypeStruct(batch, jnp.uint8)
        if importlib.util.find_spec("flatbuffers") is None:
            raise InputError(
                "flatbuffers must be installed to write an encoder; got none: pip install "
                "'cluster-jax[export]'"
            )
        exported = export.export(encode, platforms=_PLATFORMS)(images)
        io.write(flags.out, bytes(exported.serialize()))
        columns = exported.out_avals[0].shape[1]
        interpolation = run.config.data.interpolation
        sys.stdout.write(
            f"encoder      {flags.out}\n"
            f"input        uint8 [b, {height}, {width}, {channels}]: short side resized "
            f"({interpolation}), central square\n"
            f"output       float32 [b, {columns}], unit rows\n"
        )


if __name__ == "__main__":
    main()
