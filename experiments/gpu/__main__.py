"""The most valuable measurements and trainings on a GPU that is lent for half an hour.

    python -m experiments.gpu --minutes=25 --data=FILE_OR_DIR --out=DIR [--resume=DIR]
    python -m experiments.gpu --dry-run

`order.json` says what is done and in which order. Every result is written as it comes; cut off at
any moment, the same command goes on with the next one. Where a command may take ten minutes at
most, repeat it with --minutes=9 and the same --out. At the end of a slice all results are also in
one file, `results.json`, with the tables in `tables.md`: few, small files to fetch. Without --data
everything but the training is done. `python -m experiments.gpu.images` packs CIFAR-10 into pieces
that can be carried; --resume takes the folder `carry` of an earlier slice. The dry run does the
whole order on a CPU with tiny sizes, kills itself once, and goes on.

Needs jax, flax, optax, orbax-checkpoint, ml-collections, numpy, scipy, scikit-learn, pillow, tqdm;
GridShift beside the training also umap-learn. On a machine without git, the environment variable
CLUSTER_JAX_COMMIT names the commit.
"""

import argparse
import math
import os
import pathlib
import sys
import tempfile

import jax

from cluster_jax.core.checks import InputError
from experiments.gpu import dry_run, images, order, slices, train

# Of the device's memory; PyTorch's process needs some too.
MEMORY = "0.6"


def main() -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, help="length of this slice")
    parser.add_argument("--data", type=pathlib.Path, help="packed images, or an .npz file")
    parser.add_argument("--out", type=pathlib.Path, help="folder of the results")
    parser.add_argument("--resume", type=pathlib.Path, help="folder `carry` of an earlier slice")
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    try:
        if arguments.dry_run:
            dry_run.main()
            return 0
        if arguments.minutes is None or arguments.out is None:
            raise InputError("--minutes and --out must be given; got neither or only one of them")
        if not 0 < arguments.minutes < math.inf:
            raise InputError(
                f"--minutes must be finite and greater than 0; got {arguments.minutes}"
            )
        if arguments.out.exists() and not arguments.out.is_dir():
            raise InputError(f"--out must be a folder; got {arguments.out}, which is a file")
        items, has_data = order.load(), arguments.data is not None
        slices.check_time(arguments.out, arguments.minutes, items, has_data=has_data)
        train.check_resume(arguments.resume, items, slices.results(arguments.out))
        check_platforms(jax.config.jax_platforms)
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", MEMORY)
        if jax.config.jax_compilation_cache_dir is None:
            # A slice that goes on on the same machine compiles nothing anew.
            cache = pathlib.Path(tempfile.gettempdir()) / "cluster_jax_gpu_cache"
            jax.config.update("jax_compilation_cache_dir", str(cache))
        dataset = None if arguments.data is None else images.load(arguments.data)
        if jax.default_backend() == "cpu":
            print(slices.plan(arguments.out, arguments.minutes, items))
            raise InputError(
                "a GPU or TPU must be there; got only a CPU: the above is what would be done, "
                "and --dry-run does it with tiny sizes"
            )
        slices.run(
            arguments.out,
            arguments.minutes,
            items,
            dataset=dataset,
            resume=arguments.resume,
            tiny=False,
        )
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: the same command goes on", file=sys.stderr)
        return 130
    return 0


def check_platforms(platforms: str | None) -> None:
    """Raises an `InputError` if JAX may not use the CPU, by which the device is checked."""
    if platforms and "cpu" not in platforms.split(","):
        raise InputError(f"JAX_PLATFORMS must name cpu beside the accelerator; got {platforms!r}")


if __name__ == "__main__":
    sys.exit(main())
