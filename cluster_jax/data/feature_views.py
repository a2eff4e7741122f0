"""Views of features: random changes of a vector in place of those of an image."""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.core import checks
from cluster_jax.core.checks import InputError
from cluster_jax.data.images import Dataset
from cluster_jax.data.views import Augment


@dataclasses.dataclass(frozen=True)
class FeatureViewsConfig:
    """Section `feature_views`: how a view of features is made, in this order.

    Features are scaled to a root mean square of one over their columns. All zeros or None: both
    views are the features themselves.

    Attributes:
        cached: number of the stored augmented views, of which one is drawn; 0: a view starts from
            the features of the image itself; None: all that the data have.
        neighbors: number of the nearest neighbors, of which one is drawn. NCL's head on clusters
            asks them too, if views go towards them (ten at most).
        step: largest part of the way to that neighbor, 0 to 1, drawn uniformly.
        noise: standard deviation of normal noise.
        dropout: probability that a column is zero; the others are scaled up.
    """

    cached: int | None
    neighbors: int
    step: float
    noise: float
    dropout: float

    def __post_init__(self) -> None:
        if self.cached is not None:
            checks.whole("feature_views.cached", self.cached, 0)
        checks.whole("feature_views.neighbors", self.neighbors, 0)
        checks.between("feature_views.step", self.step, 0, 1)
        checks.at_least("feature_views.noise", self.noise, 0)
        checks.finite("feature_views.noise", self.noise)
        if not 0 <= self.dropout < 1:
            raise InputError(
                f"feature_views.dropout must be at least 0 and below 1; got {self.dropout}"
            )

    @property
    def searched(self) -> int:
        """Number of neighbors to search for each row; none where no view goes towards one."""
        return self.neighbors if self.step else 0


def make(config: FeatureViewsConfig, dataset: Dataset) -> Augment:
    """Views of the features of a set, float `[v + m, d]` each -> `[d]`; see `Augment`.

    The first of the v rows is that of the image itself, which `clean` gives; the last m are its
    neighbors'. Each change has its own random numbers, so turning one off does not change the
    others.

    Raises:
        InputError: the set has fewer augmented views than the config asks for.
    """
    stored = dataset.shape[0] - dataset.neighbors - 1
    cached = stored if config.cached is None else config.cached
    if cached > stored:
        raise InputError(
            f"feature_views.cached must be at most {stored}, the augmented views of each image "
            f"that the data have; got {cached}"
        )

    def view(key: Array, rows: Array) -> Array:
        view_key, neighbor_key, step_key, noise_key, dropout_key = jax.random.split(key, 5)
        x = rows[jax.random.randint(view_key, (), 1, cached + 1) if cached else 0]
        if config.searched:
            neighbor = rows[-jax.random.randint(neighbor_key, (), 1, config.neighbors + 1)]
            x += jax.random.uniform(step_key, (), x.dtype, 0, config.step) * (neighbor - x)
        x = _scaled(x)
        if config.noise:
            x += config.noise * jax.random.normal(noise_key, x.shape, x.dtype)
        if config.dropout:
            kept = jax.random.bernoulli(dropout_key, 1 - config.dropout, x.shape)
            x = jnp.where(kept, x / (1 - config.dropout), 0)
        return x

    return Augment(view, view, lambda rows: _scaled(rows[0]))


def _scaled(x: Array) -> Array:
    """A vector near length one, so that its entries have the size of standardized pixels."""
    return x.astype(jnp.result_type(float)) * math.sqrt(len(x))
