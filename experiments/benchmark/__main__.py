"""`python -m experiments.benchmark NAME --json=PATH`: runs one benchmark, by its file name.

A benchmark is a file in this folder with `measure() -> figures, setup`, two dictionaries. `decode`
takes `--data`; `gpu` takes `--data` and `--tiny`, and writes a table beside the JSON file.
"""

import argparse
import importlib
import json
import pathlib

from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from experiments import tables

FOLDER = pathlib.Path(__file__).parent


def main() -> None:
    """Entry point."""
    names = sorted(f.stem for f in FOLDER.glob("*.py") if not f.stem.startswith("_"))
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmark")
    parser.add_argument("name", choices=names)
    parser.add_argument("--json", help="file to write; by default the result is only printed")
    data = "decode: folder of photos; gpu: TFDS folder with CIFAR-10, to train on it too"
    parser.add_argument("--data", help=data)
    parser.add_argument("--tiny", action="store_true", help="gpu: a part of it, on a CPU")
    flags = parser.parse_args()
    module = importlib.import_module(f"experiments.benchmark.{flags.name}")
    is_gpu, command = flags.name == "gpu", f"{parser.prog} {flags.name}"
    arguments = {"decode": (flags.data,), "gpu": (flags.data, flags.tiny)}.get(flags.name, ())
    try:
        figures, setup = module.measure(*arguments)
    except InputError as error:
        parser.error(str(error))
    command += " --data=DIR" * bool(flags.data) + " --tiny" * flags.tiny
    about = {**setup, **tables.origin(command)}
    result = io.plain({"name": flags.name, "figures": figures})
    print(json.dumps({**result, "provenance": io.plain(about)}, indent=2))
    if flags.json and is_gpu:
        path = flags.json.removesuffix(".json")
        print(tables.write(path, result, about, *module.texts(figures, setup)))
    elif flags.json:
        io.write_json(flags.json, {**result, "provenance": about})


if __name__ == "__main__":
    main()
