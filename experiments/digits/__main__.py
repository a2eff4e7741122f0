"""Tables on digits: all methods, and the ablations `ncc`, `cueco`, `kernels`, `predictor`.

python -m experiments.digits TABLE [--runs=runs/digits] [--out=experiments/digits] [--only=0/2]

`methods` takes about 25 minutes on 2 cores, the others less; finished runs are reused, also across
tables. Two processes with --only=0/2 and --only=1/2 can split the runs, one core each; a final call
without --only writes the table.
"""

import argparse
import hashlib
import json

from ml_collections import ConfigDict

from cluster_jax.core import devices
from cluster_jax.core.config import load_config
from cluster_jax.pipeline.config import config_json
from experiments import runs
from experiments.digits import rows, speed

NOTE = (
    "The settings shared by all rows were tuned on the labels of this data set with InfoNCE + "
    "NRCC, and the initial decay of BYOL's and NCC's moving average (0.9) on the labels with NCC, "
    "seed 0. GridShift never sees the labels; k-means, NCC, and CueCo are given the number of "
    "classes. Two runs at a time, one core each."
)
SPEED = (
    " images/s: mean of {rounds} rounds in which the rows take turns, {steps} steps each, with "
    "nothing else running on the machine."
)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m experiments.digits")
    parser.add_argument("table", choices=tuple(rows.TABLES))
    parser.add_argument("--runs", default="runs/digits")
    parser.add_argument("--out", default="experiments/digits")
    parser.add_argument("--only", help="I/N: run only every N-th, starting with I; writes no table")
    arguments = parser.parse_args()
    devices.use_cores(load_config("nrcc_digits").train.batch_size)
    table = rows.TABLES[arguments.table]()
    seeds = rows.MORE_SEEDS.get(arguments.table, rows.SEEDS)
    jobs = [(name, seed) for name in table for seed in seeds]
    if arguments.only:
        first, step = (int(x) for x in arguments.only.split("/"))
        jobs = jobs[first::step]
    results: dict[str, list] = {name: [] for name in table}
    for name, seed in jobs:
        results[name] += runs.repeat(table[name], [seed], arguments.runs, _slug(table[name]))
    if arguments.only:
        return
    note, speeds = NOTE, None
    if arguments.table == "methods":
        speeds = speed.measure(table)
        note += SPEED.format(rounds=speed.ROUNDS, steps=speed.STEPS)
    command = f"python -m experiments.digits {arguments.table}"
    print(runs.write(f"{arguments.out}/{arguments.table}", command, results, note, speeds))


def _slug(config: ConfigDict) -> str:
    """Equal for equal settings, so that tables share runs."""
    text = json.dumps(config_json(config), sort_keys=True)
    return f"{config.method.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


if __name__ == "__main__":
    main()
