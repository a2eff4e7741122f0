"""The section `method` of NCL's discovery stage; every value is checked when it is built."""

import dataclasses
from collections.abc import Sequence

from cluster_jax.core import checks
from cluster_jax.core.checks import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightsConfig:
    """Weights of the terms of (16), each >= 0, one of them greater; 0 leaves a term out.

    Attributes:
        ce: cross-entropy (1).
        bce: binary cross-entropy of pairs (3).
        consistency: (4), in addition to its ramp.
        ncl: (6).
        scl: (11).
    """

    ce: float
    bce: float
    consistency: float
    ncl: float
    scl: float

    def __post_init__(self) -> None:
        weights = dataclasses.asdict(self)
        for name, weight in weights.items():
            checks.at_least(f"method.weights.{name}", weight, 0)
        if not any(weights.values()):
            raise InputError("one of method.weights must be greater than 0; got none")


@dataclasses.dataclass(frozen=True, kw_only=True)
class HNGConfig:
    """Hyper-parameters of hard negative generation, see `losses.hng.hard_negatives`.

    Attributes:
        count: k_2, >= 0; 0 leaves it out.
        rounds: N, >= 1.
        mixing: each mu, 0 to 1.
        start: when it starts, a duration.
    """

    count: int
    rounds: int
    mixing: tuple[float, ...]
    start: str

    def __post_init__(self) -> None:
        checks.whole("method.hng.count", self.count, 0)
        checks.whole("method.hng.rounds", self.rounds, 1)
        if not isinstance(self.mixing, Sequence) or not self.mixing:
            raise InputError(
                f"method.hng.mixing must be values between 0 and 1; got {self.mixing!r}"
            )
        for mu in self.mixing:
            checks.between("method.hng.mixing", mu, 0, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Hyper-parameters of NCL.

    Attributes:
        classes: C^u, the number of novel classes, >= 2.
        threshold: lambda of (2), -1 to 1 (0.95); None: what 1 / C^u of the pairs reach.
        ramp: T of omega(t), a duration.
        consistency_weight: omega after the ramp, >= 0.
        consistency: `"own"`: each head on its own images, as (4) prints; `"both"`: both heads on
            all images, as in the authors' code.
        temperature: tau of the contrastive losses, > 0 (0.05).
        alpha: weight of the augmented view in NCL, 0 to 1 (0.2).
        queue: entries of each of the two queues, a multiple of the rows of each part (2,048; the
            paper's 2,000 is not divisible by 64).
        neighbors: k_1, 1 to the queue; the paper's is queue / C^u / 2.
        contrast_from: when NCL and SCL begin, a duration ("1 epoch": from the second one).
        hng: hard negative generation.
        head: what the novel head learns from: `"pairs"`, the paper's pairwise loss (3), or
            `"clusters"`, cross-entropy with clusters of the features, see `ncl.make`.
        update_every: duration between two clusterings for the head `"clusters"`.
        weights: of CE, BCE (or the cross-entropy with clusters), consistency, NCL and SCL.

    Raises:
        InputError: a value is out of range.
    """

    classes: int
    threshold: float | None
    ramp: str
    consistency_weight: float
    consistency: str
    temperature: float
    alpha: float
    queue: int
    neighbors: int
    contrast_from: str
    hng: HNGConfig
    head: str
    update_every: str
    weights: WeightsConfig

    def __post_init__(self) -> None:
        checks.whole("method.classes", self.classes, 2)
        checks.at_least("method.consistency_weight", self.consistency_weight, 0)
        checks.one_of("method.consistency", self.consistency, ("own", "both"))
        checks.positive("method.temperature", self.temperature)
        if self.threshold is not None:
            checks.between("method.threshold", self.threshold, -1, 1)
        checks.one_of("method.head", self.head, ("pairs", "clusters"))
        checks.between("method.alpha", self.alpha, 0, 1)
        checks.whole("method.queue", self.queue, 1)
        checks.whole("method.neighbors", self.neighbors, 1)
        if self.neighbors > self.queue:
            raise InputError(
                f"method.neighbors (k_1) must be 1 to the queue of {self.queue}; "
                f"got {self.neighbors}"
            )
