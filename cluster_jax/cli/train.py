"""`python -m cluster_jax.main --config=configs/nrcc_digits.py [--workdir=DIR]`.

Any value of the config can be overridden: `--config.train.batch_size=128`. `--config` takes a
path or the bare name of a config that comes with the package.
"""

import math
import sys

from absl import app, flags, logging
from ml_collections import config_flags

from cluster_jax.cli.flags import config_name, explain, resolve_config
from cluster_jax.core import devices
from cluster_jax.core.checks import InputError
from cluster_jax.pipeline import run as pipeline
from cluster_jax.training import loop

_CONFIG = config_flags.DEFINE_config_file("config", None, "Config file or name.", lock_config=True)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run; default runs/NAME-HASH.")

PREEMPTED = 75  # sysexits' "temporary failure": the same command continues.


def parse(argv: list[str]) -> list[str]:
    """Reads the flags, with one sentence in place of a traceback for what the user mistyped."""
    try:
        return flags.FLAGS(resolve_config(argv))
    except InputError as error:
        _stop(error)
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError) as error:
        _stop(explain(error))


def _stop(error: object) -> None:
    sys.stderr.write(f"error: {error}\n")
    sys.exit(2)


def _main(argv: list[str]) -> None:
    if len(argv) > 1:
        _stop(f"unexpected argument {argv[1]!r}; flags look like --config.train.batch_size=128")
    logging.set_verbosity(logging.WARNING)
    try:
        train = _CONFIG.value.get("train", {})
        devices.use_cores(
            math.gcd(train.get("batch_size", 0), train.get("labeled_batch_size") or 0)
        )
        devices.distribute()
        pipeline.run_pipeline(_CONFIG.value, _WORKDIR.value, config_name(flags.FLAGS["config"]))
    except InputError as error:
        _stop(error)
    except loop.NotFinite as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write("stopped; the same command continues from what is saved\n")
        sys.exit(130)
    except loop.Preempted as error:
        sys.stderr.write(f"{error}; the same command continues\n")
        sys.exit(PREEMPTED)


def main() -> None:
    """Entry point."""
    app.run(_main, flags_parser=parse)


if __name__ == "__main__":
    main()
