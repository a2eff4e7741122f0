"""Settings of the linear probe, which a config can have without loading JAX."""

import dataclasses
from typing import Annotated

from cluster_jax.core import checks
from cluster_jax.core.checks import Count, NonNegative, Positive


@dataclasses.dataclass(frozen=True)
class ProbeSettings:
    """How a linear classifier is trained and tested.

    Attributes:
        epochs: passes over the training rows.
        learning_rate: at the start.
        weight_decay: of the weights, not of the bias.
        batch_size: rows per step; all training rows where there are fewer.
        holdout: share of each class that is held out for the test, 0 to 1; a class of one row is
            only trained on. Ignored where test rows are given.
    """

    epochs: Count = 100
    learning_rate: Positive = 0.3
    weight_decay: NonNegative = 1e-6
    batch_size: Count = 256
    holdout: Annotated[float, checks.share] = 0.2
