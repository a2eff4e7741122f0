"""Every loss and its gradient against the paper's formula in plain loops, `reference_losses`.

Gradients of the loops are complex steps, exact to rounding. What the papers take for a constant has
a gradient of zero.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax import losses
from tests.methods import reference_losses as loops
from tests.methods import reference_step
from tests.rows import every_row

pytestmark = pytest.mark.usefixtures("x64")

RNG = np.random.default_rng(0)
# Rows of different lengths; unit centers; a queue, and what would count if it were not masked.
A, B, TA, TB, C = (scale * RNG.normal(size=(5, 4)) for scale in (2, 1, 1, 3, 0.5))
UNIT, QUEUE = loops.unit(RNG.normal(size=(6, 4))), 2 * RNG.normal(size=(9, 4))
QUEUE_LABELS = np.array([1, 0, 2, 1, 1, 0, 3, 0, 1], np.int32)
P, Q = (np.stack([loops.softmax(row) for row in x]) for x in (A, B))
LABELS = np.array([2, 0, 2, 4, 1], np.int32)  # of 6 clusters 3 and 5 are empty
PHI, VARIANCES = np.array([0.2, 0.5, 0.1, 1.3, 0.7, 1]), np.array([0.3, 0.0, 1.4, 0.2, 0.7, 1])
EXCLUDED = RNG.random((5, 6)) < 0.3
EXCLUDED[0, LABELS[0]] = EXCLUDED[3, LABELS[3]] = True  # positives, which still attract
KEYS = jax.random.split(jax.random.key(0), 5)
LABELED = np.concatenate([5 * A[1:2], RNG.normal(size=(6, 4))])
NCL = {"neighbors": 4, "alpha": 0.2}
HNG = {"count": 3, "rounds": 2, "mixing": (1 / 3, 2 / 3)}
KERNELS = {
    "laplacian": losses.Kernel(gammas=(1.0,), temperatures=(0.3,)),
    "gamma 0.5": losses.Kernel(gammas=(0.5,), temperatures=(0.2,)),
}
for mixture in ("kernel", "loss"):
    for halves in (False, True):
        KERNELS[f"{mixture}, {halves}"] = losses.Kernel(
            gammas=(0.5, 2.0), temperatures=(0.4, 0.7), mixture=mixture, weight=0.3, halves=halves
        )


def agree(loss, in_loops, *arrays, constants=()):
    """Value and gradients of a loss of arrays, of which `constants` (places) have a slope of 0."""
    argnums = tuple(range(len(arrays)))
    value, slopes = jax.jit(jax.value_and_grad(loss, argnums=argnums))(*arrays)
    np.testing.assert_allclose(value, in_loops(*arrays), rtol=1e-11, atol=1e-14)
    free = [i for i in argnums if i not in constants]

    def moved(some):
        return in_loops(*(some[free.index(i)] if i in free else arrays[i] for i in argnums))

    wanted = reference_step.gradient(moved, [arrays[i] for i in free])
    for i, slope in enumerate(slopes):
        want = wanted[free.index(i)] if i in free else np.zeros_like(slope)
        np.testing.assert_allclose(slope, want, rtol=1e-9, atol=1e-12, err_msg=f"argument {i}")


@every_row("own", [True, False])
@every_row("tau", [1.0, 0.1])
def test_two_views(own, tau):
    how = {"temperature": tau, "positive_in_denominator": own}
    agree(
        lambda a, b: losses.info_nce_views(a, b, **how),
        lambda a, b: loops.info_nce((a, b), tau, own),
        A, B,
    )  # fmt: skip
    agree(
        lambda a, b, ta, tb, c: losses.nrcc_views(
            a, b, c, keys=(ta, tb), temperature=tau, include_own_view=own
        ),
        lambda a, b, ta, tb, c: loops.nrcc((a, b), (ta, tb), c, tau, own),
        A, B, TA, TB, C, constants=(4,),
    )  # fmt: skip


@every_row("own", [True, False])
@every_row("excluded", [None, EXCLUDED])
def test_candidates(own, excluded):
    how = {"temperature": 0.3, "positive_in_denominator": own, "excluded": excluded}
    agree(
        lambda x: losses.info_nce(x, UNIT, LABELS, **how),
        lambda x: loops.of_candidates(x, UNIT, LABELS, 0.3, own, excluded),
        loops.unit(A),
    )


@every_row("tau", [1.0, 0.2, 0.05])
def test_other_losses_of_a_temperature(tau):
    agree(
        lambda a, b: losses.clip(a, b, temperature=tau),
        lambda a, b: sum(
            loops.of_candidates(x, y, range(5), tau) / 2
            for x, y in ((loops.unit(a), loops.unit(b)), (loops.unit(b), loops.unit(a)))
        ),
        A, np.sinh(B),
    )  # fmt: skip
    agree(
        lambda x, c: losses.centroid_contrast(x, c, LABELS, temperature=tau),
        lambda x, c: loops.of_candidates(loops.unit(x), c, LABELS, tau),
        A, UNIT, constants=(1,),
    )  # fmt: skip
    agree(
        lambda p, q: losses.cluster_contrast(p, q, temperature=tau)
        + losses.entropy_deficit(p) + losses.entropy_deficit(q),
        lambda p, q: loops.clusters((p, q), tau),
        P, Q,
    )  # fmt: skip
    agree(
        lambda *s: losses.swapped_prediction(s, temperature=tau, epsilon=0.3, iterations=3),
        lambda *s: loops.swapped(s, [loops.codes(x.real, 0.3, 3) for x in (A, B)], tau),
        A, B, TA, C,
    )  # fmt: skip


@every_row("filled", [0, 1, 5, 9])
@every_row("tau", [1.0, 0.07])
def test_a_queue(filled, tau):
    def in_loops(x, key, queue):
        entries = queue[:filled]
        logit = lambda x, y: loops.dot(x, y) / tau  # noqa: E731
        return loops.queue_contrast(loops.unit(x), loops.unit(key), entries, logit)

    agree(
        lambda x, key, queue: losses.info_nce_queue(
            x, key, queue, jnp.int32(filled), temperature=tau
        ),
        in_loops, A, B, loops.unit(QUEUE), constants=(1, 2),
    )  # fmt: skip


@every_row("name", KERNELS)
def test_kernels(name):
    kernel = KERNELS[name]
    values = dataclasses.asdict(kernel)
    agree(
        lambda a, b: losses.kernel_info_nce_views(a, b, kernel=kernel),
        lambda a, b: loops.kernel_views((a, b), values),
        A[:3], B[:3],
    )  # fmt: skip
    if name not in ("kernel, False", "loss, True"):  # These have all branches of the kernel.
        return
    agree(
        lambda a, b: losses.kernel_clip(a, b, kernel=kernel),
        lambda a, b: loops.kernel_pairs(a, b, values),
        A[:3], B[:3],
    )  # fmt: skip
    for filled in (0, 5):
        agree(
            lambda x, key, queue, filled=filled: losses.kernel_info_nce_queue(
                x, key, queue, filled, kernel=kernel
            ),
            lambda x, key, queue, filled=filled: loops.kernel_queue(
                x, key, queue[:filled], values
            ),
            A[:3], B[:3], QUEUE, constants=(1, 2),
        )  # fmt: skip


@every_row("part", ["whole", "alignment", "uniformity"])
@every_row("clusters", [6, 300])
def test_prototypes_of_views(part, clusters):
    """Also with more clusters than images."""
    labels = LABELS if clusters == 6 else LABELS * 40
    agree(
        lambda a, b, ta, tb: losses.proto_cl_views(
            (a, b), (ta, tb), labels, n_clusters=clusters, part=part, temperature=0.3
        ),
        lambda a, b, ta, tb: loops.proto_cl((a, b), (ta, tb), labels, 0.3, part),
        A, B, TA, TB, constants=(2, 3),
    )  # fmt: skip


def test_more_clusters_than_images():
    """The slots are the clusters of the batch: memory does not grow with their number."""
    centers, filled = losses.prototypes(A, LABELS * 3001, n_clusters=25_000)
    assert centers.shape == A.shape
    np.testing.assert_array_equal(filled, [True] * 4 + [False])
    want = loops.prototypes(A, LABELS)
    np.testing.assert_allclose(centers[:4], list(want.values()), rtol=1e-12)


def test_prototypes_of_a_posterior():
    """The sums of (8) are weighted by p(k|x); of a cluster without weight nothing counts."""
    weights = np.random.default_rng(1).random((5, 4))
    weights[:, 2] = 0

    def centers(rows):
        unit = loops.unit(rows)
        sums = {k: sum(weights[i, k] * unit[i] for i in range(5)) for k in (0, 1, 3)}
        return {k: x / np.sqrt(loops.dot(x, x)) for k, x in sums.items()}

    def in_loops(a, b, ta, tb):
        total = 0.0
        for rows, constants in ((a, tb), (b, ta)):
            mu, other = centers(rows), centers(constants)
            for k in mu:
                own = loops.dot(mu[k], other[k]) / 0.3
                others = [loops.dot(mu[k], mu[j]) / 0.3 for j in mu if j != k]
                total += loops.log_sum([own, *others]) - own
        return total / 6

    def loss(a, b, ta, tb):
        return losses.proto_cl_views((a, b), (ta, tb), weights, n_clusters=4, temperature=0.3)

    agree(loss, in_loops, A, B, TA, TB, constants=(2, 3))
    hard = losses.prototypes(A, LABELS, n_clusters=5)
    soft = losses.prototypes(A, np.eye(5)[LABELS], n_clusters=5)
    jax.tree.map(np.testing.assert_allclose, soft, hard)
    with pytest.raises(ValueError, match="a column for each of the 6 clusters; got 4"):
        losses.prototypes(A, weights, n_clusters=6)


def test_prototypes_of_a_posterior_on_two_devices():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), "i")
    weights = np.random.default_rng(2).random((4, 3))
    shared = jax.shard_map(
        lambda x, w: losses.prototypes(x, w, n_clusters=3, axis="i"),
        mesh=mesh,
        in_specs=jax.sharding.PartitionSpec("i"),
        out_specs=jax.sharding.PartitionSpec(),
    )
    jax.tree.map(
        np.testing.assert_allclose,
        jax.jit(shared)(A[:4], weights),
        losses.prototypes(A[:4], weights, n_clusters=3),
    )


def _variance(x, c, variances):
    gaps = zip(loops.unit(x) - c[LABELS], variances[LABELS], strict=True)
    return sum(loops.dot(gap, gap) / (2 * variance + 1e-6) for gap, variance in gaps) / len(x)


def _prototypes(x, c, phi):
    clustering = {"prototypes": c, "concentrations": phi, "labels": LABELS}
    return loops.proto_nce((x, x), [clustering], range(5))


# Name -> the loss, the loops, the arrays, and which of these are constants.
OTHERS = {
    "byol": (losses.byol, lambda q, t: loops.byol((q, q), (t, t)), (A, TB), (1,)),
    "byol_views": (
        lambda qa, qb, ta, tb: losses.byol_views((qa, qb), (ta, tb)),
        lambda qa, qb, ta, tb: loops.byol((qa, qb), (ta, tb)),
        (A, B, TA, TB), (2, 3),
    ),
    "barlow_twins": (
        lambda a, b: losses.barlow_twins(a, b, off_diagonal=0.7),
        lambda a, b: loops.barlow((a, b), 0.7),
        (A * [1, 2, 3, 4] + [0, 3, 1, 2], B), (),
    ),
    "cross_entropy": (
        lambda x: losses.cross_entropy(x, LABELS % 4),
        lambda x: loops.cross_entropy(x, LABELS % 4),
        (3 * A,), (),
    ),
    "consistency": (losses.consistency, loops.squared_difference, (P, Q), ()),
    "variance_loss": (
        lambda x, c, v: losses.variance_loss(x, c, v, LABELS), _variance, (A, UNIT, VARIANCES),
        (1, 2),
    ),
    "prototype_contrast": (
        lambda x, c, phi: losses.prototype_contrast(x, c, LABELS, phi), _prototypes,
        (A, UNIT, PHI), (1, 2),
    ),
}  # fmt: skip


@every_row("name", OTHERS)
def test_other_losses(name):
    loss, in_loops, arrays, constants = OTHERS[name]
    agree(loss, in_loops, *arrays, constants=constants)


@every_row("threshold", [0.95, 0.3, -0.2])
def test_pairs(threshold):
    rows = A.copy()
    rows[3] = 4 * rows[0]  # similar at every threshold, whatever the lengths

    def loss(x, p, q):
        same = losses.similar(x, threshold=threshold, n_classes=2)
        return losses.pairwise_bce(same, p, q)

    def in_loops(x, p, q):
        return loops.pairwise_bce(x, p, q, threshold)

    agree(loss, in_loops, rows, P, Q, constants=(0,))
    agree(lambda p: loss(rows, p, p), lambda p: in_loops(rows, p, p), P)


@every_row("filled", [0, 2, 9])
@every_row("case", ["plain", "the view is the nearest", "generated", "left out"])
def test_neighborhoods(filled, case):
    """A view takes no neighbor's place; negatives change neither neighbors nor weights."""
    variant = {"generated": "added", "left out": "removed"}.get(case)
    views = 3 * A + 0.01 * B if "view" in case else B
    values = {**NCL, "temperature": 0.1, "hng": {**HNG, "variant": variant}}
    values["hng_steps"] = 9 if variant is None else 0

    def loss(x, views, queue, labeled):
        negatives = None
        if case == "generated":
            how = losses.Mixing(HNG["count"], HNG["rounds"], HNG["mixing"])
            negatives = losses.hard_negatives(KEYS, x, queue, filled, labeled, 7, how)
        if case == "left out":
            negatives = losses.HardNegatives(left_out=HNG["count"])
        targets = losses.Targets(**NCL)
        return losses.neighborhood_contrast(
            x, views, queue, filled, negatives, targets, temperature=0.1
        )

    def in_loops(x, views, queue, labeled):
        entries = loops.unit(queue[:filled]) if filled else []
        constants = loops.unit(views), entries, loops.unit(labeled)
        return reference_step.neighborhood(values, 0, loops.unit(x), *constants, KEYS)

    queue = QUEUE.copy()
    queue[filled:] = np.resize(A, queue[filled:].shape)  # a leak would show
    agree(loss, in_loops, A, views, queue, LABELED, constants=(1, 2, 3))


@every_row("filled", [0, 2, 9])
def test_classes(filled):
    labels = np.array([1, 0, 2, 7, 1], np.int32)  # 7 is in no slot

    def in_loops(x, views, queue):
        entries = loops.unit(queue[:filled]) if filled else []
        constants = loops.unit(views), labels, entries, QUEUE_LABELS[:filled]
        return reference_step.same_class({"temperature": 0.1}, loops.unit(x), *constants)

    agree(
        lambda x, views, queue: losses.supervised_contrast(
            x, views, labels, queue, QUEUE_LABELS, filled, temperature=0.1
        ),
        in_loops, A, B, QUEUE, constants=(1, 2),
    )  # fmt: skip
