"""NCC: BYOL with neighbors as positives, and prototypes in an EM loop (NCC (6), (7), (9))."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from cluster_jax.core import checks, schedules
from cluster_jax.core.checks import InputError
from cluster_jax.core.collectives import Axis
from cluster_jax.losses import byol, ncc
from cluster_jax.methods.base import (
    Encoded,
    MethodContext,
    Tree,
    TwoView,
    image_keys,
    spherical_clusters,
)
from cluster_jax.methods.encoders import momentum


def make(
    context: MethodContext,
    *,
    clusters: int,
    weight: float,
    temperature: float,
    sigma: float,
    warmup: str,
    update_every: str,
    n_init: int,
    warm_start: bool,
    part: str,
    decay: float,
    final_decay: float,
) -> TwoView:
    """NCC (later published as ProPos): `alignment + weight * ProtoCL` (9).

    The E-step clusters the target projections of the whole training set, clean images, by
    spherical k-means; the clusters are the pseudo-labels of the steps up to the next one. During
    the warm-up there are none: neither ProtoCL nor (as in the authors' code) positive sampling.

    An E-step never lowers the sum of <v_i, mu_y(i)> from centers that are among its restarts, but
    (A14) also assumes that the M-step raises the bound, which optimizing (9) does not ensure.

    Args:
        context: network with a predictor, augmentation and sizes.
        clusters: K, 2 to the number of training images; it may exceed the batch.
        weight: lambda_pcl; 0 leaves ProtoCL and the E-step out.
        temperature: tau of ProtoCL, > 0.
        sigma: standard deviation of positive sampling, >= 0; see `losses.ncc.positive_samples`.
        warmup: duration without clusters, `"50 epochs"`.
        update_every: duration r between two E-steps, `"1 epoch"`.
        n_init: runs of k-means in an E-step, >= 1.
        warm_start: whether the last E-step's centers are one of the runs' starts.
        part: `"whole"`, or `"alignment"` or `"uniformity"` of ProtoCL alone (Table 4). Alignment
            alone is computed after the predictor, else it collapses.
        decay: of the moving average at the first step (0.996).
        final_decay: at the last step, reached by half a cosine; equal to `decay`: constant.

    Raises:
        InputError: a value is out of range, or the network has no predictor.
    """
    checks.at_least("method.clusters", clusters, 2)
    if clusters > context.images:
        raise InputError(
            f"method.clusters must be at most the {context.images} training images; got {clusters}"
        )
    checks.at_least("method.weight", weight, 0)
    checks.positive("method.temperature", temperature)
    checks.at_least("method.sigma", sigma, 0)
    checks.at_least("method.n_init", n_init, 1)
    checks.one_of("method.part", part, ncc.PARTS)
    first = schedules.steps("method.warmup", warmup, context.steps_per_epoch)
    period = schedules.steps("method.update_every", update_every, context.steps_per_epoch)
    checks.at_least("method.update_every", period, 1)
    if first >= context.total_steps:
        raise InputError(
            f"method.warmup is {first} steps, as long as the training of {context.total_steps} or "
            "longer, so that no cluster would ever be used; shorten it or raise train.duration"
        )

    def perturb(projections: Array, index: Array, step: Array, key: Array) -> Array:
        scale = jnp.where(step < first, 0.0, sigma)
        return ncc.positive_samples(image_keys(key, index), projections, scale=scale)

    def objective(
        params: Tree, encoded: Encoded, model_state: Tree, step: Array, key: Array, axis: Axis
    ) -> tuple[Array, Tree, dict]:
        alignment = byol.byol_views(encoded.predictions, encoded.targets)
        if not weight:
            return alignment, model_state, {}
        prototypes = ncc.proto_cl_views(
            encoded.predictions if part == "alignment" else encoded.projections,
            encoded.targets,
            model_state["labels"][encoded.index],
            part=part,
            clusters=clusters,
            temperature=temperature,
            axis=axis,
        )
        active = jnp.where(step < first, 0, weight).astype(prototypes.dtype)
        metrics = {"alignment": alignment, "prototypes": prototypes}
        return alignment + active * prototypes, model_state, metrics

    def memory() -> Tree:
        if not weight:
            return {}
        return {
            "labels": jnp.zeros(context.images, jnp.int32),
            "centers": jnp.zeros((clusters, context.network.projections)),
        }

    def refresh_at(step: int) -> bool:
        return weight > 0 and step >= first and (step - first) % period == 0

    def refresh(model_state: Tree, embedding: Callable, key: Array, mesh: Mesh) -> Tree:
        found = spherical_clusters(
            embedding()["projection"],
            clusters,
            n_init=n_init,
            key=key,
            init=_known(model_state["centers"]) if warm_start else None,
            mesh=mesh,
        )
        centers = found.centers.astype(model_state["centers"].dtype)
        return {**model_state, "labels": found.labels, "centers": centers}

    made = momentum.two_view(
        context,
        objective,
        name="NCC",
        decay=decay,
        final_decay=final_decay,
        predicts=True,
        kept="target",
        memory=memory,
        perturb=perturb if sigma else None,
    )
    return made._replace(refresh_at=refresh_at, refresh=refresh)


def _known(centers: Array) -> np.ndarray | None:
    """The last E-step's centers; None before the first, when they are zeros."""
    centers = np.asarray(centers)
    return centers if centers.any() else None
