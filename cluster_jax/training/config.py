"""The section `train` of a config, and all that a training needs."""

import dataclasses
import functools
from typing import Annotated, Literal, NamedTuple

import optax
from jax.sharding import Mesh

from cluster_jax.core import checks
from cluster_jax.core.checks import Count, Duration
from cluster_jax.core.schedules import Schedule
from cluster_jax.data.datasets import Dataset
from cluster_jax.methods.base import Method


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

    batch_size: Annotated[int, functools.partial(checks.whole, least=2)]
    labeled_batch_size: Count | None
    duration: Duration
    log_every: Count
    checkpoint_every: Count
    keep_checkpoints: Count
    prefetch: Count
    on_collapse: Literal["warn", "stop"]


class TrainingRun(NamedTuple):
    """Everything that a training needs, except its state.

    Attributes:
        method: what is trained.
        optimizer: updates its parameters.
        learning_rate: as a function of the step, for the log.
        seed: of the initial parameters, the order of the images and all other randomness.
        total_steps: length of the whole training.
        train: sizes and intervals.
        dataset: the images.
        mesh: all devices of all processes.
        shape: `[H, W, C]` of a network input.
    """

    method: Method
    optimizer: optax.GradientTransformation
    learning_rate: Schedule
    seed: int
    total_steps: int
    train: TrainConfig
    dataset: Dataset
    mesh: Mesh
    shape: tuple[int, ...]
