"""The section `train` of a config."""

import dataclasses

from cluster_jax.core import checks, schedules
from cluster_jax.core.checks import InputError


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Section `train`.

    Attributes:
        batch_size: images per step, over all devices.
        labeled_batch_size: number of labeled images among them, see `data.batches.parts`; None:
            batches have no labels.
        duration: length of the training, "1500 steps" or "200 epochs".
        log_every: steps between lines of the log; a line has the means over its steps.
        checkpoint_every: steps between checkpoints; the last step is always saved.
        keep_checkpoints: number of checkpoints to keep.
        prefetch: number of batches to prepare ahead.
        on_collapse: what happens where the embedding collapses, see `training.watch`: "warn" tells
            in the log, the report and the results, "stop" also ends the training.
    """

    batch_size: int
    labeled_batch_size: int | None
    duration: str
    log_every: int
    checkpoint_every: int
    keep_checkpoints: int
    prefetch: int
    on_collapse: str

    def __post_init__(self) -> None:
        checks.whole("train.batch_size", self.batch_size, 2)
        if self.labeled_batch_size is not None:
            checks.whole("train.labeled_batch_size", self.labeled_batch_size, 1)
            if self.labeled_batch_size > self.batch_size:
                raise InputError(
                    f"train.labeled_batch_size must be at most train.batch_size, "
                    f"{self.batch_size}; got {self.labeled_batch_size}"
                )
        schedules.steps("train.duration", self.duration, 1)
        checks.whole("train.log_every", self.log_every, 1)
        checks.whole("train.checkpoint_every", self.checkpoint_every, 1)
        checks.whole("train.keep_checkpoints", self.keep_checkpoints, 1)
        checks.whole("train.prefetch", self.prefetch, 1)
        checks.one_of("train.on_collapse", self.on_collapse, ("warn", "stop"))
