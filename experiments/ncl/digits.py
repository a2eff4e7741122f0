"""NCL on digits: 5 to 9 discovered beside 0 to 4, and what each of its terms adds, 3 seeds.

python -m experiments.ncl.digits [--runs=runs/ncl-digits] [--out=experiments/ncl/digits]

About 15 minutes on one core; runs that are finished are not run again. All rows of a seed share its
first two stages. Two processes with --rows=0/2 and --rows=1/2 share the rows once `NCL` is there,
one core each; another call makes the table.
"""

import argparse
import pathlib

from ml_collections import ConfigDict

from cluster_jax.core import devices
from cluster_jax.core.config import load_config
from experiments import runs
from experiments.ncl import stages

SEEDS = (0, 1, 2)
FULL = "NCL"
TERMS = {"BCE": "bce", "CE": "ce", "MSE": "consistency", "NCL": "ncl", "SCL": "scl"}
NOTE = (
    "ACC of the five novel digits by the novel head, on the unlabeled training images and on "
    "those kept for a test; the number of novel classes is given, GridShift finds it. k-means on "
    "the features with which the last stage starts is the baseline. Network and augmentation were "
    "tuned on the labels of all digits with InfoNCE + NRCC; lambda was chosen without labels."
)
FIGURES = {
    "novel ACC": ("discovery", "novel", "acc"),
    "novel NMI": ("discovery", "novel", "nmi"),
    "test novel ACC": ("discovery", "test", "novel_acc"),
    "labeled ACC": ("discovery", "labeled_acc"),
    "test all ACC": ("discovery", "test", "all_acc"),
    "k-means before": ("discovery", "kmeans_before_acc"),
    "k-means after": ("kmeans", "acc"),
    "novel classes found": ("gridshift", "n_large"),
}


def rows() -> dict[str, ConfigDict]:
    """The rows of the table: all terms, each left out, and the paper's baseline without NCL."""
    made = {FULL: load_config("ncl_digits")}
    for title, term in TERMS.items():
        made[f"without {title}"] = _with(weights={term: 0.0})
    made["without HNG"] = _with(hng={"count": 0})
    made["baseline: CE, BCE, MSE"] = _with(weights={"ncl": 0.0, "scl": 0.0})
    return made


def _with(**sections) -> ConfigDict:
    config = load_config("ncl_digits")
    for section, values in sections.items():
        config.method[section].update(values)
    return config


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m experiments.ncl.digits")
    parser.add_argument("--runs", default="runs/ncl-digits")
    parser.add_argument("--out", default="experiments/ncl/digits")
    parser.add_argument("--rows", help="I/N: every N-th row from I on; no table is written")
    arguments = parser.parse_args()
    devices.use_cores(load_config("ncl_digits").train.batch_size)
    found = stages.results(rows(), pathlib.Path(arguments.runs), SEEDS, arguments.rows)
    if arguments.rows:
        return
    command = "python -m experiments.ncl.digits"
    print(runs.write(arguments.out, command, found, NOTE, None, FIGURES))


if __name__ == "__main__":
    main()
