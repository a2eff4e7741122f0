"""NRCC's sources of the third view on digits: InfoNCE and BYOL, bare and regularized, 3 seeds.

python -m experiments.nrcc.digits [--runs=runs/nrcc-digits] [--out=experiments/nrcc/digits]

About 50 minutes on 2 cores; runs that are finished are not run again. Two processes with
--rows=InfoNCE and --rows=BYOL share the work, one core each; a third call makes the table.
"""

import argparse

from ml_collections import ConfigDict

from cluster_jax.core import devices
from cluster_jax.core.config import load_config
from experiments import runs

SEEDS = (0, 1, 2)
NOTE = (
    "The settings were tuned on the labels of this set with InfoNCE + NRCC; the network kept by "
    "BYOL is the target. GridShift never sees the labels; k-means is given their number. Two runs "
    "at a time, one core each: images/s is that of one busy core, and differs by what else ran."
)


def rows() -> dict[str, ConfigDict]:
    """The rows of the table, name -> config."""
    made = {}
    for name, byol in (("InfoNCE", False), ("BYOL", True)):
        base = load_config("nrcc_digits")
        if byol:
            base.network.predictor = ConfigDict({"hidden": base.network.projector.hidden})
            base.method = ConfigDict({"name": "byol", "decay": 0.99, "final_decay": 1.0})
            base.nrcc.branch = "target"
        bare = base.copy_and_resolve_references()
        bare.nrcc.weight = 0.0
        made[name] = bare
        for source, title, normalize in (
            ("noise", "noise", False),
            ("sghmc", "SGHMC as published", False),
            ("sghmc", "SGHMC, normalized gradient", True),
        ):
            config = base.copy_and_resolve_references()
            config.nrcc.sampler = source
            config.nrcc.sghmc = published()
            if normalize:
                config.nrcc.sghmc.update(normalized())
            made[f"{name} + NRCC, {title}"] = config
    return made


def published() -> ConfigDict:
    """The paper's constants: one step that is noise to 96 % in amplitude."""
    return load_config("base").nrcc.sghmc


def normalized() -> dict:
    """A gradient of unit root mean square, with a step size and noise of its own.

    The image moves by step_size^2 = 0.04 (root mean square, standardized units) along the
    gradient, and by about 0.028 at random.
    """
    return {"normalize_gradient": True, "step_size": 0.2, "noise": 0.1, "friction": 0.9}


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m experiments.nrcc.digits")
    parser.add_argument("--runs", default="runs/nrcc-digits")
    parser.add_argument("--out", default="experiments/nrcc/digits")
    parser.add_argument("--rows", help="only rows whose name starts so; no table is written")
    arguments = parser.parse_args()
    devices.use_cores(load_config("nrcc_digits").train.batch_size)
    found = {
        name: runs.repeat(config, SEEDS, arguments.runs, _slug(name))
        for name, config in rows().items()
        if name.startswith(arguments.rows or "")
    }
    if arguments.rows:
        return
    print(runs.write(arguments.out, "python -m experiments.nrcc.digits", found, NOTE))


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.lower())


if __name__ == "__main__":
    main()
