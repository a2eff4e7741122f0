"""Whole steps of every method equal those of `reference_step`, bare and with NRCC.

Four steps from given parameters, in float64: the first without clusters or contrast, then with
them, the moving average's decay another one in each, the queue full and written over in the last.
The steps run on two devices; the reference has the batch as one, so that a loss, a queue or a
statistic that stayed on its device would show.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cluster_jax.core import mesh as meshes
from cluster_jax.core.config import parse_section
from cluster_jax.core.queue import Queue
from cluster_jax.methods import base, ncl
from cluster_jax.methods.base import MethodContext
from cluster_jax.methods.nrcc import NRCCConfig, with_nrcc
from cluster_jax.training import state as states
from cluster_jax.training.step import make_step
from tests import toy
from tests.methods import cases, reference_step, tiny
from tests.methods import reference_losses as losses
from tests.rows import every_row

pytestmark = pytest.mark.usefixtures("x64")

STEPS, BATCH = 4, 4
EMA = {"decay": 0.6, "final_decay": 1.0}
CLUSTERED = {"n_clusters": 3, "warmup": "1 step", "update_every": "2 steps"}
CHANGES = {
    "simclr": {},
    "byol": EMA,
    "simsiam": {},
    "barlow": {},
    "moco": {**EMA, "queue": 8},
    "ncc": {**EMA, **CLUSTERED, "weight": 0.7, "sigma": 0.5},
    "cueco": {
        **EMA, **CLUSTERED, "queue": 8,
        "weights": {"instance": 1.0, "centroid": 0.7, "variance": 0.3}, "variance_decay": 0.8,
    },
    "pcl": {
        **EMA, "queue": 8, "n_prototypes": (3, 2), "weight": 0.7, "warmup": "1 step",
        "update_every": "2 steps",
    },
    "cc": {"n_clusters": 3},
    "swav": {"n_prototypes": 3, "temperature": 0.3, "epsilon": 0.2},
    "kernel_infonce": {},
    "kernel_infonce on moco": {**EMA, "queue": 8},
    "rotation": {},
    "supervised": {},
    "ncl": {
        "queue": 8, "neighbors": 2, "threshold": 0.5, "ramp": "3 steps", "consistency": "own",
        "temperature": 0.5,
        "hng": {
            "count": 2, "rounds": 2, "mixing": (1 / 3, 2 / 3), "start": "3 steps",
            "variant": "added",
        },
        "weights": {"ce": 1.0, "bce": 0.9, "consistency": 0.8, "ncl": 0.7, "scl": 0.6},
    },
}  # fmt: skip
# What the reference knows of the durations.
SINCE = {
    "ncc": {"warmup_steps": 1, "period": 2},
    "cueco": {"warmup_steps": 1, "period": 2},
    "pcl": {"warmup_steps": 1, "period": 2},
    "swav": {"frozen_steps": 1},
    "ncl": {"ramp_steps": 3, "contrast_steps": 1, "hng_steps": 3},
}
LABELED, UNLABELED = 2, 4  # rows of a batch of NCL
NRCC = {
    "weight": 0.6,
    "temperature": 0.3,
    "anchor_layer": "projection",
    "include_own_view": False,
    "branch": "online",
    "sampler": "sghmc",
    "initial_view": "own",
    "reference": "other_view",
    "resolution": None,
    "potential": "inverse",
    "sghmc": {
        "iterations": 2, "step_size": 0.5, "friction": 0.2, "noise": 0.4, "momentum": "new",
        "clip": None, "normalize_gradient": False,
    },
    "hmc": {
        "iterations": 2, "leapfrog_steps": 2, "step_size": 0.3, "clip": None,
        "normalize_gradient": False,
    },
    "monte_carlo": {"iterations": 2, "step_size": 0.3},
    "noise": {"scale": 0.3},
}  # fmt: skip
# NRCC's other choices.
VARIANTS = (
    (
        "byol",
        {"branch": "target_predictor", "anchor_layer": "prediction", "initial_view": "random"},
    ),
    ("byol", {"branch": "online", "reference": "clean"}),
    ("simclr", {"sampler": "hmc"}),
    ("simclr", {"sampler": "monte_carlo"}),
    ("simclr", {"sampler": "noise"}),
    ("simclr", {"sampler": "augment"}),
)
# Slow: with the network, predictor and queue of another case, and a loss that the bare steps have.
ALIKE = (
    "simsiam", "barlow", "ncc", "cueco", "cc", "pcl", "kernel_infonce", "kernel_infonce on moco"
)  # fmt: skip
REGULARIZED = [
    pytest.param(
        case,
        {"branch": "target"} if case in cases.TARGET else {},
        marks=pytest.mark.slow if case in ALIKE else (),
    )
    for case in cases.METHODS
]


# Slow: what NRCC is added to below.
COMPOSED = [
    ("byol", "cc"), ("simclr", "ncc"), pytest.param("byol", "pcl", marks=pytest.mark.slow)
]  # fmt: skip


def build(case, regularizer, changes, term=None):
    """The method, and its values as the reference reads them."""
    given = {**cases.METHODS, **cases.STAGES}[case] | CHANGES[case] | changes
    predicts, classifies = case in cases.PREDICTS, case in cases.STAGES
    parts = tiny.PARTS if predicts else tiny.PARTS[: 1 if classifies else 2]
    labeled = {"supervised": BATCH, "ncl": LABELED}.get(case)
    context = MethodContext(
        tiny.network(parts), tiny.AUGMENT, shuffle=False, images=tiny.IMAGES,
        total_steps=reference_step.TOTAL, total_updates=reference_step.TOTAL, steps_per_epoch=3,
        batch_size=LABELED + UNLABELED if case == "ncl" else BATCH, labeled_batch_size=labeled,
        known_classes=2 if labeled else 0,
    )  # fmt: skip
    values = {key: value for key, value in given.items() if key != "name"}
    method = base.build(given["name"], base.parse(given["name"], values), context)
    if term is not None:
        added = base.build_term(term, base.parse_term(term, cases.TERMS[term]), context)
        method = base.with_term(method, added)
        given["term"] = {"name": term, **cases.TERMS[term], **SINCE.get(term, {})}
    if regularizer is not None:
        method = with_nrcc(method, parse_section(NRCCConfig, "nrcc", regularizer))
    elif isinstance(method, base.TwoView):
        method = base.as_method(method)
    return method, {**given, **SINCE.get(case, {})}


def embedded(case, method, state):
    """Features of all images by the network that a method keeps."""
    parts = tiny.PARTS if case in cases.PREDICTS else tiny.PARTS[: 1 if case in cases.STAGES else 2]
    pixels = jnp.asarray(tiny.images()[0])
    network = tiny.network(parts)
    return base.embed(method, network, tiny.clean, state.params, state.model_state, pixels)


def draw(case, step):
    """The batch of a step."""
    pixels, labels = tiny.images()
    order = np.random.default_rng(step).permutation(tiny.IMAGES).astype(np.int32)

    def part(index, *, labeled):
        rows = {"index": index, "image": pixels[index]}
        return {**rows, "label": labels[index]} if labeled else rows

    if case == "supervised":
        return {"labeled": part(order[:BATCH], labeled=True)}
    if case == "ncl":
        known, new = order[:LABELED], order[LABELED : LABELED + UNLABELED]
        return {"labeled": part(known, labeled=True), "unlabeled": part(new, labeled=False)}
    return part(order[:BATCH], labeled=False)


def plain(state):
    """The values of a state as the reference names them."""

    def field(value):
        if not hasattr(value, "_asdict"):
            return value
        value = value._asdict()
        if "place" in value and not isinstance(value["rows"], dict):
            value["rows"] = {"z": value["rows"]}
        return value

    fields = {name: field(value) for name, value in state.model_state._asdict().items()}
    if "clusterings" in fields:
        fields["clusterings"] = [field(value) for value in fields["clusterings"]]
    return jax.tree.map(np.array, {"params": state.params, **fields})


def refreshed(case, method, state, step):
    """The state after the host's part before a step, as in the loop."""
    if method.refresh is None or not method.refresh.is_due(step):
        return state

    def embedding():
        by = method._replace(kept=method.refresh.kept or method.kept)
        return jax.device_get(embedded(case, by, state))

    model_state = method.refresh.update(state.model_state, embedding, jax.random.key(step), None)
    return state._replace(model_state=model_state)


def compare(real, wanted, step):
    assert jax.tree.structure(real) == jax.tree.structure(wanted)
    for (path, x), y in zip(jax.tree.leaves_with_path(real), jax.tree.leaves(wanted), strict=True):
        name = f"{jax.tree_util.keystr(path)} of step {step}"
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-10, err_msg=name)


def check(case, regularizer, term=None, devices=2, **changes):
    """Four steps of the method beside four of the reference."""
    method, values = build(case, regularizer, changes, term)
    optimizer = optax.sgd(reference_step.LEARNING_RATE)
    mesh = meshes.make(devices)
    state = toy.wide(states.initial(method, optimizer, seed=1, shape=(tiny.SIDE, tiny.SIDE, 1)))
    if "ncc" in (case, term):  # Labels of one cluster alone would hide a warm-up that is forgotten.
        labels = jnp.arange(len(state.model_state.labels), dtype=jnp.int32) % 3
        state = state._replace(model_state=state.model_state._replace(labels=labels))
    state = state._replace(key=jax.random.key(1, impl=tiny.KEYS))
    state = jax.device_put(state, meshes.replicated(mesh))
    # A copy: a step takes the memory of the state it is given.
    wanted, key = plain(state), jnp.copy(state.key)
    for part, old in wanted.get("target", {}).get("params", {}).items():
        np.testing.assert_array_equal(old["kernel"], wanted["params"][part]["kernel"])
    step = make_step(method, optimizer, mesh)
    for i in range(STEPS):
        state = jax.device_put(refreshed(case, method, state, i), meshes.replicated(mesh))
        wanted = reference_step.refreshed(values, wanted, i, tiny.images()[0])
        batch = draw(case, i)
        step_key = jax.random.fold_in(key, i)
        arguments = wanted, batch, i, step_key
        if case == "ncl":
            loss, wanted = reference_step.ncl_step(values, *arguments)
        elif case in cases.STAGES:
            loss, wanted = reference_step.classifier_step(values, *arguments)
        else:
            loss, wanted = reference_step.two_view_step(values, regularizer, *arguments)
        state, metrics = step(state, jax.device_put(batch, meshes.sharded(mesh)), None)
        compare(jax.device_get(metrics["loss"]), loss, i)
        compare(plain(state), wanted, i)
    return method, state


@pytest.fixture(autouse=True)
def given_kmeans(monkeypatch):
    """Both sides cluster by one plain k-means: what is compared is what it gets and what becomes
    of its result."""
    monkeypatch.setattr(base, "kmeans", tiny.kmeans)


@pytest.mark.parametrize("case", CHANGES)
def test_bare(case):
    method, state = check(case, None)
    features = embedded(case, method, state)
    final = plain(state)
    kept = final["target"] if case in ("byol", "ncc") else final
    images = tiny.clean(tiny.images()[0])
    representations, projections = tiny.embed(kept["params"], kept["batch_stats"], images)
    wanted = {"backbone": representations, "projection": projections}
    if case == "cc":
        wanted["clusters"] = reference_step.assigned(final["params"], representations)
    if case in cases.STAGES:
        del wanted["projection"]
        for head in final["params"]["heads"]:
            wanted[head] = reference_step.classify(final["params"], head, representations)
    compare(features, wanted, "the last")


@pytest.mark.parametrize(("case", "choices"), REGULARIZED)
def test_with_nrcc(case, choices):
    check(case, NRCC | choices)


@pytest.mark.parametrize(("case", "choices"), VARIANTS)
def test_other_choices_of_nrcc(case, choices):
    check(case, NRCC | choices)


def test_an_e_step_without_a_warm_start():
    """The last centers are not where it starts from."""
    check("ncc", None, warm_start=False)


@pytest.mark.parametrize(("case", "term"), COMPOSED)
def test_with_the_term_of_another_method(case, term):
    method, state = check(case, None, term, devices=4)
    if term == "cc":  # by the network that BYOL keeps
        features = embedded(case, method, state)
        wanted = reference_step.assigned(plain(state)["params"], np.array(features["backbone"]))
        compare(features["clusters"], wanted, "the last")


@pytest.mark.parametrize(("case", "term"), [("byol", "pcl")])
def test_with_a_term_and_nrcc(case, term):
    check(case, NRCC | {"branch": "target" if case == "byol" else "online"}, term)


@every_row("variant", ["removed", "replacing", "labeled", "unlabeled", "nearest"])
def test_variants_of_hng(variant):
    """Figure 4 of NCL: V1, V2, V4, V5, V6. In the term that they are of, at given queues.

    The bare steps have the paper's own, its schedule and what fills the queues.
    """
    rng, hng = np.random.default_rng(7), CHANGES["ncl"]["hng"] | {"variant": variant}
    given = cases.STAGES["ncl"] | CHANGES["ncl"] | {"hng": hng}
    config = base.parse("ncl", {key: value for key, value in given.items() if key != "name"})
    unlabeled, labeled = (losses.unit(rng.normal(size=(8, 4))) for _ in range(2))
    queues = (
        Queue({"z": labeled, "label": np.zeros(8, np.int32)}, np.int32(0), np.int32(6)),
        Queue(unlabeled, np.int32(0), np.int32(7)),
    )
    state = ncl.NCLState(None, *queues, None, None)
    known, keys = np.zeros(LABELED, np.int32), jax.random.split(jax.random.key(2), UNLABELED)
    z, other = rng.normal(size=(2, LABELED + UNLABELED, 4))

    def loss(z, use_hng):
        views = (ncl._View(*[None] * 4, x) for x in (z, other))
        return ncl._contrast(config, use_hng, state, *views, known, keys)["ncl"]

    both = jax.jit(jax.value_and_grad(loss))
    for step in (2, 3):  # without the variant, and with it

        def wanted(z, step=step):
            rows, constants = (losses.unit(x)[LABELED:] for x in (z, other))
            values = {**given, **SINCE["ncl"]}
            return reference_step.neighborhood(
                values, step, rows, constants, [*unlabeled[:7]], [*labeled[:6]], keys
            )

        value, slope = both(z, step >= SINCE["ncl"]["hng_steps"])
        compare(value, wanted(z), step)
        compare(slope, reference_step.gradient(wanted, z), step)
