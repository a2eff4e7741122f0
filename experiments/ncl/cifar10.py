"""NCL on 10,000 CIFAR-10 images with a narrow network: all three stages in half an hour.

python -m experiments.ncl.cifar10 --data=DIR [--runs=DIR] [--out=experiments/ncl/cifar10]

DIR holds CIFAR-10 prepared by TFDS as array_record. Shows that the stages run through on real
color images on 2 cores and what a weak network needs that the paper's does not; no reproduction.
All rows share their first two stages. Two processes with --rows=0/2 and --rows=1/2 share the rows
once the first has these stages, one core each; another call makes the table.
"""

import argparse
import pathlib

from ml_collections import ConfigDict

from cluster_jax.core import devices
from cluster_jax.core.config import load_config
from experiments import runs
from experiments.ncl import digits, stages

SEEDS = (0,)
# lambda (None: what one pair in C^u reaches) and the weight omega of the consistency. At 0.45 one
# pair in five counts as similar when the last stage begins: `experiments.ncl.similar`.
ROWS = {
    "one pair in five, omega 1": (None, 1.0),
    "lambda 0.45, omega 1": (0.45, 1.0),
    "one pair in five, omega 0": (None, 0.0),
    "lambda 0.45, omega 5 (the paper's)": (0.45, 5.0),
}
FIGURES = {**digits.FIGURES, "confidence": ("discovery", "confidence")}
NOTE = (
    "10,000 images of the training split (the paper: 50,000), a network of four convolutions "
    "(ResNet-18), 15, 100 and 80 epochs (the last stage: 200), queues of 1,024 (2,000), AdamW "
    "(SGD). Network, optimizer and losses are those of ncl_digits, data and augmentation those of "
    "ncl_cifar10. k-means before and after: on the features with which the last stage begins and "
    "ends. Confidence: the mean of the novel head's highest probability, which needs no label."
)


def rows(data: str) -> dict[str, ConfigDict]:
    """The reduced config with each lambda and omega."""
    made = {}
    for name, (threshold, consistency_weight) in ROWS.items():
        made[name] = _reduced(data)
        with made[name].ignore_type():
            made[name].method.threshold = threshold
        made[name].method.consistency_weight = consistency_weight
    return made


def _reduced(data: str) -> ConfigDict:
    made = load_config("ncl_digits")
    paper = load_config("ncl_cifar10")
    made.note = NOTE
    made.data, made.augment, made.novel = paper.data, paper.augment, paper.novel
    made.data.dir, made.data.limit = data, 10_000
    made.method.update(queue=1024, neighbors=102, ramp="10 epochs")
    made.method.hng.count = 204
    made.train.duration = "80 epochs"
    made.stages.rotation.train.duration = "15 epochs"
    made.stages.supervised.train.duration = "100 epochs"
    return made


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m experiments.ncl.cifar10")
    parser.add_argument("--data", required=True)
    parser.add_argument("--runs", default="runs/ncl-cifar10")
    parser.add_argument("--out", default="experiments/ncl/cifar10")
    parser.add_argument("--rows", help="I/N: every N-th row from I on; no table is written")
    parser.add_argument("--note", default="", help="added to what is said about the table")
    arguments = parser.parse_args()
    made = rows(arguments.data)
    devices.use_cores(next(iter(made.values())).train.batch_size)
    found = stages.results(made, pathlib.Path(arguments.runs), SEEDS, arguments.rows)
    if arguments.rows:
        return
    command = "python -m experiments.ncl.cifar10 --data=DIR"
    note = f"{NOTE} {arguments.note}".strip()
    print(runs.write(arguments.out, command, found, note, None, FIGURES))


if __name__ == "__main__":
    main()
