"""Distances of views from their image: NRCC's Tables 1 and 13.

After a training with a target network, 1,000 training images are embedded by it, as they are and
transformed: by one augmentation each, and by SGHMC from the image itself toward it. The distance is
that of unit projections, which the paper leaves open. Its "random horizontal rotation" is read as a
flip. The digits have noise, shear, rotation and shift in place of jitter, grayscale, flip and crop.
"""

import dataclasses

import jax
import jax.numpy as jnp
from etils import epath

from cluster_jax import samplers
from cluster_jax.core import ops
from cluster_jax.data import views
from cluster_jax.data.images import subset
from cluster_jax.data.views import AffineConfig, AugmentConfig
from cluster_jax.nets import network
from cluster_jax.runs import build
from cluster_jax.runs.config import RunConfig
from cluster_jax.training import checkpoint

PAIRS, ITERATIONS = 1_000, (1, 3, 5, 7, 9, 11, 13)


def augmentations(config: AugmentConfig) -> dict[str, AugmentConfig]:
    """Each augmentation of a training alone, applied to every image."""
    off = {"jitter": None, "blur": None, "solarize": None, "affine": None, "noise": 0.0}
    none = dataclasses.replace(config, crop=None, flip=0.0, grayscale=0.0, **off)
    if config.crop is not None:
        jitter = config.jitter and dataclasses.replace(config.jitter, probability=1.0)
        changes = {
            "jitter": {"jitter": jitter},
            "grayscale": {"grayscale": 1.0},
            "rotation": {"flip": 1.0},
            "crop": {"crop": config.crop},
        }
    else:
        affine, still = config.affine, AffineConfig(0.0, 0.0, 0.0, 0.0)
        assert affine is not None
        changes = {
            "jitter": {"noise": config.noise},
            "grayscale": {"affine": dataclasses.replace(still, shear=affine.shear)},
            "rotation": {"affine": dataclasses.replace(still, rotation=affine.rotation)},
            "crop": {"affine": dataclasses.replace(still, shift=affine.shift)},
        }
    return {name: dataclasses.replace(none, **change) for name, change in changes.items()}


def measure(config: RunConfig, workdir: epath.Path) -> dict[str, dict[str, dict[str, float]]]:
    """Mean and standard deviation of the distances of each kind of view."""
    built = build.build_run(config)
    training = built.training
    state = checkpoint.read(
        workdir / checkpoint.FOLDER, build.abstract_state(training), training.total_steps
    )
    target, forward = state.model_state.target, network.make(config.network).forward
    images = jnp.asarray(training.dataset.fetch(subset(training.dataset.size, PAIRS)))
    keys = jax.random.split(jax.random.key(config.seed), len(images))
    # With the measured mean and standard deviation.
    augment = built.config.augment
    clean = jax.vmap(views.make(augment).clean)(images)

    def project(x: jax.Array) -> jax.Array:
        return forward(target.params, target.batch_stats, x, train=False, axis=None).projection

    project = jax.jit(project)
    parents = project(clean)
    settings = dataclasses.asdict(config.nrcc.sghmc)
    del settings["iterations"]
    potential = samplers.similarity_potential(project, parents)
    sghmc = samplers.sghmc(potential, **settings)

    made = {
        name: jax.vmap(views.make(alone).view)(keys, images)
        for name, alone in augmentations(augment).items()
    }
    for count in ITERATIONS:
        sample = jax.jit(lambda k, x, n=count: samplers.sample(sghmc, k, x, iterations=n)[0])
        made[f"sghmc_{count}"] = sample(keys, clean)
    found = {}
    for name, view in made.items():
        difference = ops.l2_normalize(project(view)) - ops.l2_normalize(parents)
        distances = jnp.linalg.norm(difference, axis=1)
        found[name] = {"distance": float(distances.mean()), "deviation": float(distances.std())}
    return {"views": found}
