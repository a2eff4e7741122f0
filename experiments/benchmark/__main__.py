"""`python -m experiments.benchmark NAME --json=PATH`: runs one benchmark, by its file name.

A benchmark is a file in this folder with `measure() -> figures`, a dictionary; its docstring says
what is measured, and its constants in capitals (numbers, tuples, and dictionaries) go into the
provenance. `step` also writes a table beside the JSON file.
"""

import importlib
import json
import pathlib

import jax

from cluster_jax.core import io
from experiments import tables

FOLDER = pathlib.Path(__file__).parent


def main() -> None:
    """Entry point."""
    names = sorted(f.stem for f in FOLDER.glob("*.py") if not f.stem.startswith("_"))
    parser = tables.parser("benchmark", __doc__)
    parser.add_argument("name", choices=names)
    parser.add_argument("--json", help="file to write; by default the result is only printed")
    parser.add_argument("--tiny", action="store_true", help="step: sizes for a test")
    parser.add_argument("--only", help="step: names of the steps to measure")
    flags = parser.parse_args()
    module = importlib.import_module(f"experiments.benchmark.{flags.name}")
    options = {"tiny": flags.tiny, "only": flags.only} if flags.name == "step" else {}
    figures = module.measure(**options)
    command = f"{parser.prog} {flags.name}{' --tiny' * flags.tiny}"
    command += f" --only='{flags.only}'" if flags.only else ""
    device = jax.devices()[0].device_kind
    about = {"constants": constants(module), "device": device, **tables.origin(command)}
    about = io.plain(about)
    result = io.plain({"name": flags.name, "figures": figures})
    print(json.dumps({**result, "provenance": about}, indent=2))
    if flags.json and hasattr(module, "texts"):
        path = flags.json.removesuffix(".json")
        print(tables.write(path, result, about, *module.texts(figures, about)))
    elif flags.json:
        io.write_json(flags.json, {**result, "provenance": about})


def constants(module: object) -> dict[str, object]:
    """The constants of a benchmark, its sizes and what was predicted, by name."""
    named = {name.lower(): value for name, value in vars(module).items() if name.isupper()}
    return {k: v for k, v in named.items() if type(v) in (int, float, tuple, dict)}


if __name__ == "__main__":
    main()
