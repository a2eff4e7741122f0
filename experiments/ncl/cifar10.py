"""NCL on 10,000 CIFAR-10 images with a narrow network: all three stages in half an hour.

python -m experiments.ncl.cifar10 --data=DIR [--runs=DIR] [--out=experiments/ncl/cifar10]

DIR holds CIFAR-10 prepared by TFDS as array_record. Shows that the stages run through on real
colour images on 2 cores and that the discovery finds more than k-means on the features it starts
from; not a reproduction of the paper.
"""

import argparse
import pathlib

from ml_collections import ConfigDict

from cluster_jax import launch, settings
from experiments import runs
from experiments.ncl import stages
from experiments.ncl.digits import FIGURES

SEED = 0
# Share of the pairs of unlabelled images that each takes to be similar: `experiments.ncl.similar`.
THRESHOLDS = {"NCL, lambda 0.45": 0.45, "NCL, lambda 0.6": 0.6}
NOTE = (
    "10,000 images of the training split (the paper: 50,000), a network of four convolutions "
    "(ResNet-18), 15, 100 and 80 epochs (the last stage: 200), queues of 1,024 (2,000), AdamW "
    "(SGD). Network, optimiser and losses are those of ncl_digits, data and augmentation those of "
    "ncl_cifar10. lambda is the one that takes about one pair in five, one in C^u, to be similar."
)


def config(data: str) -> ConfigDict:
    """The reduced config, but for lambda."""
    made = settings.load("ncl_digits")
    paper = settings.load("ncl_cifar10")
    made.note = NOTE
    made.data, made.augment, made.novel = paper.data, paper.augment, paper.novel
    made.data.dir, made.data.limit = data, 10_000
    made.method.update(queue=1024, neighbours=102, ramp="10 epochs")
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
    arguments = parser.parse_args()
    folder, first = pathlib.Path(arguments.runs), next(iter(THRESHOLDS))
    launch.use_cores(config(arguments.data).train.batch_size)
    found = {}
    for name, threshold in THRESHOLDS.items():
        made = config(arguments.data)
        made.method.threshold = threshold
        found[name] = [stages.run(made, folder, name, SEED, first)]
    command = "python -m experiments.ncl.cifar10 --data=DIR"
    print(runs.write(arguments.out, command, found, NOTE, None, FIGURES))


if __name__ == "__main__":
    main()
