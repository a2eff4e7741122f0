"""The section `nrcc` of a config; every value is checked when it is built."""

import dataclasses

from cluster_jax.core import checks
from cluster_jax.samplers.base import POTENTIALS
from cluster_jax.samplers.sghmc import MOMENTA

SAMPLERS = ("sghmc", "hmc", "monte_carlo", "noise", "augment")


# Steps of a sampler are unrolled into one program, and each takes a second or more to compile.
UNROLLED = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class SGHMCConfig:
    """Keyword arguments of `samplers.sghmc.sghmc`; see there."""

    iterations: int
    step_size: float
    friction: float
    noise: float
    momentum: str
    clip: float | None
    normalize_gradient: bool

    def __post_init__(self) -> None:
        checks.whole("nrcc.sghmc.iterations", self.iterations, 1, UNROLLED)
        checks.positive("nrcc.sghmc.step_size", self.step_size)
        checks.between("nrcc.sghmc.friction", self.friction, 0, 1)
        checks.at_least("nrcc.sghmc.noise", self.noise, 0)
        checks.one_of("nrcc.sghmc.momentum", self.momentum, MOMENTA)
        if self.clip is not None:
            checks.positive("nrcc.sghmc.clip", self.clip)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HMCConfig:
    """Keyword arguments of `samplers.hmc.hmc`; see there."""

    iterations: int
    leapfrog_steps: int
    step_size: float
    clip: float | None
    normalize_gradient: bool

    def __post_init__(self) -> None:
        checks.whole("nrcc.hmc.iterations", self.iterations, 1, UNROLLED)
        checks.whole("nrcc.hmc.leapfrog_steps", self.leapfrog_steps, 1, UNROLLED)
        steps = self.iterations * self.leapfrog_steps
        checks.whole("nrcc.hmc.iterations x nrcc.hmc.leapfrog_steps", steps, 1, UNROLLED)
        checks.positive("nrcc.hmc.step_size", self.step_size)
        if self.clip is not None:
            checks.positive("nrcc.hmc.clip", self.clip)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MonteCarloConfig:
    """Keyword arguments of `samplers.monte_carlo.monte_carlo`; see there."""

    iterations: int
    step_size: float

    def __post_init__(self) -> None:
        checks.whole("nrcc.monte_carlo.iterations", self.iterations, 1, UNROLLED)
        checks.positive("nrcc.monte_carlo.step_size", self.step_size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseConfig:
    """One step of `samplers.monte_carlo`, the control that the paper lacks.

    Attributes:
        scale: standard deviation of a pixel; at least 0.
    """

    scale: float

    def __post_init__(self) -> None:
        checks.at_least("nrcc.noise.scale", self.scale, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NRCCConfig:
    """Hyper-parameters of NRCC.

    Attributes:
        weight: lambda; >= 0.
        temperature: tau of the regularizer; > 0.
        anchor_layer: `"projection"` (online, before the predictor) or `"prediction"` (Figure 5's
            caption).
        include_own_view: whether the sampled view of the anchor's own image is among the
            negatives (the official code) or masked (Algorithms 2 and 3).
        branch: which network embeds the sampled view: `"target"`, `"target_predictor"` or
            `"online"` (the online projection; Figure 4 (a) draws the predictor as well). Always
            a constant. A method without target network only has `"online"`.
        sampler: where the view comes from: `"sghmc"`, `"hmc"`, `"monte_carlo"`, `"noise"` or
            `"augment"` (an ordinary third view, Table 2).
        initial_view: the sampler starts at the image's own view a (`"own"`, Figure 5) or at a
            random one of the 2n views of the batch (`"random"`, Algorithm 1).
        reference: x_i of (16): `"other_view"` of the same image, or the image itself,
            un-augmented (`"clean"`).
        resolution: sample at this side length in pixels and resize back (32 in the official
            code); None: at the network's own.
        potential: `"inverse"` (16) or `"log_inverse_square"` (the official code).
        sghmc: arguments of `samplers.sghmc.sghmc`.
        hmc: arguments of `samplers.hmc.hmc`.
        monte_carlo: arguments of `samplers.monte_carlo.monte_carlo`.
        noise: arguments of `samplers.monte_carlo.noise`.

    Raises:
        InputError: a value is out of range.
    """

    weight: float
    temperature: float
    anchor_layer: str
    include_own_view: bool
    branch: str
    sampler: str
    initial_view: str
    reference: str
    resolution: int | None
    potential: str
    sghmc: SGHMCConfig
    hmc: HMCConfig
    monte_carlo: MonteCarloConfig
    noise: NoiseConfig

    def __post_init__(self) -> None:
        checks.at_least("nrcc.weight", self.weight, 0)
        checks.positive("nrcc.temperature", self.temperature)
        checks.one_of("nrcc.anchor_layer", self.anchor_layer, ("projection", "prediction"))
        checks.one_of("nrcc.branch", self.branch, ("target", "target_predictor", "online"))
        checks.one_of("nrcc.sampler", self.sampler, SAMPLERS)
        checks.one_of("nrcc.initial_view", self.initial_view, ("own", "random"))
        checks.one_of("nrcc.reference", self.reference, ("other_view", "clean"))
        if self.resolution is not None:
            checks.whole("nrcc.resolution", self.resolution, 2)
        checks.one_of("nrcc.potential", self.potential, tuple(POTENTIALS))
