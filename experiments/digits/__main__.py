"""Tables on digits: all methods, and the ablations `ncc`, `cueco`, `kernels`, `predictor`.

python -m experiments.digits TABLE [--runs=runs/digits] [--out=PATH] [--only=0/2]

`methods` takes about 25 minutes on 2 cores, the others less; finished runs are reused, also across
tables. Two processes with --only=0/2 and --only=1/2 can split the runs, one core each; a final call
without --only writes the table.
"""

from experiments import runs
from experiments.digits import rows, speed

NOTE = (
    "The settings shared by all rows were tuned on the labels of this data set with InfoNCE + "
    "NRCC, and the initial decay of BYOL's and NCC's moving average (0.9) on the labels with NCC, "
    "seed 0. GridShift never sees the labels; k-means, NCC, and CueCo are given the number of "
    "classes. Two runs at a time, one core each."
)
SPEED = (
    " images/s: mean of {rounds} rounds in which the rows take turns, {steps} steps each, with "
    "nothing else running on the machine."
)


def main() -> None:
    """Entry point."""
    parser = runs.parser("experiments.digits")
    parser.add_argument("table", choices=tuple(rows.TABLES))
    flags = parser.parse_args()
    with_speeds = flags.table == "methods"
    if flags.out == parser.get_default("out"):
        flags.out = f"{flags.out}/{flags.table}"
    runs.make(
        flags,
        f"{parser.prog} {flags.table}",
        rows.TABLES[flags.table](),
        NOTE + SPEED.format(rounds=speed.ROUNDS, steps=speed.STEPS) * with_speeds,
        seeds=rows.MORE_SEEDS.get(flags.table, runs.SEEDS),
        measure_speeds=speed.measure if with_speeds else None,
    )


if __name__ == "__main__":
    main()
