"""Every method finds the groups of made images that an untrained network does not find."""

import jax
import numpy as np

from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.metrics import partition
from cluster_jax.training import state as states
from cluster_jax.training.step import make_step
from tests import toy
from tests.methods import cases

GROUPS, IMAGES, BATCH = 4, 256, 64
STEPS = {False: 150, True: 300}  # at most; with NRCC twice as many
FIRST, EVERY, LEARNED = 60, 20, 0.95
# What fits the number of images, groups and steps.
CHANGES = {
    "byol": {"final_decay": 0.95},
    "moco": {"queue": 128},
    "kernel_infonce on moco": {"queue": 128},
    "ncc": {
        "n_clusters": GROUPS, "final_decay": 0.95, "warmup": "40 steps", "update_every": "50 steps",
    },
    "pcl": {
        "queue": 128, "n_prototypes": (8, 16), "warmup": "40 steps", "update_every": "50 steps",
    },
    "cueco": {
        "n_clusters": GROUPS, "queue": 128, "warmup": "40 steps", "update_every": "1000 steps",
    },
}  # fmt: skip


def _file(folder):
    """Each group is a random pattern and its mirror image: only the augmentation says so."""
    rng = np.random.default_rng(0)
    half = np.arange(toy.SIDE**2) < toy.SIDE**2 // 2
    patterns = [rng.permutation(half).reshape(toy.SIDE, toy.SIDE) for _ in range(GROUPS)]
    labels = (np.arange(IMAGES) % GROUPS).astype(np.int32)
    images = rng.integers(0, 30, (IMAGES, toy.SIDE, toy.SIDE, 1))
    for image, label, mirrored in zip(images, labels, rng.random(IMAGES) < 0.5, strict=True):
        pattern = patterns[label][:, ::-1] if mirrored else patterns[label]
        image[..., 0] += 200 * pattern
    np.savez(folder / "mirrored.npz", images=images.astype(np.uint8), labels=labels)
    return folder / "mirrored.npz"


def _run(folder, method, nrcc):
    made = toy.config(
        _file(folder),
        network={"width": 8, "projector": {"hidden": 64, "out": 32}},
        optimizer={"learning_rate": 3e-3, "warmup": "20 steps"},
        train={"batch_size": BATCH, "duration": f"{STEPS[nrcc]} steps"},
        augment={"flip": 0.5, "noise": 0.1},
    )
    made.augment.affine.update(rotation=0.0, scale=0.0, shift=0.0, shear=0.0)
    made = cases.use(made, method)
    made.method.update(CHANGES.get(method, {}))
    if made.network.predictor is not None:
        made.network.predictor.hidden = 64
    made.nrcc.weight = 0.5 * nrcc
    return toy.built(made)


def _accuracy(run, state, embed):
    features = embed(state.params, state.model_state, run.dataset.images)["projection"]
    labels = kmeans(features, GROUPS, metric="spherical", n_init=5, mesh=run.mesh).labels
    return partition.accuracy(run.dataset.labels, labels)


@cases.parametrize((), cases.TWO_VIEWS)
def test_mirror_images_come_together(tmp_path, method, nrcc):
    run = _run(tmp_path, method, nrcc)._replace(mesh=states.make_mesh(1))
    embed = jax.jit(run.embed)
    state = states.create(run.method, run.optimizer, seed=0, shape=run.shape, mesh=run.mesh)
    assert _accuracy(run, state, embed) < 0.85
    step = make_step(run.method, run.optimizer, run.mesh)
    resident = jax.device_put(run.dataset.images, states.replicated(run.mesh))
    for i in range(STEPS[nrcc]):
        state = cases.refreshed(run, state, run.mesh, i)
        index = np.random.default_rng(i).permutation(IMAGES)[:BATCH].astype(np.int32)
        index = jax.device_put(index, states.sharded(run.mesh))
        state, _ = step(state, {"index": index}, resident)
        # With some clusters behind it where a method has them.
        if i >= FIRST and i % EVERY == 0 and _accuracy(run, state, embed) >= LEARNED:
            return
    assert _accuracy(run, state, embed) >= LEARNED
