"""InfoNCE + NRCC on 5,000 CIFAR-10 images with a narrow network, against k-means on the pixels.

python -m experiments.nrcc.cifar10 --data=DIR [--runs=DIR] [--out=experiments/nrcc/cifar10]

DIR holds CIFAR-10 prepared by TFDS as array_record. Checks that everything works on real color
images on 2 cores, under 10 minutes per seed; this is no reproduction of the paper.
"""

import argparse

import numpy as np
from ml_collections import ConfigDict

from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.core import devices
from cluster_jax.core.config import load_config, parse_section
from cluster_jax.data import datasets
from cluster_jax.metrics import partition
from experiments import runs

SEEDS = (0, 1, 2)
NOTE = (
    "5,000 images of the training split, 30 epochs, a network of four convolutions. Not tuned on "
    "this data set: network, optimizer, and NRCC settings are those of nrcc_digits, the "
    "augmentation is that of nrcc_cifar10."
)


def reduced(data: str) -> ConfigDict:
    """The reduced config: network and optimizer of nrcc_digits, augmentation of nrcc_cifar10."""
    config = load_config("nrcc_digits")
    paper = load_config("nrcc_cifar10")
    config.note = NOTE
    config.data, config.augment = paper.data, paper.augment
    config.data.dir, config.data.limit = data, 5000
    config.train.duration = "30 epochs"
    return config


def cluster_pixels(config: ConfigDict) -> dict:
    """k-means on the pixels of the same images."""
    dataset = datasets.load(parse_section(datasets.DataConfig, "data", config.data))
    flat = dataset.images.reshape(dataset.size, -1).astype(np.float32) / 255
    return partition.scores(dataset.labels, kmeans(flat, 10).labels)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m experiments.nrcc.cifar10")
    parser.add_argument("--data", required=True)
    parser.add_argument("--runs", default="runs/nrcc-cifar10")
    parser.add_argument("--out", default="experiments/nrcc/cifar10")
    parser.add_argument("--seed", type=int, help="run only this seed; writes no table")
    arguments = parser.parse_args()
    config = reduced(arguments.data)
    devices.use_cores(config.train.batch_size)
    seeds = [arguments.seed] if arguments.seed is not None else SEEDS
    results = {"InfoNCE + NRCC": runs.repeat(config, seeds, arguments.runs, "infonce-nrcc")}
    if arguments.seed is not None:
        return
    baseline = cluster_pixels(config)
    note = f"{NOTE} k-means on the pixels: ACC {baseline['acc']:.3f}, NMI {baseline['nmi']:.3f}."
    command = "python -m experiments.nrcc.cifar10 --data=DIR"
    print(runs.write(arguments.out, command, results, note))


if __name__ == "__main__":
    main()
