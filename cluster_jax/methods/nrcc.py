"""NRCC: a regularizer of sampled negative pairs around any method of two views (NRCC (5), (6))."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from cluster_jax.core import checks, collectives, ops
from cluster_jax.core.checks import InputError
from cluster_jax.core.collectives import Axis
from cluster_jax.losses import nrcc
from cluster_jax.methods.base import (
    Aux,
    Method,
    SamplerInputs,
    Tree,
    TwoView,
    image_keys,
    two_views,
)
from cluster_jax.samplers import base as samplers
from cluster_jax.samplers import hmc, monte_carlo, sghmc
from cluster_jax.samplers.base import PotentialAndGrad

SAMPLERS = ("sghmc", "hmc", "monte_carlo", "noise", "augment")


def with_nrcc(
    base: TwoView,
    *,
    weight: float,
    temperature: float,
    anchor_layer: str,
    include_own_view: bool,
    branch: str,
    sampler: str,
    initial_view: str,
    reference: str,
    resolution: int | None,
    potential: str,
    sghmc: Mapping[str, Any],
    hmc: Mapping[str, Any],
    monte_carlo: Mapping[str, Any],
    noise: Mapping[str, Any],
) -> Method:
    """The method that trains on `base loss + weight * R`; see `losses.nrcc` for R.

    The forward passes are those of `base`: a sampler of one iteration from the own view costs
    one gradient with respect to the images and one forward pass of the sampled view.

    Args:
        base: the method to regularize.
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
        initial_view: the sampler starts at the image's own view a (`"own"`, Figure 5) or at a random
            one of the 2n views of the batch (`"random"`, Algorithm 1).
        reference: x_i of (16): `"other_view"` of the same image, or the image itself,
            un-augmented (`"clean"`).
        resolution: sample at this side length in pixels and resize back (32 in the official
            code); None: at the network's own.
        potential: `"inverse"` (16) or `"log_inverse_square"` (the official code).
        sghmc: keyword arguments of `samplers.sghmc.sghmc`.
        hmc: keyword arguments of `samplers.hmc.hmc`.
        monte_carlo: keyword arguments of `samplers.monte_carlo.monte_carlo`.
        noise: keyword arguments of `samplers.monte_carlo.noise`.

    Raises:
        InputError: a value is not among those above.
    """
    checks.at_least("nrcc.weight", weight, 0)
    checks.positive("nrcc.temperature", temperature)
    checks.one_of("nrcc.anchor_layer", anchor_layer, ("projection", "prediction"))
    checks.one_of("nrcc.branch", branch, ("target", "target_predictor", "online"))
    checks.one_of("nrcc.sampler", sampler, SAMPLERS)
    checks.one_of("nrcc.initial_view", initial_view, ("own", "random"))
    checks.one_of("nrcc.reference", reference, ("other_view", "clean"))
    if branch not in base.branches:
        lacks = "target network" if "target" not in base.branches else "predictor"
        raise InputError(
            f"nrcc.branch is {branch!r}, but the method has no {lacks}; use {base.branches[0]!r}"
        )
    if anchor_layer not in base.anchors:
        raise InputError(
            f"nrcc.anchor_layer is {anchor_layer!r}, but the method has no predictor; use 'projection'"
        )
    if resolution is not None:
        checks.at_least("nrcc.resolution", resolution, 2)
    checks.one_of("nrcc.potential", potential, ("inverse", "log_inverse_square"))
    arguments = {"sghmc": sghmc, "hmc": hmc, "monte_carlo": monte_carlo, "noise": noise}
    _check_samplers(arguments)

    def loss(
        params: Tree, model_state: Tree, batch: Mapping, step: Array, key: Array, axis: Axis
    ) -> tuple[Array, Aux]:
        view_key, encoder_key, loss_key, sampler_key, third_key = jax.random.split(key, 5)
        views = two_views(base.augment, view_key, batch)
        encoded, model_state = base.encode(
            params, model_state, views, batch["index"], step, encoder_key, axis
        )
        sampler_inputs = encoded.sampler_inputs
        keys = image_keys(sampler_key, batch["index"])
        if sampler == "augment":
            third = image_keys(third_key, batch["index"])
            view, metrics = jax.vmap(base.augment.view)(third, batch["image"]), {}
        else:
            clean = jax.vmap(base.augment.clean)(batch["image"]) if reference == "clean" else None
            view, metrics = _sample(
                keys,
                sampler_inputs,
                clean,
                axis,
                sampler=sampler,
                initial_view=initial_view,
                resolution=resolution,
                potential=potential,
                arguments=dict(arguments[sampler]),
            )
        # Both gradients are stopped: through the sampled pixels and through their embedding.
        c = lax.stop_gradient(sampler_inputs.branches[branch](lax.stop_gradient(view)))
        a, b = encoded.projections if anchor_layer == "projection" else encoded.predictions
        partner_a, partner_b = encoded.targets or encoded.projections
        regularizer = nrcc.nrcc_views(
            a,
            b,
            partner_a,
            partner_b,
            c,
            temperature=temperature,
            include_own_view=include_own_view,
            axis=axis,
        )
        value, model_state, more = base.objective(
            params, encoded, model_state, step, loss_key, axis
        )
        total = value + weight * regularizer
        metrics = {"loss": total, "base_loss": value, "nrcc": regularizer, **metrics, **more}
        return total, Aux(model_state, metrics)

    return Method(base.init, loss, base.after, base.embed, base.refresh_at, base.refresh)


def _check_samplers(arguments: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises an `InputError` for a number that no sampler can work with."""
    positive = ("iterations", "leapfrog_steps", "step_size", "clip")
    for sampler, values in arguments.items():
        for key, value in values.items():
            name = f"nrcc.{sampler}.{key}"
            if key in positive and not (key == "clip" and value is None):
                checks.positive(name, value)
            elif key in ("noise", "scale"):
                checks.at_least(name, value, 0)
            elif key == "friction" and not 0 <= value <= 1:
                raise InputError(f"{name} must be between 0 and 1; got {value}")
            elif key == "momentum":
                checks.one_of(name, value, ("new", "old"))


def _sample(
    keys: Array,
    sampler_inputs: SamplerInputs,
    clean: Array | None,
    axis: Axis,
    *,
    sampler: str,
    initial_view: str,
    resolution: int | None,
    potential: str,
    arguments: dict[str, Any],
) -> tuple[Array, dict[str, Array]]:
    """The third view `[b, H, W, C]` and the sampler's figures, averaged over the device."""
    choose, draw = _split(keys)
    seed, shared = sampler_inputs.images, True
    if initial_view == "random":
        seed, shared = _random_view(choose, sampler_inputs, axis), False
    if resolution is not None:
        seed, shared = _resize(seed, resolution), False
    if sampler == "noise":
        view, info = monte_carlo.noise(draw, seed, **arguments)
    elif sampler == "monte_carlo":
        view, info = monte_carlo.monte_carlo(draw, seed, **arguments)
    else:
        target = sampler_inputs.reference if clean is None else sampler_inputs.project(clean)
        potential_fn = samplers.potential_fn(potential)
        potential_and_grad = _potential_and_grad(
            sampler_inputs.project, lax.stop_gradient(target), potential_fn
        )
        # HMC compares energies, all of them by one function (shuffle-BN has an order per pass).
        if shared and sampler == "sghmc":
            initial = _initial(sampler_inputs, target, potential_fn)
        else:
            initial = potential_and_grad(seed)
        sample = {"sghmc": sghmc.sghmc, "hmc": hmc.hmc}[sampler]
        view, info = sample(draw, seed, potential_and_grad, initial, **arguments)
    if resolution is not None:
        view = _resize(view, sampler_inputs.images.shape[1])
    metrics = {"gradient_share": info.gradient_share.mean()}
    if sampler == "hmc":
        metrics["acceptance_rate"] = info.acceptance_rate.mean()
    return view, metrics


def _potentials(z: Array, reference: Array, potential_fn: Callable) -> Array:
    return potential_fn(ops.cosine(z, reference))


def _potential_and_grad(
    project: Callable, reference: Array, potential_fn: Callable
) -> PotentialAndGrad:
    """Images -> (16) per image, and the gradient of their sum with respect to the images.

    With BatchNorm on batch statistics an image's projection depends on the others a little, so
    the gradient is not strictly that of the image's own potential; accepted.
    """

    def potential_and_grad(images: Array) -> tuple[Array, Array]:
        z, project_vjp = jax.vjp(project, images)
        values, potential_vjp = jax.vjp(lambda z: _potentials(z, reference, potential_fn), z)
        return values, project_vjp(potential_vjp(jnp.ones_like(values))[0])[0]

    return potential_and_grad


def _initial(
    sampler_inputs: SamplerInputs, reference: Array, potential_fn: Callable
) -> tuple[Array, Array]:
    """`_potential_and_grad` at view a, from the forward pass that the method has made."""
    z, reference = lax.stop_gradient((sampler_inputs.projection, reference))
    values, potential_vjp = jax.vjp(lambda z: _potentials(z, reference, potential_fn), z)
    return values, sampler_inputs.pull(potential_vjp(jnp.ones_like(values))[0])


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
    both = jax.vmap(jax.random.split)(keys)
    return both[:, 0], both[:, 1]
