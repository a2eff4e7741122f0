"""NCL on 10,000 CIFAR-10 images with a narrow network: all three stages in half an hour.

python -m experiments.ncl.cifar10 --data=DIR [--runs=DIR] [--out=PATH] [--only=0/2]

DIR holds CIFAR-10 prepared by TFDS as array_record. Shows that the three stages run on real color
images on 2 cores, and what a weak network needs that the paper's does not; this is no reproduction
of the paper. All rows share their first two stages. Once the first row is finished, two processes
with --only=0/2 and --only=1/2 can split the others, one core each; a final call writes the table.
"""

from ml_collections import ConfigDict

from cluster_jax.core.config import load_config
from experiments import runs
from experiments.ncl import digits

SEEDS = (0,)
# lambda (None: the value that one pair in C^u reaches) and the consistency weight omega. At 0.45,
# one pair in five counts as similar when the last stage begins: see `experiments.ncl.similar`.
ROWS = {
    "one pair in five, omega 1": (None, 1.0),
    "lambda 0.45, omega 1": (0.45, 1.0),
    "one pair in five, omega 0": (None, 0.0),
    "lambda 0.45, omega 5 (the paper's)": (0.45, 5.0),
}
METRICS = {**digits.METRICS, "confidence": ("discovery", "confidence")}
NOTE = (
    "10,000 images of the training split (the paper: 50,000), a network of four convolutions "
    "(ResNet-18), 15, 100 and 80 epochs (the last stage: 200), queues of 1,024 (2,000), AdamW "
    "(SGD). Network, optimizer, and losses are those of ncl_digits; data and augmentation are "
    "those of ncl_cifar10. k-means before and after: on the features at the start and at the end "
    "of the last stage. Confidence: the mean of the novel head's highest probability; needs no "
    "labels."
)


def rows(data: str) -> dict[str, ConfigDict]:
    """The reduced config with each lambda and omega."""
    configs = {}
    for name, (threshold, consistency_weight) in ROWS.items():
        configs[name] = _reduced(data)
        with configs[name].ignore_type():
            configs[name].method.threshold = threshold
        configs[name].method.consistency_weight = consistency_weight
    return configs


def _reduced(data: str) -> ConfigDict:
    config = load_config("ncl_digits")
    paper = load_config("ncl_cifar10")
    config.note = NOTE
    config.data, config.augment, config.novel = paper.data, paper.augment, paper.novel
    config.data.dir, config.data.limit = data, 10_000
    config.method.update(queue=1024, neighbors=102, ramp="10 epochs")
    config.method.hng.count = 204
    config.train.duration = "80 epochs"
    config.stages.rotation.train.duration = "15 epochs"
    config.stages.supervised.train.duration = "100 epochs"
    return config


def main() -> None:
    """Entry point."""
    parser = runs.parser("experiments.ncl.cifar10")
    parser.add_argument("--data", required=True)
    flags = parser.parse_args()
    runs.make(
        flags,
        f"{parser.prog} --data=DIR",
        rows(flags.data),
        NOTE,
        metrics=METRICS,
        seeds=(0,),
        shares_stages=True,
    )


if __name__ == "__main__":
    main()
