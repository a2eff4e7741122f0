"""NCL on digits: discover 5 to 9 given 0 to 4, and ablate each loss term, 3 seeds.

python -m experiments.ncl.digits [--runs=DIR] [--out=experiments/ncl/digits] [--only=0/2]

About 15 minutes on one core; finished runs are reused. All rows of a seed share its first two
stages. Once the row `NCL` is finished, two processes with --only=0/2 and --only=1/2 can split the
other rows, one core each; a final call without --only writes the table.
"""

from ml_collections import ConfigDict

from cluster_jax.core.config import load_config
from experiments import runs

FULL = "NCL"
TERMS = {"BCE": "bce", "CE": "ce", "MSE": "consistency", "NCL": "ncl", "SCL": "scl"}
NOTE = (
    "ACC of the novel head on the five novel digits, for the unlabeled training images and for the "
    "test images; the number of novel classes is given, GridShift finds it by itself. The baseline "
    "is k-means on the features at the start of the last stage. Network and augmentation were "
    "tuned on the labels of all digits with InfoNCE + NRCC; lambda was chosen without labels."
)
METRICS = {
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
    """The rows of the table: all terms, each term left out, the paper's baseline without NCL."""
    configs = {FULL: load_config("ncl_digits")}
    for title, term in TERMS.items():
        configs[f"without {title}"] = _with(weights={term: 0.0})
    configs["without HNG"] = _with(hng={"count": 0})
    configs["baseline: CE, BCE, MSE"] = _with(weights={"ncl": 0.0, "scl": 0.0})
    return configs


def _with(**sections) -> ConfigDict:
    config = load_config("ncl_digits")
    for section, values in sections.items():
        config.method[section].update(values)
    return config


def main() -> None:
    """Entry point."""
    parser = runs.parser("experiments.ncl.digits")
    flags = parser.parse_args()
    runs.make(flags, parser.prog, rows(), NOTE, metrics=METRICS, shares_stages=True)


if __name__ == "__main__":
    main()
