"""The novel head beside k-means on the features that its own training makes: pairs or clusters.

python -m experiments.ncl.heads --features=DIR [--runs=runs/ncl-heads]

Five known and five novel classes each of the digits (`ncl_digits`), and of the features of
Imagenette and CIFAR-10 (`ncl_features`; DIR/imagenette.npz and DIR/cifar10.npz are those of
`python -m experiments.features`). About half an hour on one core; finished runs are reused, and
every call writes the table of what is finished.
"""

import argparse
import itertools
import pathlib

from ml_collections import ConfigDict

from cluster_jax.core import devices
from cluster_jax.core.config import load_config
from experiments import runs

SEEDS = (0, 1, 2)
HEADS = ("clusters", "pairs")
SETS = ("digits", "imagenette", "cifar10")
PERIOD = "2 epochs"
METRICS = {
    "novel head ACC": ("discovery", "novel", "acc"),
    "k-means ACC": ("kmeans", "acc"),
    "k-means ACC before": ("discovery", "kmeans_before_acc"),
    "labeled ACC": ("discovery", "labeled_acc"),
    "novel classes found": ("gridshift", "n_large"),
}
NOTE = (
    "ACC on the unlabeled training images of five novel classes, whose number is given to the head "
    "and to k-means; k-means runs on the features of the same training, before: at the start of "
    "the last stage. Numbers of images are those of the digits. Nothing was selected with labels "
    "of novel classes, except the network and augmentation of the digits."
)


def config(name: str, head: str, folder: str) -> ConfigDict:
    """The config of a set and a head."""
    made = load_config("ncl_digits" if name == "digits" else "ncl_features")
    if name != "digits":
        made.data.dir = str(pathlib.Path(folder) / f"{name}.npz")
        made.novel.classes = made.method.classes = 5
        made.eval.linear_probe = None
    made.method.update(head=head, update_every=PERIOD)
    return made


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m experiments.ncl.heads")
    parser.add_argument("--features", required=True, help="folder of the .npz files")
    parser.add_argument("--runs", default="runs/ncl-heads")
    parser.add_argument("--out", default="experiments/ncl/heads")
    arguments = parser.parse_args()
    devices.use_cores(load_config("ncl_digits").train.labeled_batch_size)
    results: dict[str, list] = {}
    for head, name, seed in itertools.product(HEADS, SETS, SEEDS):
        made = config(name, head, arguments.features)
        row = f"{name}, {head}"
        results.setdefault(row, [])
        results[row] += runs.repeat(made, [seed], arguments.runs, f"{name}-{head}")
        command = "python -m experiments.ncl.heads --features=DIR"
        print(runs.write(arguments.out, command, results, NOTE, None, METRICS), flush=True)


if __name__ == "__main__":
    main()
