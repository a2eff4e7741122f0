"""CC: contrast of images and of clusters, by two heads on one backbone."""

import dataclasses
import math

import jax
from jax import Array

from cluster_jax.core.checks import Positive
from cluster_jax.core.collectives import Axis
from cluster_jax.losses import cc, infonce
from cluster_jax.methods import base, encoders
from cluster_jax.methods.base import Encoded, MethodContext, PyTree, TwoView, Watched
from cluster_jax.methods.encoders import NetworkState
from cluster_jax.nets.network import classifier, classify


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Hyper-parameters of CC.

    Attributes:
        clusters: K, the outputs of the cluster head, >= 2.
        temperature: tau_I of the contrast of images, > 0 (0.5).
        cluster_temperature: tau_C of the contrast of clusters, > 0 (1).
    """

    clusters: base.Clusters
    temperature: Positive
    cluster_temperature: Positive


def make(context: MethodContext, config: Config) -> TwoView[NetworkState]:
    """CC: NT-Xent of the projections, `losses.cluster_contrast`, and `losses.entropy_deficit`.

    Li et al. (2021), "Contrastive Clustering", the sum of the three, the last of each view. The
    cluster head has a hidden layer of the backbone's size, ReLU, and a softmax; its probabilities
    `[b, K]` are the features "clusters" of an image, the highest of which is the paper's answer.
    Deviation: the projector has a BatchNorm, as those of all methods here.

    Raises:
        InputError: the network's BatchNorm is shuffled.
    """

    def objective(
        params: PyTree, encoded: Encoded, state: NetworkState, step: Array, key: Array, axis: Axis
    ) -> tuple[Array, NetworkState, dict[str, Array]]:
        instance = infonce.info_nce_views(
            *encoded.projections, temperature=config.temperature, axis=axis
        )
        p_a, p_b = (probabilities(params["heads"], x) for x in encoded.representations)
        cluster = cc.cluster_contrast(p_a, p_b, temperature=config.cluster_temperature, axis=axis)
        deficit = cc.entropy_deficit(p_a, axis=axis) + cc.entropy_deficit(p_b, axis=axis)
        metrics = {"instance": instance, "cluster": cluster, "entropy_deficit": deficit}
        return instance + cluster + deficit, state, metrics

    two_view = encoders.siamese(context, objective, name="CC", predicts=False)

    def init(key: Array, images: Array) -> tuple[PyTree, NetworkState]:
        params, state = two_view.init(key, images)
        features, keys = context.network.features, jax.random.split(jax.random.fold_in(key, 1))
        classifiers = {
            "hidden": classifier(keys[0], features, features),
            "clusters": classifier(keys[1], features, config.clusters),
        }
        return {**params, "heads": classifiers}, state

    def embed(params: PyTree, model_state: NetworkState, images: Array) -> base.Features:
        features = two_view.embed(params, model_state, images)
        return {**features, "clusters": probabilities(params["heads"], features["backbone"])}

    chance = math.log(2 * context.batch_size - 1)
    return two_view._replace(
        init=init, objective=objective, embed=embed, watched=Watched(chance=("instance", chance))
    )


def probabilities(classifiers: PyTree, representations: Array) -> Array:
    """Probabilities of the clusters `[b, K]` by the cluster head, of features `[b, f]`."""
    hidden = jax.nn.relu(classify(classifiers["hidden"], representations))
    return jax.nn.softmax(classify(classifiers["clusters"], hidden))
