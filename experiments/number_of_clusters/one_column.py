"""One group or two in one column: which gaps of density are real.

python -m experiments.number_of_clusters.one_column --out=experiments/number_of_clusters/one_column

Two groups differ along one direction, so that `ModeTree` sees two clusters of features as numbers.
The gap from which two groups are two (`clustering.levels`) was chosen on other draws of these
kinds, of 3 to 8 standard errors; one_column.md is of `--seed=12`. HDBSCAN and a Gaussian mixture
by BIC, which knows the shape of the pairs, are beside it. About five minutes on one core.
"""

import argparse
import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm
from sklearn.cluster import HDBSCAN
from sklearn.mixture import GaussianMixture

from cluster_jax.clustering.modes import ModeTree
from cluster_jax.core import io
from cluster_jax.pipeline import provenance
from experiments import machine

ONE: dict[str, Callable[[np.random.Generator, int], NDArray]] = {
    "normal": lambda rng, n: rng.normal(size=n),
    "uniform": lambda rng, n: rng.uniform(size=n),
    "beta(0.9, 0.9)": lambda rng, n: rng.beta(0.9, 0.9, n),
    "gamma(2)": lambda rng, n: rng.gamma(2, size=n),
    "lognormal": lambda rng, n: rng.lognormal(size=n),
    "Student's t(4)": lambda rng, n: rng.standard_t(4, n),
    "exponential": lambda rng, n: rng.exponential(size=n),
    "triangular": lambda rng, n: rng.triangular(-1, 0, 3, n),
}
ERRORS, SHARES = (0.002, 0.01, 0.02, 0.03, 0.05), (0.5, 0.2)
# Rows, from and to.
_FEWEST, _MOST = 100, 10_000
_MOST_COMPONENTS = 5


def two(rng: np.random.Generator, n: int, error: float, share: float) -> NDArray:
    """Two normal groups at the distance at which equal ones have this Bayes error."""
    return rng.normal(size=n) + 2 * norm.isf(error) * (rng.random(n) < share)


def mode_tree(x: NDArray) -> int:
    """Clusters that `ModeTree` finds in `x` `[n, 1]`."""
    return ModeTree(metric="euclidean").fit(x).n_clusters_


def hdbscan(x: NDArray) -> int:
    """Clusters that HDBSCAN finds; none counts as one."""
    return max(1, int(HDBSCAN(min_cluster_size=15, copy=True).fit(x).labels_.max()) + 1)


def mixture(x: NDArray) -> int:
    """Components of the normal mixture with the lowest BIC."""
    bic = [GaussianMixture(k, random_state=0).fit(x).bic(x) for k in range(1, _MOST_COMPONENTS + 1)]
    return int(np.argmin(bic)) + 1


METHODS = {"ModeTree": mode_tree, "HDBSCAN 15": hdbscan, "mixture, BIC": mixture}


def table(result: dict) -> str:
    """A row for each kind of sets."""
    about = result["provenance"]
    versions = ", ".join(f"{k} {v}" for k, v in about["versions"].items())
    return "\n".join(
        [
            f"Share of {result['sets']} sets of {_FEWEST:,} to {_MOST:,} numbers in which one or "
            "two groups are found, as there are.",
            "",
            f"| | {' | '.join(METHODS)} |",
            "|---|" + "---:|" * len(METHODS),
            *(
                f"| {name} | " + " | ".join(f"{row[m]:.2f}" for m in METHODS) + " |"
                for name, row in result["found"].items()
            ),
            "",
            f"Seed {result['seed']}. Command: `{about['command']}`. Hardware: {about['machine']}, "
            f"one of the cores. Versions: {versions}. Commit: {about['commit']}.",
        ]
    )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m experiments.number_of_clusters.one_column")
    parser.add_argument("--sets", type=int, default=50, help="of each kind")
    parser.add_argument("--seed", type=int, default=12)
    parser.add_argument("--out")
    flags = parser.parse_args()
    warnings.simplefilter("ignore")
    kinds = {f"one, {name}": (1, draw) for name, draw in ONE.items()}
    for error in ERRORS:
        for share in SHARES:
            name = f"two, {share:.0%} in the second, Bayes error {error:.1%}"
            kinds[name] = (2, lambda rng, n, e=error, s=share: two(rng, n, e, s))
    found = {}
    for i, (name, (k, draw)) in enumerate(kinds.items()):
        rng = np.random.default_rng([flags.seed, i])
        sizes = np.exp(rng.uniform(np.log(_FEWEST), np.log(_MOST), flags.sets)).astype(int)
        sets = [draw(rng, n)[:, None] for n in sizes]
        found[name] = {m: float(np.mean([f(x) == k for x in sets])) for m, f in METHODS.items()}
        print(name, found[name], flush=True)
    command = "python -m experiments.number_of_clusters.one_column"
    about = {
        "command": command,
        "machine": machine.describe(),
        "versions": provenance.versions(),
        "commit": provenance.commit(),
    }
    result = {"sets": flags.sets, "seed": flags.seed, "found": found, "provenance": about}
    print(table(result))
    if flags.out:
        io.write_json(f"{flags.out}.json", result)
        io.write(f"{flags.out}.md", table(result) + "\n")


if __name__ == "__main__":
    main()
