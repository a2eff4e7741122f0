"""CC: contrast of images and of clusters, by two heads on one backbone."""

import dataclasses
from typing import Any, NamedTuple

import jax
from jax import Array

from cluster_jax.core.checks import Positive
from cluster_jax.core.collectives import Axis
from cluster_jax.losses import cc
from cluster_jax.methods import base, simclr
from cluster_jax.methods.base import Encoded, Features, MethodContext, PyTree, Term, TwoView
from cluster_jax.nets.network import classifier, classify


@dataclasses.dataclass(frozen=True, kw_only=True)
class TermConfig:
    """Hyper-parameters of CC's contrast of clusters.

    Attributes:
        n_clusters: K, the outputs of the cluster head, >= 2.
        cluster_temperature: tau_C of the contrast of clusters, > 0 (1).
    """

    n_clusters: base.Clusters
    cluster_temperature: Positive


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(TermConfig):
    """Hyper-parameters of CC: those of `TermConfig` and one more.

    Attributes:
        temperature: tau_I of the contrast of images, > 0 (0.5).
    """

    temperature: Positive


class NoState(NamedTuple):
    """The contrast of clusters has no state."""


def make(context: MethodContext, config: Config) -> TwoView[Any]:
    """Builds CC: NT-Xent of projections, `losses.cluster_contrast`, and `losses.entropy_deficit`.

    Li et al. (2021), "Contrastive Clustering", the sum of the three, the last of each view.
    Deviation: the projector has a BatchNorm, as those of all methods here
    (`test_projector_and_predictor_are_chained_after_the_backbone`).

    Raises:
        InputError: the network's BatchNorm is shuffled.
    """
    images = simclr.Config(temperature=config.temperature, positive_in_denominator=True)
    return base.with_term(simclr.make(context, images), term(context, config))


def term(context: MethodContext, config: TermConfig) -> Term:
    """Builds CC's contrast of clusters, without that of images: what NCC's Table 4 adds to BYOL.

    The cluster head has a hidden layer of the backbone's size, ReLU, and a softmax; its
    probabilities `[b, K]` are the features "clusters" of an image, the highest of which is the
    paper's answer. NCC adds "their losses" to BYOL: that CC's contrast of images is not among them
    is a guess, from its words that BYOL has no negatives then.
    """

    def init(key: Array) -> tuple[PyTree, Any]:
        features = context.network.features
        keys = jax.random.split(key)
        classifiers = {
            "hidden": classifier(keys[0], features, features),
            "clusters": classifier(keys[1], features, config.n_clusters),
        }
        return {"heads": classifiers}, NoState()

    def value(
        params: PyTree, encoded: Encoded, state: Any, step: Array, axis: Axis
    ) -> tuple[Array, dict[str, Array]]:
        p_a, p_b = (probabilities(params["heads"], x) for x in encoded.representations)
        cluster = cc.cluster_contrast(p_a, p_b, temperature=config.cluster_temperature, axis=axis)
        deficit = cc.entropy_deficit(p_a, axis=axis) + cc.entropy_deficit(p_b, axis=axis)
        return cluster + deficit, {"cluster": cluster, "entropy_deficit": deficit}

    def heads(params: PyTree, features: Features) -> Features:
        return {"clusters": probabilities(params["heads"], features["backbone"])}

    return Term(init, value, heads=heads)


def probabilities(classifiers: PyTree, representations: Array) -> Array:
    """Computes the cluster head's probabilities `[b, K]` of features `[b, f]`."""
    hidden = jax.nn.relu(classify(classifiers["hidden"], representations))
    return jax.nn.softmax(classify(classifiers["clusters"], hidden))
