"""NRCC: a regularizer with sampled negatives, for any method of two views (NRCC (5), (6))."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
from jax import Array, lax

from cluster_jax.core import checks, collectives, outside
from cluster_jax.core.checks import Fraction, InputError, NonNegative, Positive
from cluster_jax.core.collectives import Axis
from cluster_jax.data.batches import Batch
from cluster_jax.data.views import Augment
from cluster_jax.losses.nrcc import nrcc_views
from cluster_jax.methods import base as methods
from cluster_jax.methods.base import Encoded, Method, SamplerInputs, TwoView
from cluster_jax.samplers import base as samplers
from cluster_jax.samplers.hmc import hmc
from cluster_jax.samplers.monte_carlo import monte_carlo
from cluster_jax.samplers.sghmc import sghmc

# Largest number of a sampler's steps. They are unrolled; each takes a second or more to compile.
UNROLLED = 200
SAMPLERS = ("sghmc", "hmc", "monte_carlo", "noise", "augment")
NEEDS = ("sample",)  # what a sampler's module of one's own defines
Iterations = Annotated[int, functools.partial(checks.whole, least=1, most=UNROLLED)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SGHMCConfig:
    """Keyword arguments of `samplers.sghmc.sghmc`; see there."""

    iterations: Iterations
    step_size: Positive
    friction: Fraction
    noise: NonNegative
    momentum: Literal["new", "old"]
    clip: Positive | None
    normalize_gradient: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class HMCConfig:
    """Keyword arguments of `samplers.hmc.hmc`; see there."""

    iterations: Iterations
    leapfrog_steps: Iterations
    step_size: Positive
    clip: Positive | None
    normalize_gradient: bool

    def __post_init__(self) -> None:
        steps = self.iterations * self.leapfrog_steps
        checks.whole("nrcc.hmc.iterations x nrcc.hmc.leapfrog_steps", steps, 1, UNROLLED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MonteCarloConfig:
    """Keyword arguments of `samplers.monte_carlo.monte_carlo`; see there."""

    iterations: Iterations
    step_size: Positive


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseConfig:
    """Plain noise, one step of `samplers.monte_carlo`: a control experiment, not in the paper.

    Attributes:
        scale: standard deviation of the noise of a pixel; at least 0.
    """

    scale: NonNegative


@dataclasses.dataclass(frozen=True, kw_only=True)
class NRCCConfig:
    """Hyper-parameters of NRCC.

    Attributes:
        weight: lambda; >= 0.
        temperature: tau of the regularizer; > 0.
        anchor_layer: embeddings that are the anchors: `"projection"` (online, before the predictor)
            or `"prediction"` (caption of Figure 5).
        include_own_view: whether the sampled view of the anchor's own image is among the
            negatives (the official code) or masked (Algorithms 2 and 3), as
            `test_nrcc_eq_10_and_11_gradient_with_info_nce` has both.
        branch: network that embeds the sampled view: `"target"`, `"target_predictor"` or
            `"online"` (the online projection; Figure 4 (a) draws the predictor as well). The
            embedding is a constant. A method without target network only has `"online"`.
        sampler: how the view is drawn: `"sghmc"`, `"hmc"`, `"monte_carlo"`, `"noise"`, `"augment"`
            (a third augmented view, Table 2), or a module of one's own with a function `sample`,
            see `cluster_jax.samplers`.
        initial_view: the sampler starts at the image's own view a (`"own"`, Figure 5) or at a
            random one of the 2n views of the batch (`"random"`, Algorithm 1, which prints 2(n-2);
            `test_other_choices_of_nrcc`).
        reference: x_i of (16): the `"other_view"` of the same image, or the image without
            augmentation (`"clean"`). The official code takes backbone features of the other views,
            and all pairs of the batch.
        resolution: shorter side in pixels at which the view is sampled, before it is resized back
            (32 in the official code); None: that of the network's input.
        potential: `"inverse"` (16) or `"log_inverse_square"` (the official code).
        sghmc: arguments of `samplers.sghmc`.
        hmc: arguments of `samplers.hmc`.
        monte_carlo: arguments of `samplers.monte_carlo`.
        noise: arguments of the sampler `"noise"`.
    """

    weight: NonNegative
    temperature: Positive
    anchor_layer: Literal["projection", "prediction"]
    include_own_view: bool
    branch: Literal["target", "target_predictor", "online"]
    sampler: Annotated[str, outside.named(SAMPLERS, *NEEDS)]
    initial_view: Literal["own", "random"]
    reference: Literal["other_view", "clean"]
    resolution: Annotated[int, functools.partial(checks.whole, least=2)] | None
    potential: Literal["inverse", "log_inverse_square"]
    sghmc: SGHMCConfig
    hmc: HMCConfig
    monte_carlo: MonteCarloConfig
    noise: NoiseConfig


def with_nrcc(base: TwoView, config: NRCCConfig) -> Method:
    """Builds the method that trains on `base loss + weight * R`; see `losses.nrcc` for R.

    The forward passes of `base` are used for the regularizer too. With one iteration of SGHMC, the
    other view as the reference and views of the network's resolution, NRCC adds one gradient with
    respect to the images and one forward pass of the sampled view.

    Args:
        base: the method to regularize.
        config: hyper-parameters of NRCC.

    Raises:
        InputError: the method does not have the config's branch or anchor layer, or the sampler
            cannot be imported.
    """
    if config.sampler not in SAMPLERS:
        outside.module("nrcc.sampler", config.sampler, SAMPLERS, NEEDS)
    checks.one_of("nrcc.branch for this method", config.branch, base.branches)
    checks.one_of("nrcc.anchor_layer for this method", config.anchor_layer, base.anchor_layers)
    return methods.as_method(base, functools.partial(_regularizer, base.augment, config))


def _regularizer(
    augment: Augment, config: NRCCConfig, encoded: Encoded, batch: Batch, keys: Array, axis: Axis
) -> tuple[Array, dict[str, Array]]:
    """Computes `weight * R` and its metrics, see `methods.base.Regularizer`."""
    sampler_key, view_key = keys
    inputs = encoded.sampler_inputs
    metrics = dict[str, Array]()
    if config.sampler == "augment":
        view = methods.augmented(augment.view, view_key, batch)
    else:
        reference = inputs.reference
        if config.reference == "clean":
            reference = inputs.project(jax.vmap(augment.clean)(batch["image"]))
        sampler_keys = methods.image_keys(sampler_key, batch["index"])
        view, metrics = _sample(config, sampler_keys, inputs, reference, axis)
    # The embedding c of the sampled view is a constant for the regularizer (the authors' code),
    # which moves the anchors away from c, not c from the anchors; neither does a gradient pass
    # through the sampled pixels, which depend on the parameters by the sampler's gradients.
    c = lax.stop_gradient(inputs.branches[config.branch](view))
    is_before = config.anchor_layer == "projection"
    anchors = encoded.projections if is_before else encoded.predictions
    # Positives are constants in (6). Without a target network they are the projections, through
    # which the gradient passes too (5).
    regularizer = nrcc_views(
        *anchors,
        c,
        keys=encoded.targets,
        temperature=config.temperature,
        include_own_view=config.include_own_view,
        axis=axis,
    )
    return config.weight * regularizer, {"nrcc": regularizer, **metrics}


def _sample(
    config: NRCCConfig, keys: Array, inputs: SamplerInputs, reference: Array, axis: Axis
) -> tuple[Array, dict[str, Array]]:
    """Samples the view `[b, H, W, C]`; its metrics are averaged over the device.

    The potential is that of the similarity with the projections `reference` `[b, d]`.
    """
    pairs = jax.vmap(jax.random.split)(keys)
    view_keys, sampler_keys = pairs[:, 0], pairs[:, 1]
    initial = inputs.images
    if config.initial_view == "random":
        both = (inputs.images, inputs.other_images)
        views = jnp.concatenate([collectives.gather(x, axis) for x in both])
        initial = views[jax.vmap(lambda k: jax.random.randint(k, (), 0, len(views)))(view_keys)]
    if config.resolution is not None:
        scale = config.resolution / min(initial.shape[1:3])
        initial = _resize(initial, [round(scale * side) for side in initial.shape[1:3]])
    if config.sampler == "noise":
        view, info = monte_carlo(sampler_keys, initial, step_size=config.noise.scale)
    elif config.sampler == "monte_carlo":
        values = dataclasses.asdict(config.monte_carlo)
        view, info = monte_carlo(sampler_keys, initial, **values)
    else:
        view, info = _follow_gradient(config, sampler_keys, initial, inputs, reference)
    if config.resolution is not None:
        view = _resize(view, inputs.images.shape[1:3])
    metrics = {"gradient_share": info.gradient_share.mean()}
    if config.sampler not in ("sghmc", "monte_carlo", "noise"):
        metrics["acceptance_rate"] = info.acceptance_rate.mean()
    return view, metrics


def _follow_gradient(
    config: NRCCConfig, keys: Array, initial: Array, inputs: SamplerInputs, reference: Array
) -> tuple[Array, samplers.SamplerInfo]:
    """Runs SGHMC, HMC or a sampler of one's own from the images `initial`."""
    potential_fn = samplers.POTENTIALS[config.potential]
    potential_and_grad = samplers.similarity_potential(inputs.project, reference, potential_fn)
    if config.sampler not in SAMPLERS:
        return _own_sample(config.sampler, keys, initial, potential_and_grad)
    values = dataclasses.asdict(getattr(config, config.sampler))
    iterations = values.pop("iterations")
    start = None
    # If SGHMC starts from view a, the method's forward pass of view a gives the first gradient. HMC
    # compares potentials, so that one function must compute all of them: with shuffled BatchNorm
    # each pass of the method has another permutation.
    if config.sampler == "sghmc" and initial is inputs.images:
        z = lax.stop_gradient(inputs.projection)
        potential, gradient = samplers.similarity_gradient(z, reference, potential_fn)
        start = potential, inputs.vjp_fn(gradient)
    sampler = (sghmc if config.sampler == "sghmc" else hmc)(potential_and_grad, **values)
    return samplers.sample(sampler, keys, initial, start, iterations=iterations)


def _own_sample(
    name: str, keys: Array, images: Array, potential_and_grad: samplers.PotentialAndGrad
) -> tuple[Array, samplers.SamplerInfo]:
    """Samples views by a module of one's own.

    Raises:
        InputError: it returns something else than views like the images, and `SamplerInfo`.
    """
    drawn = outside.module("nrcc.sampler", name, SAMPLERS, NEEDS).sample(
        keys, images, potential_and_grad
    )
    must = f"sample of nrcc.sampler {name} must return views {list(images.shape)} and a SamplerInfo"
    if not (isinstance(drawn, tuple) and len(drawn) == 2):
        raise InputError(f"{must}; got a {type(drawn).__name__}")
    view, info = drawn
    if jnp.shape(view) != images.shape or not isinstance(info, samplers.SamplerInfo):
        raise InputError(f"{must}; got {list(jnp.shape(view))} and a {type(info).__name__}")
    return lax.stop_gradient(view), info


def _resize(images: Array, size: Sequence[int]) -> Array:
    b, *_, channels = images.shape
    return jax.image.resize(images, (b, *size, channels), "linear", antialias=True)
