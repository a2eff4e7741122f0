"""NRCC: a regularizer of sampled negative pairs around any method of two views (NRCC (5), (6))."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from cluster_jax.core import checks, collectives
from cluster_jax.core.checks import InputError
from cluster_jax.core.collectives import Axis
from cluster_jax.losses.nrcc import nrcc_views
from cluster_jax.methods.base import (
    Aux,
    Method,
    ModelState,
    PyTree,
    SamplerInputs,
    TwoView,
    image_keys,
    two_views,
)
from cluster_jax.samplers import base as samplers
from cluster_jax.samplers.base import POTENTIALS
from cluster_jax.samplers.hmc import hmc
from cluster_jax.samplers.monte_carlo import monte_carlo
from cluster_jax.samplers.sghmc import MOMENTA, sghmc

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


# Those that follow a gradient.
_FOLLOWERS: dict[str, Callable[..., samplers.Sampler]] = {"sghmc": sghmc, "hmc": hmc}


def with_nrcc(base: TwoView, config: NRCCConfig) -> Method:
    """The method that trains on `base loss + weight * R`; see `losses.nrcc` for R.

    The forward passes are those of `base`: a sampler of one iteration from the image's own view
    costs one gradient with respect to the images and one forward pass of the sampled view.

    Args:
        base: the method to regularize.
        config: of NRCC.

    Raises:
        InputError: the method has no such branch or layer.
    """
    choices = {"branch": base.branches, "anchor_layer": base.anchor_layers}
    for key, names in choices.items():
        value = getattr(config, key)
        if value not in names:
            raise InputError(
                f"nrcc.{key} must be one of {', '.join(map(repr, names))} for this method; "
                f"got {value!r}"
            )
    loss, watched = functools.partial(_loss, base, config), base.watched
    if watched.chance is not None and watched.chance[0] == "loss":
        # The regularized loss has this name.
        watched = watched._replace(chance=("base_loss", watched.chance[1]))
    return Method(base.init, loss, base.after, base.embed, base.refresh, watched)


def _loss(
    base: TwoView,
    config: NRCCConfig,
    params: PyTree,
    model_state: ModelState,
    batch: Mapping[str, Any],
    step: Array,
    key: Array,
    axis: Axis,
) -> tuple[Array, Aux]:
    """The regularized loss, see `methods.base.Loss`."""
    view_key, encoder_key, loss_key, sampler_key, third_key = jax.random.split(key, 5)
    views = two_views(base.augment, view_key, batch)
    encoded, model_state = base.encode(
        params, model_state, views, batch["index"], step, encoder_key, axis
    )
    keys = image_keys(sampler_key, batch["index"])
    metrics: dict[str, Array] = {}
    if config.sampler == "augment":
        third_keys = image_keys(third_key, batch["index"])
        view = jax.vmap(base.augment.view)(third_keys, batch["image"])
    else:
        clean = None
        if config.reference == "clean":
            clean = jax.vmap(base.augment.clean)(batch["image"])
        view, metrics = _sample(config, keys, encoded.sampler_inputs, clean, axis)
    # Two stop-gradients. The inner one: the sampled pixels depend on the parameters through the
    # sampler's gradients. The outer one: their embedding c is a constant for the regularizer (the
    # authors' code), which moves the anchors away from c, and never c away from the anchors.
    branch = encoded.sampler_inputs.branches[config.branch]
    c = lax.stop_gradient(branch(lax.stop_gradient(view)))
    anchors = encoded.projections
    if config.anchor_layer == "prediction" and encoded.predictions is not None:
        anchors = encoded.predictions
    # Constants in (6); without a target network live projections, which attract in both roles (5).
    partners = encoded.targets or encoded.projections
    regularizer = nrcc_views(
        *anchors,
        *partners,
        c,
        temperature=config.temperature,
        include_own_view=config.include_own_view,
        axis=axis,
    )
    value, model_state, more = base.objective(params, encoded, model_state, step, loss_key, axis)
    total = value + config.weight * regularizer
    metrics = {"loss": total, "base_loss": value, "nrcc": regularizer, **metrics, **more}
    return total, Aux(model_state, metrics)


def _sample(
    config: NRCCConfig,
    keys: Array,
    sampler_inputs: SamplerInputs,
    clean: Array | None,
    axis: Axis,
) -> tuple[Array, dict[str, Array]]:
    """The third view `[b, H, W, C]` and the sampler's metrics, averaged over the device.

    `clean` are the un-augmented images that the potential refers to, None for view b.
    """
    view_keys, draw_keys = _split(keys)
    initial = sampler_inputs.images
    if config.initial_view == "random":
        initial = _random_view(view_keys, sampler_inputs, axis)
    if config.resolution is not None:
        initial = _resize(initial, config.resolution)
    if config.sampler == "noise":
        view, info = monte_carlo(draw_keys, initial, step_size=config.noise.scale)
    elif config.sampler == "monte_carlo":
        values = dataclasses.asdict(config.monte_carlo)
        view, info = monte_carlo(draw_keys, initial, **values)
    else:
        view, info = _follow_gradient(config, draw_keys, initial, sampler_inputs, clean)
    if config.resolution is not None:
        view = _resize(view, sampler_inputs.images.shape[1])
    metrics = {"gradient_share": info.gradient_share.mean()}
    if config.sampler == "hmc":
        metrics["acceptance_rate"] = info.acceptance_rate.mean()
    return view, metrics


def _follow_gradient(
    config: NRCCConfig,
    keys: Array,
    initial: Array,
    sampler_inputs: SamplerInputs,
    clean: Array | None,
) -> tuple[Array, samplers.SamplerInfo]:
    """SGHMC or HMC from the images `initial`."""
    reference = sampler_inputs.reference if clean is None else sampler_inputs.project(clean)
    potential_fn = samplers.potential_fn(config.potential)
    potential_and_grad = samplers.similarity_potential(
        sampler_inputs.project, reference, potential_fn
    )
    values = dataclasses.asdict(getattr(config, config.sampler))
    iterations, start = values.pop("iterations"), None
    # From view a as it is, the method's own forward pass gives the first gradient. But HMC compares
    # potentials, all of them by one function: shuffle-BN has an order per pass.
    if config.sampler == "sghmc" and initial is sampler_inputs.images:
        z = lax.stop_gradient(sampler_inputs.projection)
        potential, gradient = samplers.similarity_gradient(z, reference, potential_fn)
        start = potential, sampler_inputs.vjp_fn(gradient)
    sampler = _FOLLOWERS[config.sampler](potential_and_grad, **values)
    return samplers.sample(sampler, keys, initial, start, iterations=iterations)


def _random_view(keys: Array, sampler_inputs: SamplerInputs, axis: Axis) -> Array:
    """A random one of the 2n views of the global batch for every image."""
    views = jnp.concatenate(
        [
            collectives.gather(sampler_inputs.images, axis),
            collectives.gather(sampler_inputs.other_images, axis),
        ]
    )
    return views[jax.vmap(lambda k: jax.random.randint(k, (), 0, len(views)))(keys)]


def _resize(images: Array, side: int) -> Array:
    return jax.image.resize(
        images, (images.shape[0], side, side, images.shape[3]), "linear", antialias=True
    )


def _split(keys: Array) -> tuple[Array, Array]:
    pairs = jax.vmap(jax.random.split)(keys)
    return pairs[:, 0], pairs[:, 1]
