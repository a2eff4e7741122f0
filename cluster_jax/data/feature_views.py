"""Augmented views of feature vectors: mixing with neighbors, noise, dropout."""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.core.checks import BelowOne, CountOrZero, Fraction, InputError, NonNegative
from cluster_jax.data.images import Dataset
from cluster_jax.data.views import Augment


@dataclasses.dataclass(frozen=True)
class FeatureViewsConfig:
    """Section `feature_views`: augmentations of a feature vector, applied in this order.

    Vectors are scaled to a root mean square of one over their columns. With zeros everywhere both
    views are the features themselves.

    Attributes:
        cached: number of stored augmented views, one of which is drawn as the start; 0: start from
            the features of the image itself; None: all stored views.
        neighbors: number of nearest neighbors, one of which is drawn for mixing. If `step` is
            positive, NCL's head on clusters spreads labels over them too (ten at most).
        step: maximum of the uniform mixing coefficient with the neighbor, 0 to 1.
        noise: standard deviation of Gaussian noise.
        dropout: probability that a column is set to zero; other columns are scaled up.
    """

    cached: CountOrZero | None
    neighbors: CountOrZero
    step: Fraction
    noise: NonNegative
    dropout: BelowOne

    @property
    def searched(self) -> int:
        """Number of neighbors to search for each row; 0 if views are not mixed with them."""
        return self.neighbors if self.step else 0


def make(config: FeatureViewsConfig, dataset: Dataset) -> Augment:
    """The augmentations of an item of features, float `[v + m, d]` -> `[d]`; see `Augment`.

    The first of the v rows has the features of the image itself, which `clean` returns; the last m
    rows have the features of its neighbors. Each augmentation has its own random numbers, so
    turning one off does not change the others.

    Raises:
        InputError: the set has fewer stored views than `cached`.
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
        x = _unit_rms(x)
        if config.noise:
            x += config.noise * jax.random.normal(noise_key, x.shape, x.dtype)
        if config.dropout:
            kept = jax.random.bernoulli(dropout_key, 1 - config.dropout, x.shape)
            x = jnp.where(kept, x / (1 - config.dropout), 0)
        return x

    return Augment(view, view, lambda rows: _unit_rms(rows[0]))


def _unit_rms(x: Array) -> Array:
    """Scales a vector of length one to a root mean square of one, as of standardized pixels."""
    return x.astype(jnp.result_type(float)) * math.sqrt(len(x))
