"""NRCC's samplers of the third view on digits: InfoNCE and BYOL, without and with NRCC, 3 seeds.

python -m experiments.nrcc.digits [--runs=DIR] [--out=experiments/nrcc/digits] [--only=0/2]

About 50 minutes on 2 cores; finished runs are reused. Two processes with --only=0/2 and --only=1/2
can split the work, one core each; a final call without --only writes the table.
"""

from ml_collections import ConfigDict

from cluster_jax.core.config import load_config
from experiments import runs

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
    parser = runs.parser("experiments.nrcc.digits")
    runs.make(parser.parse_args(), parser.prog, rows(), NOTE)


if __name__ == "__main__":
    main()
