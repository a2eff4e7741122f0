"""The section `method` of a small config for every method, and what else it needs there."""

import functools
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import pytest
from ml_collections import ConfigDict

from cluster_jax.core import mesh as meshes
from cluster_jax.data import batches
from cluster_jax.encoding import embed
from cluster_jax.training import build as builder
from cluster_jax.training import state as states
from tests import toy

KERNEL = {
    "name": "kernel_infonce", "gammas": (1.0, 2.0), "temperatures": (0.4, 0.7),
    "mixture": "kernel", "weight": 0.3, "halves": False, "queue": None, "decay": None,
    "final_decay": None,
}  # fmt: skip
# A queue of 32 wraps around after two batches of 16, and is half of the 64 images of `toy`.
METHODS = {
    "simclr": {"name": "simclr", "temperature": 0.5, "positive_in_denominator": False},
    "byol": {"name": "byol", "decay": 0.9, "final_decay": 1.0},
    "simsiam": {"name": "simsiam"},
    "barlow": {"name": "barlow", "off_diagonal": 0.005, "scale": 0.1},
    "moco": {"name": "moco", "temperature": 0.2, "queue": 32, "decay": 0.9, "final_decay": 1.0},
    "ncc": {
        "name": "ncc", "n_clusters": 20, "weight": 0.1, "temperature": 0.5, "sigma": 0.01,
        "warmup": "1 step", "update_every": "2 steps", "n_init": 2, "warm_start": True,
        "part": "whole", "decay": 0.9, "final_decay": 1.0,
    },
    "cueco": {
        "name": "cueco", "n_clusters": 5, "temperature": 0.2, "queue": 32,
        "weights": {"instance": 1.0, "centroid": 0.1, "variance": 0.01}, "centroid_decay": 0.9,
        "variance_decay": 0.9, "assign_by": "key", "warmup": "1 step", "update_every": "2 steps",
        "n_init": 2, "decay": 0.9, "final_decay": 1.0,
    },
    "pcl": {
        "name": "pcl", "temperature": 0.2, "queue": 32, "n_prototypes": (5, 9), "weight": 1.0,
        "warmup": "1 step", "update_every": "2 steps", "n_init": 2, "decay": 0.9,
        "final_decay": 1.0,
    },
    "swav": {
        "name": "swav", "n_prototypes": 6, "temperature": 0.1, "epsilon": 0.05, "iterations": 3,
        "freeze": "1 step", "small": {"count": 2, "size": None, "scale": (0.3, 0.6)},
    },
    "cc": {"name": "cc", "n_clusters": 4, "temperature": 0.5, "cluster_temperature": 0.8},
    "kernel_infonce": KERNEL,
    "kernel_infonce on moco": KERNEL
    | {"mixture": "loss", "halves": True, "queue": 32, "decay": 0.9, "final_decay": 0.9},
}  # fmt: skip
# What the rows of NCC's Table 4 add to a method: BYOL + CC, BYOL + PCL, CC + ProtoCL, of which CC's
# contrast of images is SimCLR's.
PERIOD = {"warmup": "1 step", "update_every": "2 steps", "n_init": 1}
TERMS = {
    "cc": {"n_clusters": 3, "cluster_temperature": 0.8},
    "pcl": {"temperature": 0.2, "n_prototypes": (3, 2), "weight": 0.7, **PERIOD},
    "ncc": {
        "n_clusters": 3, "weight": 0.7, "temperature": 0.5, "warm_start": True, "part": "whole",
        **PERIOD,
    },
}  # fmt: skip
# The stages of novel class discovery: no two views, so no NRCC.
STAGES = {
    "rotation": {"name": "rotation"},
    "supervised": {"name": "supervised"},
    "ncl": {
        "name": "ncl", "n_classes": 2, "threshold": None, "ramp": "4 steps",
        "consistency_weight": 5.0, "consistency": "both", "temperature": 0.05, "alpha": 0.2,
        "queue": 16, "neighbors": 3, "contrast_from": "1 step",
        "hng": {
            "count": 4, "rounds": 2, "mixing": (1 / 3, 2 / 3), "start": "2 steps",
            "variant": "added",
        },
        "head": "pairs", "update_every": "1 epoch",
        "weights": {"ce": 1.0, "bce": 1.0, "consistency": 1.0, "ncl": 1.0, "scl": 0.5},
    },
}  # fmt: skip
LABELED = {"supervised": 16, "ncl": 8}
PREDICTS = ("byol", "simsiam", "ncc", "cueco")
TARGET = ("byol", "moco", "ncc", "cueco", "pcl", "kernel_infonce on moco")


TWO_VIEWS = [(method, nrcc) for method in METHODS for nrcc in (False, True)]
# Every method, bare and with NRCC, and every stage, bare.
EVERY = [*TWO_VIEWS, *((stage, False) for stage in STAGES)]


def parametrize(default, among=EVERY):
    """A test of all these cases; those that are not in the default suite are slow."""
    each = [
        pytest.param(*case, marks=() if case in default else pytest.mark.slow) for case in among
    ]
    return pytest.mark.parametrize(("method", "nrcc"), each)


BATCH = 16


@functools.cache
def build(method, nrcc, steps=None, **network):
    """A run of a case, built once for all tests; its rate of learning ends after its steps."""
    # SGD: Adam divides by the gradient's size and so turns the rounding error of a gradient that
    # is zero (a bias before BatchNorm) into a full step.
    optimizer = {"name": "sgd", "learning_rate": 0.05}
    # With two views groups of up to 4 images fit into each of 8 devices.
    train = {"batch_size": BATCH if method in STAGES else 32}
    if steps is not None:
        train["duration"] = f"{steps} steps"
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        # Every test makes steps: they need not be traced here.
        patch.setattr(builder, "try_step", lambda *arguments: None)
        path = toy.file(pathlib.Path(folder))
        sections = {"network": {**toy.CONVOLUTIONS, **network}}
        sections |= {"optimizer": optimizer, "train": train}
        config = use(toy.config(path, **sections), method)
        if nrcc:
            config.nrcc.weight = 0.5
            # Several iterations with a strong drift: the sampler's own forward passes count too.
            config.nrcc.sghmc.iterations = 2
            config.nrcc.sghmc.normalize_gradient = True
        run = toy.built(config)
    return run._replace(dataset=run.dataset._replace(name=method))


@functools.cache
def initial(method, nrcc, seed, **network):
    """The state of a case before the first step, on the host; made once for all tests."""
    run, mesh = build(method, nrcc, **network), meshes.make(1)
    state = states.create(run.method, run.optimizer, seed=seed, shape=run.shape, mesh=mesh)
    return jax.device_get(state._replace(key=jax.random.key_data(state.key)))


def on_mesh(state, mesh):
    """A copy of a state of `initial` on the devices of a mesh: a step takes its memory."""
    state = jax.tree.map(jnp.array, state)
    key = jax.random.wrap_key_data(state.key)
    return jax.device_put(state._replace(key=key), meshes.replicated(mesh))


def embedding(run, state, mesh):
    """Features of all images for a method's refresh."""
    method = run.method._replace(kept=run.method.refresh.kept or run.method.kept)
    run_of_refresh = run.with_method(method)
    forward = embed.forward_of(run_of_refresh.embed, state.params, state.model_state, mesh)
    return embed.embed(forward, run.dataset, batch_size=32, mesh=mesh)


def refreshed(run, state, mesh, i):
    """The state with what is refreshed before step i."""
    if run.method.refresh is None or not run.method.refresh.is_due(i):
        return state
    embedded = functools.partial(embedding, run, state, mesh)
    model_state = run.method.refresh.update(state.model_state, embedded, jax.random.key(i), mesh)
    return state._replace(model_state=jax.device_put(model_state, meshes.replicated(mesh)))


def advance(run, state, step, mesh, steps):
    """The state after some steps, with the refreshes that are due before them, as in the loop."""
    resident = jax.device_put(run.dataset.images, meshes.replicated(mesh))
    for i in steps:
        state = refreshed(run, state, mesh, i)
        batch = draw(run.dataset, LABELED.get(run.dataset.name), i)
        state, metrics = step(state, jax.device_put(batch, meshes.sharded(mesh)), resident)
    return state, metrics


def draw(dataset, labeled, i, batch_size=BATCH):
    """The batch of step i."""
    stream = batches.stream(
        dataset, seed=i, batch_size=batch_size, labeled=labeled, steps=range(1),
        prefetch=1,
    )  # fmt: skip
    return next(stream)


def use(made: ConfigDict, case: str) -> ConfigDict:
    """The config with another method."""
    if case in STAGES:
        made.method = ConfigDict(STAGES[case])
        made.network.projector = None
        made.eval.features = "backbone"
        if case in LABELED:
            made.novel.classes = 2
            made.train.labeled_batch_size = LABELED[case]
        return made
    made.method = ConfigDict(METHODS[case])
    made.network.predictor = (
        ConfigDict({"hidden": 16, "init_std": None}) if case in PREDICTS else None
    )
    made.nrcc.branch = "target" if case in TARGET else "online"
    return made
