"""`python -m experiments.benchmark NAME > NAME.json`: runs one benchmark, by its file name.

A benchmark is a file in this folder with `measure() -> figures`, a dictionary; its docstring says
what is measured, and its constants in capitals (numbers, tuples, and dictionaries) go into the
provenance.
"""

import importlib
import json
from pathlib import Path

import jax

from cluster_jax.core import io
from experiments import tables

FOLDER = Path(__file__).parent


def main() -> None:
    """Entry point."""
    names = sorted(f.stem for f in FOLDER.glob("*.py") if not f.stem.startswith("_"))
    parser = tables.parser("benchmark", __doc__)
    parser.add_argument("name", choices=names)
    parser.add_argument("--only", help="what to measure")
    flags = parser.parse_args()
    module = importlib.import_module(f"experiments.benchmark.{flags.name}")
    figures = module.measure(flags.only) if flags.only else module.measure()
    named = {name.lower(): value for name, value in vars(module).items() if name.isupper()}
    constants = {k: v for k, v in named.items() if type(v) in (int, float, tuple, dict)}
    command = f"{parser.prog} {flags.name}" + (f" --only='{flags.only}'" if flags.only else "")
    about = {"constants": constants, "device": jax.devices()[0].device_kind}
    about |= tables.origin(command)
    result = {"name": flags.name, "figures": figures, "provenance": about}
    print(json.dumps(io.plain(result), indent=2))


if __name__ == "__main__":
    main()
