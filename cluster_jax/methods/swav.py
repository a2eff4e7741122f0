"""SwAV: swapped prediction of balanced assignments to prototypes, also from small crops."""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import Array, lax

from cluster_jax.core import checks, ops
from cluster_jax.core.checks import Count, Duration, Positive
from cluster_jax.core.collectives import Axis
from cluster_jax.data.views import SmallCropConfig
from cluster_jax.losses.swav import swapped_prediction
from cluster_jax.methods import base, encoders
from cluster_jax.methods.base import Encoded, MethodContext, PyTree, TwoView, Watched
from cluster_jax.methods.encoders import NetworkState


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Hyper-parameters of SwAV.

    Attributes:
        n_prototypes: K, >= 2; several times the number of classes (3,000 on ImageNet).
        temperature: tau, > 0 (0.1).
        epsilon: weight of the entropy of the codes, > 0 (0.05).
        iterations: of Sinkhorn and Knopp's algorithm, >= 1 (3).
        freeze: duration in which the prototypes do not change, `"1 epoch"`.
        small: small crops beside the two views (6 of 96 pixels); None: there are none.
    """

    n_prototypes: base.Clusters
    temperature: Positive
    epsilon: Positive
    iterations: Count
    freeze: Duration
    small: SmallCropConfig | None


def make(context: MethodContext, config: Config) -> TwoView[NetworkState]:
    """Builds the method SwAV.

    Caron et al. (2020), "Unsupervised Learning of Visual Features by Contrasting Cluster
    Assignments". The prototypes are parameters, `params["prototypes"]` `[K, d]`, scaled to length
    one after each step. The network is kept after training.
    Deviations: no queue of earlier rows, and BatchNorm sees one view of full size at a time
    (`test_bare`).

    Raises:
        InputError: shuffled BatchNorm, or small crops that data or network do not allow.
    """
    frozen = checks.steps("method.freeze", config.freeze, context.steps_per_epoch)

    def objective(
        params: PyTree, encoded: Encoded, state: NetworkState, step: Array, key: Array, axis: Axis
    ) -> tuple[Array, NetworkState, dict[str, Array]]:
        prototypes = params["prototypes"]
        prototypes = jnp.where(step < frozen, lax.stop_gradient(prototypes), prototypes)
        views = (*encoded.projections, *encoded.more)
        value = swapped_prediction(
            [ops.pairwise_dot(ops.l2_normalize(z), prototypes) for z in views],
            temperature=config.temperature,
            epsilon=config.epsilon,
            iterations=config.iterations,
            axis=axis,
        )
        return value, state, {}

    two_view = encoders.siamese(context, objective, name="SwAV", predicts=False)

    def init(key: Array, images: Array) -> tuple[PyTree, NetworkState]:
        params, state = two_view.init(key, images)
        shape = config.n_prototypes, context.network.projections
        rows = jax.random.normal(jax.random.fold_in(key, 1), shape)
        return {**params, "prototypes": ops.l2_normalize(rows)}, state

    def after(params: PyTree, state: NetworkState, update: Array) -> tuple[PyTree, NetworkState]:
        return {**params, "prototypes": ops.l2_normalize(params["prototypes"])}, state

    return two_view._replace(
        init=init,
        after=after,
        more=encoders.small_crops(context, config.small),
        # Equal rows are predicted best by equal scores.
        watched=Watched(chance=("loss", math.log(config.n_prototypes))),
    )
