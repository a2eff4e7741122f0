"""Suggested names of clusters."""

import jax
import numpy as np
from sklearn.datasets import load_sample_images

from cluster_jax.data.decode import Resize, decode
from cluster_jax.evaluation import suggestions
from cluster_jax.nets import pretrained
from tests.nets.test_pretrained import lite2, lite_module


def test_photographs_get_the_names_of_what_they_show():
    photos = np.concatenate(
        [decode(photo, Resize(224, "bicubic"), 3)[None] for photo in load_sample_images().images]
    )
    params, stats = lite2()
    apply = jax.jit(lite_module().apply)
    inputs = (photos.astype(np.float32) - 127) / 128
    features = np.asarray(apply({"params": params, "batch_stats": stats}, inputs))
    found = suggestions.suggest(features[[1, 0, 1]], np.array([7, 4, 7]), count=2)
    assert found[4] == ["palace", "bell cote"]
    assert found[7][0] == "honeycomb"  # a flower, which Lite2 takes for one


def test_a_name_is_that_of_the_mean_probability():
    """Two images sure of different classes, a third less sure of the second: the second wins."""
    kernel, _ = pretrained.lite2_classifier()
    toward = 0.3 * kernel.T / np.linalg.norm(kernel, axis=0)[:, None]
    features = np.stack([50 * toward[3], 50 * toward[9], 20 * toward[9]])
    names = suggestions.class_names()
    assert suggestions.suggest(features, np.zeros(3, int), count=1) == {0: [names[9]]}


def test_there_are_a_thousand_names_and_none_is_empty():
    names = suggestions.class_names()
    assert len(names) == 1000
    assert all(name == name.strip() and name for name in names)
