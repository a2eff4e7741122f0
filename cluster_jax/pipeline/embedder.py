"""Section `embedder`: training on features of the images, by a frozen pretrained network."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax.sharding import Mesh
from numpy.typing import NDArray

from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.data import features
from cluster_jax.data.datasets import Dataset
from cluster_jax.pipeline import parts, pretrained_features
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.config import RunConfig
from cluster_jax.pipeline.embed import embed
from cluster_jax.pipeline.parts import Parts
from cluster_jax.pipeline.pretrained_features import FrozenNetwork
from cluster_jax.pipeline.stages import Stage


def embed_images(
    stages: Sequence[Stage], fingerprint: str, guard: Callable[[], None]
) -> list[Stage]:
    """Embeds the images of a run and puts their features in place of the pending ones.

    Features are written to the workdir, and while they are made in parts, so that an interrupted
    run embeds no image twice. Without the config's section `embedder` nothing changes.

    Args:
        stages: all stages of the run; they have the same images.
        fingerprint: of the run's config and images.
        guard: raises if the workdir may not be written any longer.

    Raises:
        InputError: there is more than one process.
    """
    last = stages[-1]
    if last.built.config.embedder is None:
        return list(stages)
    if jax.process_count() > 1:
        raise InputError(
            f"embedder must be None in more than one process; got {jax.process_count()} processes: "
            "write the features with `cluster-jax embed` in one, and train on the file"
        )

    def filled(pending: Dataset, name: str) -> Dataset:
        kept = Parts(parts.folder_of(last.workdir / name), fingerprint, guard)
        return _filled(last, pending, last.workdir / name, kept)

    dataset = filled(last.built.training.dataset, workdirs.TRAIN_FEATURES)
    test = None if last.built.test is None else filled(last.built.test, workdirs.TEST_FEATURES)

    def with_features(stage: Stage) -> Stage:
        training = stage.built.training._replace(dataset=dataset)
        return stage._replace(built=stage.built._replace(training=training, test=test))

    return [with_features(stage) for stage in stages]


def _filled(last: Stage, pending: Dataset, file: epath.Path, kept: Parts) -> Dataset:
    config, images = last.built.config, pending.features_of
    assert images is not None  # the section embedder is set
    if file.exists():
        values = io.read_arrays(file)["features"]
    else:
        mesh = last.built.training.mesh
        network = make_network(config, images.shape[2], mesh, views=True)
        batch_size = config.eval.batch_size
        embedded = embed(network.forward, images, batch_size=batch_size, mesh=mesh, kept=kept)
        values = embedded["features"]
        kept.guard()
        io.write_arrays(file, {"features": values})
    parts.remove(kept.folder)
    dataset = features.of_images(images, values, config.data.cache_mb)
    return features.with_neighbors(dataset, config.feature_views.searched)


def for_new_images(config: RunConfig, channels: int, mesh: Mesh) -> Callable[[Dataset], Dataset]:
    """A function from images to their features; the identity without a section `embedder`.

    The features of an image do not depend on the others if all calls of `fetch` ask for as many.

    Args:
        config: config of the run.
        channels: of the images.
        mesh: the devices; `fetch` of the features takes multiples of their number.
    """
    if config.embedder is None:
        return lambda dataset: dataset
    network = make_network(config, channels, mesh, views=False)

    def as_features(images: Dataset) -> Dataset:
        def fetch(indices: NDArray) -> NDArray:
            pixels, index = jnp.asarray(images.fetch(indices)), jnp.asarray(indices, jnp.int32)
            rows = network.forward(pixels, index)["features"]
            return features.of_images(images, rows, cache_mb=0).fetch(np.arange(len(rows)))

        return features.pending(images, 0, 1)._replace(fetch=fetch)

    return as_features


def make_network(config: RunConfig, channels: int, mesh: Mesh, *, views: bool) -> FrozenNetwork:
    """The network of the config's section `embedder`; see `pretrained_features.make`."""
    assert config.embedder is not None
    section = config.embedder.network(config.network)
    n_views = config.embedder.views if views else 0
    return pretrained_features.make(config, section, channels, mesh, n_views)
