"""InfoNCE + NRCC on 5,000 CIFAR-10 images with a narrow network, against k-means on the pixels.

python -m experiments.nrcc.cifar10 --data=DIR [--runs=DIR] [--out=experiments/nrcc/cifar10]

DIR holds CIFAR-10 prepared by TFDS as array_record. A check that the whole works on real colour
images on 2 cores, under 10 minutes a seed; not a reproduction of the paper.
"""

import argparse

import numpy as np
from ml_collections import ConfigDict

from cluster_jax import settings
from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.data import datasets
from cluster_jax.metrics import partition
from experiments import runs

SEEDS = (0, 1, 2)
NOTE = (
    "5,000 images of the training split, ResNet-18 of width 12 in place of ResNet-34 of 64, 16 x "
    "16 pixels. Not tuned with labels: the rates and augmentations are those of configs/base.py "
    "or fixed before the first run."
)


def config(data: str) -> ConfigDict:
    """The reduced config."""
    made = settings.load("nrcc_cifar10")
    made.data.dir, made.data.limit = data, 5000
    made.augment.size = 32
    made.network.name, made.network.width = "resnet18", 8
    made.network.projector = ConfigDict({"hidden": 256, "out": 128})
    made.network.predictor = None
    made.method = ConfigDict(
        {"name": "simclr", "temperature": 0.5, "positive_in_denominator": False}
    )
    made.nrcc.temperature, made.nrcc.route = 0.5, "online"
    made.optimizer.warmup = "50 steps"
    made.optimizer.learning_rate = 0.1
    made.train.duration = "30 epochs"
    return made


def pixels(made: ConfigDict) -> dict:
    """k-means on the pixels of the same images."""
    dataset = datasets.load(**made.data)
    flat = dataset.images.reshape(dataset.size, -1).astype(np.float32) / 255
    return partition.scores(dataset.labels, kmeans(flat, 10, restarts=10, seed=0).labels)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m experiments.nrcc.cifar10")
    parser.add_argument("--data", required=True)
    parser.add_argument("--runs", default="runs/nrcc-cifar10")
    parser.add_argument("--out", default="experiments/nrcc/cifar10")
    arguments = parser.parse_args()
    made = config(arguments.data)
    found = {"InfoNCE + NRCC": runs.repeat(made, SEEDS, arguments.runs, "infonce-nrcc")}
    base = pixels(made)
    note = f"{NOTE} k-means on the pixels: ACC {base['acc']:.3f}, NMI {base['nmi']:.3f}."
    command = "python -m experiments.nrcc.cifar10 --data=DIR"
    print(runs.write(arguments.out, command, found, note))


if __name__ == "__main__":
    main()
