"""A network of a few weights without BatchNorm, given views and given k-means, for reference steps.

Its "running means" stand for BatchNorm's statistics: every forward pass in training moves those of
the parts that it passed, and only the network after training uses them.
"""

import math
from types import SimpleNamespace

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax import lax

from cluster_jax.data.views import Augment
from cluster_jax.nets.network import Network, Outputs

SIDE, FEATURES = 2, 4
IMAGES = 16  # a queue of 8 is half of them
PARTS = ("backbone", "projector", "predictor")


def _tanh(x):
    """For the package in JAX, for the reference in NumPy, where `x` may be complex."""
    return np.tanh(x) if isinstance(x, np.ndarray) else jnp.tanh(x)


def represent(params, images):
    """Backbone features `[n, 4]` of images `[n, 2, 2, 1]`, in training."""
    return _tanh(images.reshape(len(images), -1) @ params["backbone"]["kernel"])


def project(params, images):
    """Projections `[n, 4]` in training: the features where there is no projector."""
    features = represent(params, images)
    return features @ params["projector"]["kernel"] if "projector" in params else features


def predict(params, projections):
    """Predictions `[n, 4]` in training."""
    return _tanh(projections @ params["predictor"]["kernel"])


def embed(params, means, images):
    """Features and projections of the network after training."""
    features = represent(params, images) - means["backbone"]["mean"][None]
    if "projector" not in params:
        return features, features
    projections = features @ params["projector"]["kernel"] - means["projector"]["mean"][None]
    return features, projections


def moved(means, rows):
    """Running means after a pass with outputs `rows`."""
    return {"mean": 0.9 * means["mean"] + 0.1 * rows.mean(0)}


def network(parts):
    """The network with these of `PARTS`, as the methods take one."""

    def init(key, images):
        rng = np.random.default_rng(5)
        params = {part: {"kernel": jnp.asarray(rng.normal(size=(4, FEATURES)))} for part in PARTS}
        means = {part: {"mean": jnp.zeros(FEATURES)} for part in parts}
        return {part: params[part] for part in parts}, means

    def forward(params, means, images, *, train, axis):
        if not train:
            return Outputs(*embed(params, means, images), means)
        features, projections = represent(params, images), project(params, images)
        means = {**means, "backbone": moved(means["backbone"], features)}
        if "projector" in params:
            means["projector"] = moved(means["projector"], projections)
        return Outputs(features, projections, means)

    def prediction(params, means, projections, *, train, axis):
        rows = predict(params, projections)
        return rows, {**means, "predictor": moved(means["predictor"], rows)}

    return Network(
        init, forward, prediction if "predictor" in parts else None, FEATURES, FEATURES,
        frozen=None, any_size=False,
    )  # fmt: skip


def _mixed(x):
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    return x ^ (x >> np.uint32(15))


def _numbered(shape, dtype):
    return lax.reshape(lax.iota(dtype, math.prod(shape)), shape)


def _bits(key, width, shape):
    """Random bits of each place. They need integers of 64 bits, so `x64`."""
    x = _numbered(shape, np.uint64) + key[0].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        x = x * np.uint64(factor)
        x = x ^ (x >> np.uint64(32))
    return x.astype(f"uint{width}")


# Keys of a few operations: those of JAX are nearly half of what is compiled for a step here, and a
# step takes whatever keys its state has.
KEYS = jax.extend.random.define_prng_impl(
    key_shape=(1,),
    seed=lambda seed: _mixed(seed.astype(np.uint32)[None]),
    fold_in=lambda key, data: _mixed(key * np.uint32(0x846CA68B) + data.astype(np.uint32)[None]),
    split=lambda key, shape: _mixed(
        key[0] * np.uint32(0x9E3779B1) + _numbered((*shape, 1), np.uint32)
    ),
    random_bits=_bits,
    name="of few operations",
    tag="few",
)


def view(key, image):
    """View a: noise is added."""
    return clean(image) + 0.3 * jax.random.normal(key, image.shape)


def other_view(key, image):
    """View b: another recipe, so that the views cannot be confused."""
    return 0.8 * clean(image) - 0.2 * jax.random.normal(key, image.shape)


def small_view(key, image):
    """A small crop: a third recipe."""
    return 0.5 * clean(image) + 0.4 * jax.random.normal(key, image.shape)


def clean(image):
    """The image itself, float64."""
    return image.astype(float) / 255


AUGMENT = Augment(view, other_view, clean, lambda config: small_view)


def images():
    """All training images, uint8 `[16, 2, 2, 1]`, and their labels, int32 `[16]`."""
    rng = np.random.default_rng(3)
    pixels = rng.integers(0, 256, (IMAGES, SIDE, SIDE, 1)).astype(np.uint8)
    return pixels, (np.arange(IMAGES) % 2).astype(np.int32)


def kmeans(x, start, *, metric, **settings):
    """One iteration of spherical k-means from centers or first rows, for both.

    The centers move half of the way, so that a start that is forgotten shows.
    """
    assert metric == "spherical"
    x = np.asarray(x, np.float64)
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    centers = np.array(x[:start] if np.ndim(start) == 0 else start, np.float64)
    labels = np.argmax(x @ centers.T, axis=1)
    for k in range(len(centers)):
        if (labels == k).any():
            center = centers[k] + x[labels == k].mean(0)
            centers[k] = center / np.linalg.norm(center)
    return SimpleNamespace(labels=labels.astype(np.int32), centers=centers)
