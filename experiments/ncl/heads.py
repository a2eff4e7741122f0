"""The novel head beside k-means on the features that its own training makes: pairs or clusters.

python -m experiments.ncl.heads --features=DIR [--runs=runs/ncl-heads] [--only=0/2]

Five known and five novel classes each of the digits (`ncl_digits`), and of the features of four
sets (`ncl_features`; DIR/imagenette.npz and so on are those of `python -m experiments.features`).
About 40 minutes on one core; finished runs are reused, and every call writes the table of what is
finished.
"""

import argparse
import pathlib

from ml_collections import ConfigDict

from cluster_jax.core import devices
from cluster_jax.core.config import load_config
from experiments import runs

SEEDS = (0, 1, 2)
HEADS = ("clusters", "pairs")
SETS = ("digits", "imagenette", "cifar10", "tiny_imagenet10", "fashion_mnist")
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
    "and to k-means; what the head on clusters says is averaged over neighbors; k-means runs on "
    "the features of the same training, before: at the start of the last stage. Images are those "
    "of the last set. Nothing was selected with labels of novel classes, except the digits' "
    "network and augmentation, and that neighbors have a say: ten nearest by the network's "
    "features in pseudo-labels, tried with this one number on the first three sets and confirmed "
    "on the other two; ten in the data too, and both in the end, tried on seeds 10 to 12 of "
    "CIFAR-10 and on outputs of earlier runs of all sets."
)


def config(name: str, head: str, folder: str) -> ConfigDict:
    """The config of a set and a head."""
    made = load_config("ncl_digits" if name == "digits" else "ncl_features")
    if name != "digits":
        made.data.dir = str(pathlib.Path(folder) / f"{name}.npz")
        made.novel.classes = made.method.classes = 5
        made.eval.linear_probe = None
    made.eval.method = "gridshift"
    made.method.update(head=head, update_every=PERIOD)
    return made


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m experiments.ncl.heads")
    parser.add_argument("--features", required=True, help="folder of the .npz files")
    parser.add_argument("--runs", default="runs/ncl-heads")
    parser.add_argument("--out", default="experiments/ncl/heads")
    parser.add_argument("--only", default="0/1", help="I/N: run only every N-th, starting with I")
    arguments = parser.parse_args()
    first, step = map(int, arguments.only.split("/"))
    devices.use_cores(load_config("ncl_digits").train.labeled_batch_size)
    results: dict[str, list] = {}
    jobs = [(name, head, seed) for head in HEADS for name in SETS for seed in SEEDS]
    for name, head, seed in jobs[first::step]:
        made = config(name, head, arguments.features)
        row = f"{name}, {head}"
        results.setdefault(row, [])
        results[row] += runs.repeat(made, [seed], arguments.runs, f"{name}-{head}")
        command = "python -m experiments.ncl.heads --features=DIR"
        print(runs.write(arguments.out, command, results, NOTE, None, METRICS), flush=True)


if __name__ == "__main__":
    main()
