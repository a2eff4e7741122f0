"""`python -m experiments.benchmark NAME --json=PATH`: runs one benchmark, by its file name.

A benchmark is a file in this folder with `measure() -> figures, setup`, two dictionaries.
"""

import argparse
import importlib
import json
import pathlib

from cluster_jax.core import io
from cluster_jax.pipeline import provenance
from experiments import machine

FOLDER = pathlib.Path(__file__).parent


def main() -> None:
    """Entry point."""
    names = sorted(f.stem for f in FOLDER.glob("*.py") if not f.stem.startswith("_"))
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmark")
    parser.add_argument("name", choices=names)
    parser.add_argument("--json", help="file to write; by default the result is only printed")
    arguments = parser.parse_args()
    module = importlib.import_module(f"experiments.benchmark.{arguments.name}")
    figures, setup = module.measure()
    result = io.plain(
        {
            "name": arguments.name,
            "figures": figures,
            "provenance": {
                **setup,
                "command": f"python -m experiments.benchmark {arguments.name}",
                "versions": provenance.versions(),
                "machine": machine.describe(),
                "commit": provenance.commit(),
            },
        }
    )
    print(json.dumps(result, indent=2))
    if arguments.json:
        io.write_json(arguments.json, result)


if __name__ == "__main__":
    main()
