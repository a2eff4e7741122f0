"""InfoNCE + NRCC on 5,000 CIFAR-10 images with a narrow network, against k-means on the pixels.

python -m experiments.nrcc.cifar10 --data=DIR [--runs=DIR] [--out=PATH] [--only=0/3]

DIR holds CIFAR-10 prepared by TFDS as array_record. Checks that everything works on real color
images on 2 cores, under 10 minutes per seed; this is no reproduction of the paper.
"""

import numpy as np
from ml_collections import ConfigDict

from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.core.config import load_config, parse_section
from cluster_jax.data import datasets
from cluster_jax.metrics import partition
from experiments import runs

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
    parser = runs.parser("experiments.nrcc.cifar10")
    parser.add_argument("--data", required=True)
    flags = parser.parse_args()
    config = reduced(flags.data)

    def note(results: object) -> str:
        pixels = cluster_pixels(config)
        return f"{NOTE} k-means on the pixels: ACC {pixels['acc']:.3f}, NMI {pixels['nmi']:.3f}."

    runs.make(flags, f"{parser.prog} --data=DIR", {"InfoNCE + NRCC": config}, note)


if __name__ == "__main__":
    main()
