"""NRCC's samplers of the third view on digits: InfoNCE and BYOL, without and with NRCC, 3 seeds.

python -m experiments.nrcc.digits [--runs=runs/nrcc-digits] [--out=experiments/nrcc/digits]

About 50 minutes on 2 cores; finished runs are reused. Two processes with --rows=InfoNCE and
--rows=BYOL can split the work, one core each; a final call without --rows writes the table.
"""

import argparse

from ml_collections import ConfigDict

from cluster_jax.core import devices
from cluster_jax.core.config import load_config
from experiments import runs

SEEDS = (0, 1, 2)
NOTE = (
    "The settings were tuned on the labels of this data set with InfoNCE + NRCC; BYOL keeps its "
    "target network. GridShift never sees the labels; k-means is given the number of classes. Two "
    "runs at a time, one core each: images/s is that of a busy core and depends on what else ran."
)


def rows() -> dict[str, ConfigDict]:
    """The rows of the table: name -> config."""
    configs = {}
    for name, byol in (("InfoNCE", False), ("BYOL", True)):
        base = load_config("nrcc_digits")
        if byol:
            base.network.predictor = ConfigDict(
                {"hidden": base.network.projector.hidden, "init_std": None}
            )
            base.method = ConfigDict({"name": "byol", "decay": 0.99, "final_decay": 1.0})
            base.nrcc.branch = "target"
        without_nrcc = base.copy_and_resolve_references()
        without_nrcc.nrcc.weight = 0.0
        configs[name] = without_nrcc
        for sampler, title, normalize in (
            ("noise", "noise", False),
            ("sghmc", "SGHMC as published", False),
            ("sghmc", "SGHMC, normalized gradient", True),
        ):
            config = base.copy_and_resolve_references()
            config.nrcc.sampler = sampler
            config.nrcc.sghmc = published()
            if normalize:
                config.nrcc.sghmc.update(normalized())
            configs[f"{name} + NRCC, {title}"] = config
    return configs


def published() -> ConfigDict:
    """The paper's constants: a single step, at least 96 % of whose amplitude is noise."""
    return load_config("base").nrcc.sghmc


def normalized() -> dict:
    """Settings for a gradient normalized to a root mean square of 1.

    The image moves by step_size^2 = 0.04 (root mean square, in standardized units) along the
    gradient, and by about 0.028 at random.
    """
    return {"normalize_gradient": True, "step_size": 0.2, "noise": 0.1, "friction": 0.9}


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m experiments.nrcc.digits")
    parser.add_argument("--runs", default="runs/nrcc-digits")
    parser.add_argument("--out", default="experiments/nrcc/digits")
    parser.add_argument("--rows", help="run only rows whose name starts with this; writes no table")
    arguments = parser.parse_args()
    devices.use_cores(load_config("nrcc_digits").train.batch_size)
    results = {
        name: runs.repeat(config, SEEDS, arguments.runs, _slug(name))
        for name, config in rows().items()
        if name.startswith(arguments.rows or "")
    }
    if arguments.rows:
        return
    print(runs.write(arguments.out, "python -m experiments.nrcc.digits", results, NOTE))


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.lower())


if __name__ == "__main__":
    main()
