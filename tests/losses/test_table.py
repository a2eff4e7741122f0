"""Every exported loss in every way to run it: the table of `experiments/guide/losses.md`."""

import collections
import dataclasses
import functools
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from cluster_jax import losses
from cluster_jax.core.checks import InputError
from tests.rows import every_row

ROWS, WHOLE = PartitionSpec("data"), PartitionSpec()
RNG = np.random.default_rng(0)
PARAMS = RNG.normal(size=(6, 6))
X, Y, Z = RNG.normal(size=(3, 8, 6))
QUEUE, CENTERS = RNG.normal(size=(2, 10, 6))
QUEUE_LABELS, FILLED = np.arange(10, dtype=np.int32) % 3, np.int32(7)
UNIT = CENTERS / np.linalg.norm(CENTERS, axis=1, keepdims=True)
LABELS = np.array([0, 1, 2, 1, 0, 2, 2, -1], np.int32)
BATCH = {"x": X, "y": Y, "z": Z, "labels": LABELS, "index": np.arange(8, dtype=np.int32)}
HALVES = losses.Kernel(
    temperatures=(0.5, 0.7), gammas=(0.5, 2.0), mixture="loss", weight=0.3, halves=True
)
LAPLACE = losses.Kernel(gammas=(1.0, 0.5), temperatures=(0.5, 0.7), mixture="kernel", weight=0.4)


def _soft(x):
    return jax.nn.softmax(x) if jnp.issubdtype(x.dtype, jnp.floating) else x


def _keys(index):
    return jax.vmap(lambda i: jax.random.fold_in(jax.random.key(0), i))(index)


THREE = losses.Mixing(3)
LEFT_OUT = losses.HardNegatives(left_out=4)
# What a loss may be of: rows `[rows, 6]` of this device, and what is no row of the batch.
Given = collections.namedtuple("Given", "a b c labels index axis queue unit spread")


def given(a, b, c, labels, index, axis):
    others = (jnp.asarray(x, a.dtype) for x in (QUEUE, UNIT, np.linspace(0.2, 0.5, 10)))
    return Given(a, b, c, labels, index, axis, *others)


def _bce(g, threshold=0.3):
    same = losses.similar(g.a, n_classes=3, threshold=threshold, axis=g.axis)
    return losses.pairwise_bce(same, _soft(g.a), _soft(g.b), axis=g.axis)


def _neighborhood(g):
    negatives = losses.hard_negatives(
        _keys(g.index), g.a, g.queue, FILLED, g.queue[::-1], FILLED, THREE
    )
    return losses.neighborhood_contrast(g.a, g.b, g.queue, FILLED, negatives, losses.Targets(2))


def _proto_cl(g):
    sampled = losses.positive_samples(_keys(g.index), g.a)
    (mu, filled), (target, _) = (
        losses.prototypes(z, g.labels, n_clusters=4, axis=g.axis) for z in (sampled, g.b)
    )
    return losses.proto_cl(mu, target, filled)


def _proto_cl_views(g, n_clusters=20, part="whole"):
    pairs = (g.a, g.b), (g.a, g.c)
    return losses.proto_cl_views(*pairs, g.labels, n_clusters=n_clusters, part=part, axis=g.axis)


LOSSES = {
    "barlow_twins": lambda g: losses.barlow_twins(g.a, g.b, axis=g.axis),
    "byol": lambda g: losses.byol(g.a, g.b),
    "byol_views": lambda g: losses.byol_views((g.a, g.b), (g.a, g.c)),
    "centroid_contrast": lambda g: losses.centroid_contrast(g.a, g.unit, g.labels),
    "clip": lambda g: losses.clip(g.a, g.b, axis=g.axis),
    "cluster_contrast": lambda g: losses.cluster_contrast(_soft(g.a), _soft(g.b), axis=g.axis),
    "consistency": lambda g: losses.consistency(g.a, g.b),
    "cross_entropy": lambda g: losses.cross_entropy(g.a, g.labels),
    "entropy_deficit": lambda g: losses.entropy_deficit(_soft(g.a), axis=g.axis),
    "info_nce": lambda g: losses.info_nce(g.a / 3, g.unit, g.labels, temperature=0.3),
    "info_nce_queue": lambda g: losses.info_nce_queue(g.a, g.b, g.queue, FILLED),
    "info_nce_views": lambda g: losses.info_nce_views(g.a, g.b, axis=g.axis),
    "kernel_clip": lambda g: losses.kernel_clip(g.a, g.b, kernel=LAPLACE, axis=g.axis),
    "kernel_info_nce_queue": lambda g: losses.kernel_info_nce_queue(
        g.a, g.b, g.queue, FILLED, kernel=LAPLACE
    ),
    "kernel_info_nce_views": lambda g: losses.kernel_info_nce_views(
        g.a, g.b, kernel=LAPLACE, axis=g.axis
    ),
    "neighborhood_contrast": _neighborhood,
    "nrcc": lambda g: losses.nrcc(g.a, g.b, g.c, axis=g.axis),
    "nrcc_views": lambda g: losses.nrcc_views(g.a, g.b, g.c, axis=g.axis),
    "pairwise_bce": _bce,
    "proto_cl": _proto_cl,
    "proto_cl_views": _proto_cl_views,
    "prototype_contrast": lambda g: losses.prototype_contrast(g.a, g.unit, g.labels, g.spread),
    "supervised_contrast": lambda g: losses.supervised_contrast(
        g.a, g.b, g.labels, g.queue, QUEUE_LABELS, FILLED
    ),
    "swapped_prediction": lambda g: losses.swapped_prediction((g.a, g.b, g.c), axis=g.axis),
    "variance_loss": lambda g: losses.variance_loss(g.a, g.unit, g.spread, g.labels),
}
# Other values of what changes the program, in the ways that are always checked.
VARIANTS = {
    "info_nce_views, positive left out": lambda g: losses.info_nce_views(
        g.a, g.b, positive_in_denominator=False, axis=g.axis
    ),
    "kernel_clip, halves": lambda g: losses.kernel_clip(g.a, g.b, kernel=HALVES, axis=g.axis),
    "kernel_info_nce_views, halves": lambda g: losses.kernel_info_nce_views(
        g.a, g.b, kernel=HALVES, axis=g.axis
    ),
    "nrcc, own view": lambda g: losses.nrcc(g.a, g.b, g.c, include_own_view=True, axis=g.axis),
    "pairwise_bce, a share of the pairs": lambda g: _bce(g, None),
    "proto_cl_views, alignment": lambda g: _proto_cl_views(g, 4, "alignment"),
    "proto_cl_views, uniformity": lambda g: _proto_cl_views(g, 4, "uniformity"),
}
ALL = LOSSES | VARIANTS
# Exported, but no loss of rows: schedules, records, parts of the losses above, one in NumPy.
UNNAMED = {
    "ramp", "Kernel", "HardNegatives", "Mixing", "Targets", "concentrations",
    "sinkhorn_codes", "target_weights"
}  # fmt: skip
PARTS = UNNAMED | {"hard_negatives", "positive_samples", "prototypes", "similar"}


def test_no_loss_is_left_out():
    assert {*LOSSES, *PARTS} == set(dir(losses))


def test_the_guide_names_every_loss_and_way():
    page = (pathlib.Path(losses.__file__).parents[2] / "experiments/guide/losses.md").read_text()
    named = set(re.findall(r"`(\w+)`", page.split("The losses: ")[1].split("\n\n")[0]))
    assert named == {*LOSSES, *PARTS} - UNNAMED
    tested = (
        "one device, check_vma, gradient inside, explicit mesh, automatic, vmap, pmap, bfloat16"
    )
    for way in (*tested.split(", "), "NaN", "wrong rows"):
        assert way in page


def of_params(name):
    """The loss as a function of parameters, a batch and an axis."""

    def loss(params, batch, axis):
        a, b, c = (jnp.tanh(batch[view] @ params) for view in ("x", "y", "z"))
        return ALL[name](given(a, b, c, batch["labels"], batch["index"], axis))

    return loss


def all_losses(run, params, batch, names=ALL):
    """Name -> value and gradient of every loss by one way to run them, compiled at once."""
    return jax.jit(lambda p, b: {name: run(of_params(name), p, b) for name in names})(params, batch)


def one_device(loss, params, batch):
    return jax.value_and_grad(lambda p: loss(p, batch, None))(params)


def mapped(body, check_vma):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    return jax.shard_map(
        body, mesh=mesh, in_specs=(WHOLE, ROWS), out_specs=WHOLE, check_vma=check_vma
    )


def outside(check_vma):
    """`jax.grad` of the mean over the devices, around `jax.shard_map`."""

    def run(loss, params, batch):
        body = mapped(lambda p, b: lax.pmean(loss(p, b, "data"), "data"), check_vma)
        return jax.value_and_grad(body)(params, batch)

    return run


def inside_mean(loss, params, batch):
    """Inside, parameters equal on all devices: the mean belongs to what is differentiated."""
    mean = jax.value_and_grad(lambda p, b: lax.pmean(loss(p, b, "data"), "data"))
    return mapped(mean, True)(params, batch)


def inside_varying(loss, params, batch):
    """Inside, parameters that vary: each device differentiates its own loss, one mean follows."""

    def body(params, batch):
        params = lax.pcast(params, "data", to="varying")

        def own(p):
            value = loss(p, batch, "data")
            varies = "data" in jax.typeof(value).manual_axis_type.varying
            return value if varies else lax.pcast(value, "data", to="varying")

        return lax.pmean(jax.value_and_grad(own)(params), "data")

    return mapped(body, True)(params, batch)


def own_then_mean(loss):
    """Without types of variance: the same on every device, one mean of value and gradient."""

    def body(params, batch):
        return lax.pmean(jax.value_and_grad(lambda p: loss(p, batch, "data"))(params), "data")

    return body


def inside_off(loss, params, batch):
    return mapped(own_then_mean(loss), False)(params, batch)


def parts(batch):
    return jax.tree.map(lambda x: x.reshape(2, 4, *x.shape[1:]), batch)


def vmap_outside(loss, params, batch):
    each = jax.vmap(lambda p, b: loss(p, b, "data"), in_axes=(None, 0), axis_name="data")
    return jax.value_and_grad(lambda p: jnp.mean(each(p, parts(batch))))(params)


def vmap_inside(loss, params, batch):
    run = jax.vmap(own_then_mean(loss), in_axes=(None, 0), axis_name="data")
    return jax.tree.map(lambda x: x[0], run(params, parts(batch)))


def on_mesh(kind):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(kind,))
    return (
        jax.device_put(PARAMS, NamedSharding(mesh, WHOLE)),
        jax.device_put(BATCH, NamedSharding(mesh, ROWS)),
    )


WAYS = {
    "check_vma": outside(True), "check_vma off": outside(False), "inside, mean": inside_mean,
    "inside, varying": inside_varying, "inside, check_vma off": inside_off, "vmap": vmap_outside,
    "vmap, inside": vmap_inside,
}  # fmt: skip


def own_mean_by_pmap(params, batch):
    def body(params, batch):
        return {name: own_then_mean(of_params(name))(params, batch) for name in ALL}

    got = jax.pmap(body, axis_name="data", in_axes=(None, 0))(params, parts(batch))
    return jax.tree.map(lambda x: x[0], got)


# Name in the guide -> value and gradient of every loss, of two devices.
RUNS = {way: functools.partial(all_losses, run, PARAMS, BATCH) for way, run in WAYS.items()}
RUNS |= {
    "explicit mesh": lambda: all_losses(one_device, *on_mesh(AxisType.Explicit)),
    "automatic": lambda: all_losses(one_device, *on_mesh(AxisType.Auto)),
    "pmap": lambda: own_mean_by_pmap(PARAMS, BATCH),
}


@functools.cache
def results(way):
    with jax.enable_x64(True):
        run = RUNS.get(way, lambda: all_losses(one_device, PARAMS, BATCH))
        return jax.device_get(run())


def equals_one_device(name, way):
    (got, slope), (want, want_slope) = results(way)[name], results("one device")[name]
    assert np.isfinite(want)
    np.testing.assert_allclose(got, want, rtol=1e-10)
    np.testing.assert_allclose(slope, want_slope, rtol=1e-8, atol=1e-10)


def value(name, a, b, c, labels):
    return LOSSES[name](given(a, b, c, labels, np.arange(len(a), dtype=np.int32), None))


def views():
    return [np.tanh(view @ PARAMS).astype(np.float32) for view in (X, Y, Z)] + [LABELS]


@functools.cache
def used(name):
    """Which of a, b, c and the labels the value of a loss depends on."""
    first = value(name, *views())

    def depends(i):
        changed = views()
        changed[i] = (
            changed[i] ** 2 + np.arange(6, dtype=np.float32) if i < 3 else np.roll(LABELS, 1)
        )
        return not np.isclose(value(name, *changed), first, rtol=1e-5)

    return [i for i in range(4) if depends(i)]


def bfloat16_in_float32_out(name, way):
    half = [jnp.asarray(x, jnp.bfloat16) for x in views()[:3]]
    got = value(name, *half, LABELS)
    want = value(name, *(x.astype(jnp.float32) for x in half), LABELS)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, want, rtol=0.02)


def nan_in_nan_out(name, way):
    for i in set(used(name)) - {3}:
        rows = views()
        rows[i][0] = np.nan
        assert np.isnan(value(name, *rows)), i


def _refused(name, rows):
    with pytest.raises(InputError, match="must be"):
        value(name, *rows)


def wrong_rows_are_refused(name, way):
    assert 0 in used(name)
    for i in used(name):
        _refused(name, [x[:0] for x in views()])
        for change in (lambda x: x[:3], lambda x: np.concatenate([x, x]), lambda x: x[None]):
            rows = views()
            rows[i] = change(rows[i])
            if len(used(name)) > 1 or rows[i].ndim != views()[i].ndim:
                _refused(name, rows)
        rows = views()
        rows[i] = rows[i].astype(np.int32 if i < 3 else np.float32)
        _refused(name, rows)


CHECKS = dict.fromkeys(("one device", *RUNS), equals_one_device)
CHECKS |= {"bfloat16": bfloat16_in_float32_out, "NaN": nan_in_nan_out}
CHECKS |= {"wrong rows": wrong_rows_are_refused}
# A program of all losses takes eight seconds to compile. Always checked are a few losses, and all
# in the steps of the methods, which are "inside, varying".
SLOW = {*RUNS}
# One of each way in which a loss reduces over devices: a mean of values, of statistics; rows that
# are gathered, with and without this device's places among them; sums of labels that are integers
# and shares; labels that are scattered; sums until they are balanced.
FEW = (
    "byol", "barlow_twins", "cluster_contrast", "info_nce_views, positive left out", "nrcc_views",
    "kernel_clip, halves", "pairwise_bce", "proto_cl", "proto_cl_views", "swapped_prediction",
    "supervised_contrast",
)  # fmt: skip


@functools.cache
def cell(name, way):
    """ "yes" where a loss passes the check of a way to run it, else what is wrong."""
    try:
        CHECKS[way](name, way)
    except (AssertionError, pytest.fail.Exception) as error:
        return f"no: {error}"
    return "yes"


@pytest.mark.parametrize(
    "way", [pytest.param(w, marks=pytest.mark.slow) if w in SLOW else w for w in CHECKS]
)
def test_every_loss_in_every_way(way):
    names = ALL if CHECKS[way] is equals_one_device else LOSSES
    assert {name: cell(name, way) for name in names} == dict.fromkeys(names, "yes")


def test_few_losses_by_the_gradient_of_a_mean_over_devices(x64):
    found = jax.device_get(all_losses(WAYS["check_vma"], PARAMS, BATCH, FEW))
    for name in FEW:
        want, want_slope = results("one device")[name]
        np.testing.assert_allclose(found[name][0], want, rtol=1e-10, err_msg=name)
        np.testing.assert_allclose(found[name][1], want_slope, 1e-8, 1e-10, err_msg=name)


A, B, C, _ = views()
GIVEN = given(A, B, C, LABELS, BATCH["index"], None)
KEYS, NO = jax.random.split(jax.random.key(0), 8), np.int32(0)
GENERATED = jnp.linspace(-1, 1, 24, dtype=jnp.float32).reshape(8, 3)


def _of_negatives(cosines):
    negatives = losses.HardNegatives(cosines, jnp.ones_like(cosines, bool))
    return losses.neighborhood_contrast(A, B, C, NO, negatives, losses.Targets(2))


def _of_generated(queue, labeled_queue, labeled_filled=FILLED, **settings):
    negatives = losses.hard_negatives(
        _keys(BATCH["index"]),
        A,
        queue,
        FILLED,
        labeled_queue,
        labeled_filled,
        dataclasses.replace(THREE, **settings),
    )
    return jnp.where(negatives.keep, negatives.similarities, 0).sum()


# What is no row of the batch: name -> (the loss as a function of an array, the array).
OF_QUEUE = ("info_nce_queue", "kernel_info_nce_queue", "supervised_contrast")
OF_UNIT = ("centroid_contrast", "info_nce", "prototype_contrast", "variance_loss")
ELSEWHERE = {
    **{n: (lambda x, n=n: LOSSES[n](GIVEN._replace(queue=x)), QUEUE) for n in OF_QUEUE},
    **{n: (lambda x, n=n: LOSSES[n](GIVEN._replace(unit=x)), UNIT) for n in OF_UNIT},
    "hard_negatives, queue": (lambda q: _of_generated(q, QUEUE), CENTERS),
    "hard_negatives, labeled": (lambda q: _of_generated(CENTERS, q), QUEUE),
    "hard_negatives, random": (lambda q: _of_generated(q, QUEUE, entries="random"), CENTERS),
    "hard_negatives, nearest": (lambda q: _of_generated(CENTERS, q, partners="nearest"), QUEUE),
    "neighborhood_contrast": (
        lambda q: losses.neighborhood_contrast(A, B, q, FILLED, None, losses.Targets(2)), QUEUE
    ),
    "neighborhood_contrast, left out": (
        lambda q: losses.neighborhood_contrast(A, B, q, FILLED, LEFT_OUT, losses.Targets(2)),
        QUEUE,
    ),
    "neighborhood_contrast, negatives": (_of_negatives, GENERATED),
    "proto_cl": (lambda u: losses.proto_cl(u, u[::-1], jnp.arange(10) < 7), UNIT),
    "sinkhorn_codes": (lambda s: losses.sinkhorn_codes(s).sum(), A),
}  # fmt: skip


@every_row("name", ELSEWHERE)
def test_nan_in_a_queue_a_center_or_a_negative_stays_nan(name):
    loss, array = ELSEWHERE[name]
    array = np.array(array, np.float32)
    assert np.isfinite(loss(array))
    for where in ((0, 0), (1, 1)):
        changed = array.copy()
        changed[where] = np.nan
        assert np.isnan(loss(changed)), where


@every_row("name", [name for name, (_, x) in ELSEWHERE.items() if x is QUEUE])
def test_nan_in_a_slot_without_an_entry_is_not_seen(name):
    loss, queue = ELSEWHERE[name]
    queue = queue.astype(np.float32)
    changed = queue.copy()
    changed[FILLED:] = np.nan
    np.testing.assert_array_equal(loss(changed), loss(queue))


def _kernel(**changes):
    good = {"gammas": (1.0, 2.0), "temperatures": (0.4, 0.7), "mixture": "loss", "weight": 0.5}
    return losses.Kernel(**good | changes)


def _hard(**changes):
    negatives = losses.hard_negatives(
        KEYS, A, C, FILLED, C, FILLED, losses.Mixing(**{"count": 2} | changes)
    )
    return losses.neighborhood_contrast(A, B, C, NO, negatives, losses.Targets(2))


# One of each kind of refusal, and those of one loss alone.
REFUSED = [
    (lambda: losses.nrcc_views(A, B, C[:3]), "c must be float[rows, d] with rows = 8"),
    (lambda: losses.barlow_twins(A > 0, B), "a must be float[rows, d]; got bool[8,6]"),
    (lambda: losses.byol(A.tolist(), B), "predictions must be an array float[rows, d]"),
    (lambda: losses.byol_views(A, (A, B)), "predictions_pair must be a pair of arrays"),
    (lambda: losses.positive_samples(KEYS[:3], A), "keys must be key[rows] with rows = 8"),
    (lambda: losses.swapped_prediction((A,)), "scores must be two arrays or more"),
    (lambda: losses.sinkhorn_codes(A, epsilon=0), "epsilon must be greater than 0"),
    (
        lambda: losses.neighborhood_contrast(A, B, C, NO, None, losses.Targets(9)),
        "neighbors must be between 1 and 8",
    ),
    (lambda: losses.concentrations(UNIT, UNIT, FILLED, mean=-1), "mean must be greater than 0"),
    (
        lambda: losses.proto_cl_views((A, B), (A, B), LABELS, n_clusters=1),
        "n_clusters must be at least",
    ),
    (
        lambda: losses.proto_cl_views((A, B), (A, B), LABELS, n_clusters=4, part="half"),
        "part must be one of 'whole', 'alignment'",
    ),
    (lambda: losses.centroid_contrast(A, UNIT[:1], LABELS), "number of centroids must"),
    (lambda: losses.nrcc(A[:1], B[:1], C[:1], include_own_view=False), "must be at least 2; got 1"),
    (
        lambda: losses.info_nce_views(A[:1], B[:1], positive_in_denominator=False),
        "must be at least 2; got 1",
    ),
    (lambda: _kernel(gammas=(1.0, 0.0)), "gammas must be greater than 0"),
    (lambda: _kernel(temperatures=(0.4,)), "two for a mixture"),
    (lambda: _kernel(mixture="product"), "mixture must be one of 'kernel', 'loss'"),
    (lambda: _kernel(weight=None), "weight must be between 0 and 1"),
    (
        lambda: losses.kernel_clip(A[:, :3], B[:, :3], kernel=_kernel(halves=True)),
        "rows with halves = True must be a multiple",
    ),
    (lambda: _hard(rounds=0), "rounds must be at least 1; got 0"),
    (lambda: _hard(mu=()), "mu must be one or more values"),
    (lambda: _hard(entries="hard"), "entries must be one of 'easiest', 'random'"),
]


@every_row(("call", "message"), REFUSED)
def test_messages(call, message):
    with pytest.raises(InputError) as error:
        call()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_an_argument_that_is_unknown_names_the_function():
    with pytest.raises(TypeError, match=r"^info_nce_views: got an unexpected .* 'temprature'"):
        losses.info_nce_views(A, B, temprature=0.1)


def _cold(a, b, filled):
    """Every loss at small temperatures, epsilons, variances and concentrations."""
    cold, queue, k = {"temperature": 0.01}, jnp.concatenate([b, a]), LABELS % 3
    kernels = (losses.Kernel(gammas=(0.5,)), LAPLACE, HALVES)
    kernels = [dataclasses.replace(x, temperatures=(0.01,) * len(x.gammas)) for x in kernels]
    held = jnp.minimum(filled, len(a))
    negatives = losses.hard_negatives(_keys(BATCH["index"]), a, queue, filled, a, held, THREE)
    return [
        losses.barlow_twins(a, b),
        losses.byol(a, b),
        losses.centroid_contrast(a, b, k, **cold),
        losses.cluster_contrast(_soft(300 * a), _soft(300 * b), **cold),
        losses.consistency(a, b),
        losses.cross_entropy(1e4 * a, k),
        losses.entropy_deficit(_soft(300 * a)),
        losses.info_nce_queue(a, b, queue, filled, **cold),
        losses.clip(a, b, **cold),
        losses.neighborhood_contrast(a, b, queue, filled, negatives, losses.Targets(2), **cold),
        _bce(GIVEN._replace(a=300 * a, b=300 * b)),
        losses.prototype_contrast(a, b, k, jnp.full(8, 1e-4, a.dtype)),
        losses.supervised_contrast(a, b, k, queue, jnp.tile(k, 2), filled, **cold),
        losses.swapped_prediction((a, b), epsilon=0.01, **cold),
        losses.variance_loss(a, b, jnp.zeros(8, a.dtype), k),
        *(
            losses.proto_cl_views((a, b), (b, b), k, n_clusters=n, part=part, **cold)
            for part, n in (("whole", 3), ("whole", 50), ("alignment", 3), ("uniformity", 3))
        ),
        *(
            losses.info_nce_views(a, b, positive_in_denominator=own, **cold)
            + losses.nrcc_views(a, b, queue[4:12], include_own_view=own, **cold)
            for own in (True, False)
        ),
        *(losses.kernel_info_nce_views(a, b, kernel=kernel) for kernel in kernels),
        *(losses.kernel_info_nce_queue(a, b, queue, filled, kernel=kernel) for kernel in kernels),
    ]


@functools.cache
def _cold_with_slopes():
    """Values, and the slopes of their sum: one that is not finite is not finite there."""

    def total(a, b, filled):
        values = _cold(a, b, filled)
        return sum(values), values

    return jax.jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))


def _rows_of(case):
    a, b = A.copy(), B.copy()
    if case == "copies":
        a[1], b[0], b[5] = a[0], 2 * a[0], -a[0]
    elif case == "all equal":
        a[:] = b[:] = 3, 0, 0, 0, 0, 0  # a distance of exactly 0, without rounding
    elif case == "zeros":
        a[2] = b[2] = b[3, :3] = 0
    elif case == "all zero":
        a[:] = b[:] = 0
    else:
        a[1], b[:] = -a[0], -a  # with labels 0, 1, 2, 1, 0, ... sums of members need not be zero
        a[4] = -a[0]  # these two are, of cluster 0
    return a, b


@every_row("case", ["copies", "all equal", "zeros", "all zero", "opposite"])
@every_row("filled", [0, 3, 16])
def test_extremes_stay_finite_in_float32(case, filled):
    (_, values), slopes = _cold_with_slopes()(*_rows_of(case), np.int32(filled))
    for i, array in enumerate([*values, *slopes]):
        assert array.dtype == jnp.float32, i
        assert np.isfinite(array).all(), (case, filled, i)


def test_keys_of_either_kind():
    old = jax.random.key_data(KEYS)
    np.testing.assert_array_equal(losses.positive_samples(old, A), losses.positive_samples(KEYS, A))


@every_row("outside", [-1, -7, 99])
@every_row(
    "name",
    ["centroid_contrast", "cross_entropy", "info_nce", "prototype_contrast", "variance_loss"],
)
def test_a_row_of_no_cluster_adds_nothing_to_the_mean(name, outside):
    labels = np.where(LABELS < 0, outside, LABELS)
    got, slope = jax.value_and_grad(lambda a: value(name, a, B, C, labels))(A)
    np.testing.assert_allclose(got, value(name, A[:7], B[:7], C[:7], LABELS[:7]) * 7 / 8, rtol=1e-6)
    np.testing.assert_array_equal(slope[7], 0)


@every_row("clusters", [3, 4, 20])
@every_row("outside", [-1, "clusters", 99])
def test_prototypes_leave_rows_of_no_cluster_out(clusters, outside):
    labels = np.where(LABELS < 0, clusters if outside == "clusters" else outside, LABELS)

    def loss(rows):
        pairs = (A[rows], B[rows]), (B[rows], C[rows])
        return losses.proto_cl_views(*pairs, labels[rows], n_clusters=clusters)

    np.testing.assert_allclose(loss(slice(8)), loss(slice(7)), rtol=1e-6)
