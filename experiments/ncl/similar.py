"""Fraction of pairs of unlabeled images that a threshold lambda treats as the same class.

python -m experiments.ncl.similar WORKDIR

Reads the features at the start of the last stage of a finished run. No label is used: with C^u
classes of equal size, a fraction of 1 / C^u is right, and lambda can be chosen accordingly.
"""

import pathlib

import numpy as np

from cluster_jax.core import arrays, io
from cluster_jax.runs import run
from experiments import tables

THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
ROWS = 2000  # a random sample of at most so many rows


def main() -> None:
    """Entry point."""
    parser = tables.parser("ncl.similar", __doc__)
    parser.add_argument("workdir", type=pathlib.Path)
    workdir = parser.parse_args().workdir
    rows = run.read(workdir).rows
    rows = np.random.default_rng(0).permutation(rows)[:ROWS]
    z = arrays.normalize_rows(io.read_arrays(workdir / "embedding_before.npz")["backbone"][rows])
    cosines = (z @ z.T)[np.triu_indices(len(z), 1)]
    for threshold in THRESHOLDS:
        print(f"lambda {threshold:4.2f}: {np.mean(cosines >= threshold):7.2%} of the pairs")


if __name__ == "__main__":
    main()
