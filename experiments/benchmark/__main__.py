"""`python -m experiments.benchmark NAME --out=NAME.json`: runs one benchmark, by its file name.

A benchmark is a file in this folder with `measure() -> figures`, a dictionary; its docstring says
what is measured, and its constants in capitals (numbers, tuples, and dictionaries) go into the
provenance. The figures are printed as JSON; those of a part alone with `--only`, which is as in
`step --only="byol,nrcc_cifar10"` and `topology --only="nrcc_imagenet v5e:4x4"`. With `--clock=cpu`
times are CPU seconds of the process: on a core that others use, too, they say more than wall times.
"""

import importlib
import inspect
import json
from collections.abc import Sequence
from pathlib import Path

import jax

from cluster_jax.cli import exit_codes
from cluster_jax.core import devices, io
from cluster_jax.core.checks import InputError
from experiments import tables
from experiments.benchmark import _measure

FOLDER = Path(__file__).parent


def measured(name: str, only: str | None, clock: str = "wall") -> dict:
    """The figures of a benchmark and their provenance.

    Args:
        name: of the benchmark.
        only: its parts, see `measure` of it; None: all.
        clock: "wall" or "cpu".

    Raises:
        InputError: there is no such part, or a package is not installed.
    """
    module = importlib.import_module(f"experiments.benchmark.{name}")
    if only and not inspect.signature(module.measure).parameters:
        raise InputError(f"--only must be left out of {name}, which has no parts; got {only!r}")
    _measure.now = _measure.CLOCKS[clock]
    try:
        figures = module.measure(only) if only else module.measure()
    except ModuleNotFoundError as error:
        must = f"{name} needs {error.name}; install it: pip install '.[benchmark]'"
        raise InputError(must) from error
    named = {name.lower(): value for name, value in vars(module).items() if name.isupper()}
    constants = {k: v for k, v in named.items() if type(v) in (int, float, tuple, dict)}
    command = f"python -m experiments.benchmark {name}" + (f' --only="{only}"' if only else "")
    command += "" if clock == "wall" else f" --clock={clock}"
    about = {"constants": constants, "device": jax.devices()[0].device_kind}
    about["cores"] = devices.cores()  # that this process may use
    about |= tables.origin(command, tables.TRAININGS)
    return {"name": name, "figures": figures, "provenance": about}


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    names = sorted(f.stem for f in FOLDER.glob("*.py") if not f.stem.startswith("_"))
    parser = tables.parser("benchmark", __doc__)
    parser.add_argument("name", choices=names)
    parser.add_argument("--only", help="what to measure")
    parser.add_argument("--clock", choices=_measure.CLOCKS, default="wall")
    parser.add_argument("--out", type=Path, help="file of the figures, which are printed, too")
    flags = parser.parse_args(arguments)
    with exit_codes.handle_errors():
        text = json.dumps(io.plain(measured(flags.name, flags.only, flags.clock)), indent=2)
        print(text)
        if flags.out:
            tables.write(flags.out, f"{text}\n")


if __name__ == "__main__":
    main()
