"""NRCC: a regulariser of sampled negative pairs around any method of two views (NRCC (5), (6))."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from cluster_jax import collectives, ops, settings
from cluster_jax.collectives import Axis
from cluster_jax.losses import nrcc
from cluster_jax.methods.base import Aux, Density, Method, Tree, TwoView, image_keys, two_views
from cluster_jax.samplers import base as samplers
from cluster_jax.samplers import hmc, monte_carlo, sghmc

SOURCES = ("sghmc", "hmc", "monte_carlo", "noise", "augment")


def with_nrcc(
    base: TwoView,
    *,
    weight: float,
    temperature: float,
    anchor: str,
    include_own_view: bool,
    route: str,
    source: str,
    seed_view: str,
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
        base: the method to regularise.
        weight: lambda; >= 0.
        temperature: tau of the regulariser; > 0.
        anchor: `"projection"` (online, before the predictor) or `"prediction"` (Figure 5's
            caption).
        include_own_view: whether the sampled view of the anchor's own image is among the
            negatives (the official code) or masked (Algorithms 2 and 3).
        route: which network embeds the sampled view: `"target"`, `"target_predictor"` or
            `"online"` (the online projection; Figure 4 (a) draws the predictor as well). Always
            a constant. A method without target network only has `"online"`.
        source: where the view comes from: `"sghmc"`, `"hmc"`, `"monte_carlo"`, `"noise"` or
            `"augment"` (an ordinary third view, Table 2).
        seed_view: the sampler starts at the image's own view a (`"own"`, Figure 5) or at a random
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
    settings.at_least("nrcc.weight", weight, 0)
    settings.positive("nrcc.temperature", temperature)
    settings.one_of("nrcc.anchor", anchor, ("projection", "prediction"))
    settings.one_of("nrcc.route", route, ("target", "target_predictor", "online"))
    settings.one_of("nrcc.source", source, SOURCES)
    settings.one_of("nrcc.seed_view", seed_view, ("own", "random"))
    settings.one_of("nrcc.reference", reference, ("other_view", "clean"))
    if route not in base.routes:
        lacks = "target network" if "target" not in base.routes else "predictor"
        raise settings.InputError(
            f"nrcc.route is {route!r}, but the method has no {lacks}; use {base.routes[0]!r}"
        )
    if anchor not in base.anchors:
        raise settings.InputError(
            f"nrcc.anchor is {anchor!r}, but the method has no predictor; use 'projection'"
        )
    if resolution is not None:
        settings.at_least("nrcc.resolution", resolution, 2)
    settings.one_of("nrcc.potential", potential, ("inverse", "log_inverse_square"))
    arguments = {"sghmc": sghmc, "hmc": hmc, "monte_carlo": monte_carlo, "noise": noise}
    _check_samplers(arguments)

    def loss(
        params: Tree, extra: Tree, batch: Mapping, step: Array, key: Array, axis: Axis
    ) -> tuple[Array, Aux]:
        view_key, encoder_key, loss_key, sampler_key, third_key = jax.random.split(key, 5)
        views = two_views(base.augment, view_key, batch)
        encoded, extra = base.encode(params, extra, views, batch["index"], step, encoder_key, axis)
        density = encoded.density
        keys = image_keys(sampler_key, batch["index"])
        if source == "augment":
            third = image_keys(third_key, batch["index"])
            view, metrics = jax.vmap(base.augment.view)(third, batch["image"]), {}
        else:
            clean = jax.vmap(base.augment.clean)(batch["image"]) if reference == "clean" else None
            view, metrics = _sample(
                keys,
                density,
                clean,
                axis,
                source=source,
                seed_view=seed_view,
                resolution=resolution,
                potential=potential,
                arguments=dict(arguments[source]),
            )
        # Both gradients are stopped: through the sampled pixels and through their embedding.
        c = lax.stop_gradient(density.routes[route](lax.stop_gradient(view)))
        a, b = encoded.projections if anchor == "projection" else encoded.predictions
        partner_a, partner_b = encoded.targets or encoded.projections
        regulariser = nrcc.nrcc_views(
            a,
            b,
            partner_a,
            partner_b,
            c,
            temperature=temperature,
            include_own_view=include_own_view,
            axis=axis,
        )
        value, extra, more = base.objective(params, encoded, extra, step, loss_key, axis)
        total = value + weight * regulariser
        metrics = {"loss": total, "base_loss": value, "nrcc": regulariser, **metrics, **more}
        return total, Aux(extra, metrics)

    return Method(base.init, loss, base.after, base.embed, base.refresh_at, base.refresh)


def _check_samplers(arguments: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises an `InputError` for a number that no sampler can work with."""
    positive = ("iterations", "leapfrog_steps", "step_size", "clip")
    for source, values in arguments.items():
        for key, value in values.items():
            name = f"nrcc.{source}.{key}"
            if key in positive and not (key == "clip" and value is None):
                settings.positive(name, value)
            elif key in ("noise", "scale"):
                settings.at_least(name, value, 0)
            elif key == "friction" and not 0 <= value <= 1:
                raise settings.InputError(f"{name} must be between 0 and 1; got {value}")
            elif key == "momentum":
                settings.one_of(name, value, ("new", "old"))


def _sample(
    keys: Array,
    density: Density,
    clean: Array | None,
    axis: Axis,
    *,
    source: str,
    seed_view: str,
    resolution: int | None,
    potential: str,
    arguments: dict[str, Any],
) -> tuple[Array, dict[str, Array]]:
    """The third view `[b, H, W, C]` and the sampler's figures, averaged over the device."""
    choose, draw = _split(keys)
    seed, shared = density.images, True
    if seed_view == "random":
        seed, shared = _random_view(choose, density, axis), False
    if resolution is not None:
        seed, shared = _resize(seed, resolution), False
    if source == "noise":
        view, info = monte_carlo.noise(draw, seed, **arguments)
    elif source == "monte_carlo":
        view, info = monte_carlo.monte_carlo(draw, seed, **arguments)
    else:
        target = density.reference if clean is None else density.project(clean)
        energy = _energy(density.project, lax.stop_gradient(target), samplers.potential(potential))
        # HMC compares energies: all of them by one function (shuffle-BN has an order per pass).
        if shared and source == "sghmc":
            start = _start(density, target, samplers.potential(potential))
        else:
            start = energy(seed)
        sampler = {"sghmc": sghmc.sghmc, "hmc": hmc.hmc}[source]
        view, info = sampler(draw, seed, energy, start, **arguments)
    if resolution is not None:
        view = _resize(view, density.images.shape[1])
    metrics = {"gradient_share": info.gradient_share.mean()}
    if source == "hmc":
        metrics["acceptance"] = info.acceptance.mean()
    return view, metrics


def _potentials(z: Array, reference: Array, potential: Callable) -> Array:
    return potential(ops.cosine(z, reference))


def _energy(project: Callable, reference: Array, potential: Callable) -> Callable:
    """Images -> (16) per image, and the gradient of their sum with respect to the images.

    With BatchNorm on batch statistics an image's projection depends on the others a little, so
    the gradient is not strictly that of the image's own potential; accepted.
    """

    def energy(images: Array) -> tuple[Array, Array]:
        z, pull = jax.vjp(project, images)
        values, back = jax.vjp(lambda z: _potentials(z, reference, potential), z)
        return values, pull(back(jnp.ones_like(values))[0])[0]

    return energy


def _start(density: Density, reference: Array, potential: Callable) -> tuple[Array, Array]:
    """`_energy` at view a, from the forward pass that the method has made."""
    z, reference = lax.stop_gradient((density.projection, reference))
    values, back = jax.vjp(lambda z: _potentials(z, reference, potential), z)
    return values, density.pull(back(jnp.ones_like(values))[0])


def _random_view(keys: Array, density: Density, axis: Axis) -> Array:
    """A random one of the 2n views of the global batch for every image."""
    views = jnp.concatenate(
        [collectives.gather(density.images, axis), collectives.gather(density.other_images, axis)]
    )
    return views[jax.vmap(lambda k: jax.random.randint(k, (), 0, len(views)))(keys)]


def _resize(images: Array, side: int) -> Array:
    return jax.image.resize(
        images, (images.shape[0], side, side, images.shape[3]), "linear", antialias=True
    )


def _split(keys: Array) -> tuple[Array, Array]:
    both = jax.vmap(jax.random.split)(keys)
    return both[:, 0], both[:, 1]
