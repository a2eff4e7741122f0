"""InfoNCE + NRCC on 5,000 CIFAR-10 images with a narrow network, against k-means on the pixels.

python -m experiments.nrcc.cifar10 --data=DIR [--runs=DIR] [--out=experiments/nrcc/cifar10]

DIR holds CIFAR-10 prepared by TFDS as array_record. A check that the whole works on real color
images on 2 cores, under 10 minutes a seed; not a reproduction of the paper.
"""

import argparse

import numpy as np
from ml_collections import ConfigDict

from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.core import devices
from cluster_jax.core.config import load_config
from cluster_jax.data import datasets
from cluster_jax.metrics import partition
from experiments import runs

SEEDS = (0, 1, 2)
NOTE = (
    "5,000 images of the training split, 30 epochs, a network of four convolutions. Not tuned on "
    "this set: network, optimizer and NRCC are those of nrcc_digits, the augmentation is that of "
    "nrcc_cifar10."
)


def config(data: str) -> ConfigDict:
    """The reduced config: network and optimizer of nrcc_digits, augmentation of configs/base.py."""
    made = load_config("nrcc_digits")
    base = load_config("nrcc_cifar10")
    made.note = NOTE
    made.data, made.augment = base.data, base.augment
    made.data.dir, made.data.limit = data, 5000
    made.train.duration = "30 epochs"
    return made


def pixels(made: ConfigDict) -> dict:
    """k-means on the pixels of the same images."""
    dataset = datasets.load(**made.data)
    flat = dataset.images.reshape(dataset.size, -1).astype(np.float32) / 255
    found = kmeans(
        flat, 10, metric="euclidean", n_init=10, iterations=300, tolerance=0.0, seed=0, init=None,
        mesh=None,
    )  # fmt: skip
    return partition.scores(dataset.labels, found.labels)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m experiments.nrcc.cifar10")
    parser.add_argument("--data", required=True)
    parser.add_argument("--runs", default="runs/nrcc-cifar10")
    parser.add_argument("--out", default="experiments/nrcc/cifar10")
    parser.add_argument("--seed", type=int, help="only this seed; no table is written")
    arguments = parser.parse_args()
    made = config(arguments.data)
    devices.use_cores(made.train.batch_size)
    seeds = [arguments.seed] if arguments.seed is not None else SEEDS
    found = {"InfoNCE + NRCC": runs.repeat(made, seeds, arguments.runs, "infonce-nrcc")}
    if arguments.seed is not None:
        return
    base = pixels(made)
    note = f"{NOTE} k-means on the pixels: ACC {base['acc']:.3f}, NMI {base['nmi']:.3f}."
    command = "python -m experiments.nrcc.cifar10 --data=DIR"
    print(runs.write(arguments.out, command, found, note))


if __name__ == "__main__":
    main()
