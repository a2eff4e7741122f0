"""NRCC: a regularizer of sampled negative pairs around any method of two views (NRCC (5), (6))."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from cluster_jax.core import collectives, ops
from cluster_jax.core.checks import InputError
from cluster_jax.core.collectives import Axis
from cluster_jax.losses import nrcc
from cluster_jax.methods.base import (
    Aux,
    Method,
    ModelState,
    SamplerInputs,
    Tree,
    TwoView,
    image_keys,
    two_views,
)
from cluster_jax.methods.nrcc_config import NRCCConfig
from cluster_jax.samplers import base as samplers
from cluster_jax.samplers import hmc, monte_carlo, sghmc
from cluster_jax.samplers.base import PotentialAndGrad

PotentialFn = Callable[[Array], Array]


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
    params: Tree,
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
    regularizer = nrcc.nrcc_views(
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
        values = dataclasses.asdict(config.noise)
        view, info = monte_carlo.noise(draw_keys, initial, **values)
    elif config.sampler == "monte_carlo":
        values = dataclasses.asdict(config.monte_carlo)
        view, info = monte_carlo.monte_carlo(draw_keys, initial, **values)
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
    potential_and_grad = _potential_and_grad(
        sampler_inputs.project, lax.stop_gradient(reference), potential_fn
    )
    if config.sampler == "hmc":
        # HMC compares potentials, all of them by one function: shuffle-BN has an order per pass.
        start, values = potential_and_grad(initial), dataclasses.asdict(config.hmc)
        return hmc.hmc(keys, initial, potential_and_grad, start, **values)
    # From view a as it is, the method's own forward pass gives the first gradient.
    if initial is sampler_inputs.images:
        start = _initial(sampler_inputs, reference, potential_fn)
    else:
        start = potential_and_grad(initial)
    values = dataclasses.asdict(config.sghmc)
    return sghmc.sghmc(keys, initial, potential_and_grad, start, **values)


def _potentials(z: Array, reference: Array, potential_fn: PotentialFn) -> Array:
    return potential_fn(ops.cosine(z, reference))


def _potential_and_grad(
    project: Callable[[Array], Array], reference: Array, potential_fn: PotentialFn
) -> PotentialAndGrad:
    """Images -> (16) per image, and the gradient of their sum with respect to the images.

    With BatchNorm on batch statistics an image's projection depends slightly on the other
    images, so this gradient is an approximation.
    """

    def potential_and_grad(images: Array) -> tuple[Array, Array]:
        z, project_vjp = jax.vjp(project, images)
        values, potential_vjp = jax.vjp(lambda z: _potentials(z, reference, potential_fn), z)
        return values, project_vjp(potential_vjp(jnp.ones_like(values))[0])[0]

    return potential_and_grad


def _initial(
    sampler_inputs: SamplerInputs, reference: Array, potential_fn: PotentialFn
) -> tuple[Array, Array]:
    """`_potential_and_grad` at view a, from the forward pass that the method has made."""
    z, reference = lax.stop_gradient((sampler_inputs.projection, reference))
    values, potential_vjp = jax.vjp(lambda z: _potentials(z, reference, potential_fn), z)
    return values, sampler_inputs.vjp_fn(potential_vjp(jnp.ones_like(values))[0])


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
