"""Writes the network of a finished run as StableHLO (jax.export).

The file includes the weights and the standardization of images. Any program with JAX loads it,
without this package:

  encode = jax.export.deserialize(open(FILE, 'rb').read()).call
  features = encode(images)
"""

import importlib.util
from collections.abc import Sequence

from cluster_jax.cli import exit_codes, output
from cluster_jax.cli.flags import Parser, output_file
from cluster_jax.core.checks import InputError

# What the file runs on, in the words of `jax.export`.
_PLATFORMS = ("cpu", "cuda", "tpu")


def _parser() -> Parser:
    parser = Parser("export", __doc__)
    add = parser.add_argument
    add("--workdir", required=True, metavar="DIR", help="folder of a finished run on images")
    add("--out", required=True, metavar="FILE", help="file to write")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command; `arguments` are those of the process by default."""
    with exit_codes.handle_errors():
        flags = _parser().parse_args(arguments)
        out = output_file(flags.out)
        import jax
        import jax.numpy as jnp
        from jax import export

        from cluster_jax.core import io, ops
        from cluster_jax.runs import run as records
        from cluster_jax.training import state as states

        run = records.read(flags.workdir)
        if not run.is_of_images or len(run.images["shape"]) == 2:
            raise InputError("the run to export must be one on images; got a run on features")
        encode = run.encoder().on(states.make_mesh(1))
        height, width, channels = run.images["shape"]
        batch = export.symbolic_shape(f"b, {height}, {width}, {channels}")
        images = jax.ShapeDtypeStruct(batch, jnp.uint8)
        if importlib.util.find_spec("flatbuffers") is None:
            raise InputError(
                "flatbuffers must be installed to write an encoder; got none: pip install "
                "'cluster-jax[export]'"
            )
        unit_rows = jax.jit(lambda images: ops.l2_normalize(encode(images)))
        exported = export.export(unit_rows, platforms=_PLATFORMS)(images)
        io.write(out, bytes(exported.serialize()))
        columns = exported.out_avals[0].shape[1]
        interpolation = run.config["data"]["interpolation"]
        text = (
            f"encoder      {out}\n"
            f"input        uint8 [b, {height}, {width}, {channels}]: short side resized "
            f"({interpolation}), central square\n"
            f"output       float32 [b, {columns}], unit rows"
        )
        values = {"encoder": str(out), "input": [height, width, channels], "columns": columns}
        output.end(flags, text, values)


if __name__ == "__main__":
    main()
