"""NCC: BYOL with positive sampling, and contrast of prototypes in an EM loop (NCC (6)-(9))."""

import dataclasses
import functools
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from cluster_jax.core import checks
from cluster_jax.core.checks import Count, Duration, NonNegative, Positive
from cluster_jax.core.collectives import Axis
from cluster_jax.losses import ncc
from cluster_jax.methods import base, encoders
from cluster_jax.methods.base import Encoded, MethodContext, PyTree, Refresh, Term, TwoView
from cluster_jax.methods.byol import alignment


@dataclasses.dataclass(frozen=True, kw_only=True)
class TermConfig:
    """Hyper-parameters of ProtoCL.

    Attributes:
        n_clusters: K, 2 to the number of training images; it may exceed the batch size.
        weight: lambda_pcl; with 0, ProtoCL and the E-step of NCC are not computed.
        temperature: tau of ProtoCL, > 0.
        warmup: duration without clusters, `"50 epochs"`.
        update_every: duration r between two E-steps, `"1 epoch"`.
        n_init: runs of k-means in an E-step, >= 1.
        warm_start: whether one run of k-means starts from the centers of the last E-step.
        part: `"whole"`, or only the `"alignment"` or `"uniformity"` of ProtoCL (Table 4). Alignment
            without uniformity is computed from the predictions; from projections it collapses.
    """

    n_clusters: base.Clusters
    weight: NonNegative
    temperature: Positive
    warmup: Duration
    update_every: Duration
    n_init: Count
    warm_start: bool
    part: Literal["whole", "alignment", "uniformity"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(TermConfig, encoders.AverageConfig):
    """Hyper-parameters of NCC: those of `TermConfig` and of the moving average, and one more.

    Attributes:
        sigma: standard deviation of positive sampling, >= 0; see `losses.ncc.positive_samples`.
    """

    sigma: NonNegative


class PseudoLabels(NamedTuple):
    """State of ProtoCL.

    Attributes:
        labels: pseudo-label of each training image from the last E-step, int32 `[images]`; zeros
            before the first E-step.
        centers: cluster centers from the last E-step `[K, d]`; zeros before the first E-step.
    """

    labels: Array | np.ndarray
    centers: Array | np.ndarray


def make(context: MethodContext, config: Config) -> TwoView[Any]:
    """Builds NCC (later published as ProPos): `alignment + weight * ProtoCL` (9); see `term`.

    The target network is kept after training, and the E-step clusters its projections. During the
    warm-up there is (as in the authors' code) no positive sampling (`test_bare`).

    Raises:
        InputError: more clusters than images, a duration that does not fit, or no predictor.
    """
    warmup, _ = base.refresh_schedule(context, config.warmup, config.update_every)

    def sample_positives(projections: Array, index: Array, step: Array, key: Array) -> Array:
        scale = jnp.where(step < warmup, 0.0, config.sigma)
        return ncc.positive_samples(base.image_keys(key, index), projections, scale=scale)

    two_view: TwoView[Any] = encoders.momentum(
        context,
        base.stateless(alignment),
        name="NCC",
        decays=config.decays,
        predicts=True,
        initial_state=encoders.MomentumState,
        perturb=sample_positives if config.sigma else None,
    )
    two_view = two_view._replace(kept=encoders.target_network)
    if config.weight:
        return base.with_term(two_view, term(context, config))
    return two_view


def term(context: MethodContext, config: TermConfig) -> Term:
    """Builds the term `weight * ProtoCL`, after the warm-up; CC has it too in NCC's Table 4.

    The E-step clusters the projections of all training images, not augmented, by the network that
    the method keeps, by spherical k-means. The clusters are the pseudo-labels until the next
    E-step. During the warm-up there are none. The centers mu' are those of the method's `targets`:
    of the target network, or without one of the network itself, as constants.

    With a warm start, an E-step never lowers the sum of <v_i, mu_y(i)>. The convergence proof (A14)
    also assumes that the M-step raises the bound, which optimizing (9) does not ensure.

    Raises:
        InputError: more clusters than images, or a duration that does not fit.
    """
    checks.at_most("method.n_clusters", config.n_clusters, context.images, "training images")
    warmup, is_due = base.refresh_schedule(context, config.warmup, config.update_every)

    def init(key: Array) -> tuple[PyTree, PseudoLabels]:
        labels = jnp.zeros(context.images, jnp.int32)
        centers = jnp.zeros((config.n_clusters, context.network.projections))
        return {}, PseudoLabels(labels, centers)

    def value(
        params: PyTree, encoded: Encoded, state: Any, step: Array, axis: Axis
    ) -> tuple[Array, dict[str, Array]]:
        rows = encoded.predictions if config.part == "alignment" else encoded.projections
        prototypes = ncc.proto_cl_views(
            rows,
            encoded.targets,
            state.labels[encoded.image_index],
            part=config.part,
            n_clusters=config.n_clusters,
            temperature=config.temperature,
            axis=axis,
        )
        active = jnp.where(step < warmup, 0, config.weight).astype(prototypes.dtype)
        return active * prototypes, {"prototypes": prototypes}

    return Term(
        init,
        value,
        refresh=Refresh(is_due, functools.partial(e_step, config), needs=("projection",)),
        pseudo_labels=lambda model_state: model_state.labels,
    )


def e_step(
    config: TermConfig, state: Any, embedding: base.Embedding, key: Array, mesh: Mesh
) -> Any:
    """Clusters all training images into pseudo-labels, see `base.Refresh.update`."""
    last = state.centers if config.warm_start else None
    rows = embedding()["projection"]
    result = base.spherical_kmeans(rows, config.n_clusters, key, mesh, config.n_init, last)
    centers = result.centers.astype(state.centers.dtype)
    return state._replace(labels=result.labels, centers=centers)
