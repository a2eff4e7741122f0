"""k-means: scikit-learn and a plain loop as references, devices, starts, hard data, bad input."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from sklearn import cluster

from cluster_jax.clustering.kmeans import kmeans, kmeans_blocks
from tests.rows import every_row

module = sys.modules[kmeans.__module__]


def mesh(devices):
    chosen = jax.devices()[:devices]
    return jax.make_mesh((devices,), ("rows",), axis_types=(AxisType.Auto,), devices=chosen)


def run(x, k, devices=1, init=None, **settings):
    return kmeans(x, k if init is None else init, mesh=mesh(devices), **{"n_init": 1, **settings})


def in_blocks(x, block_rows, init, metric="euclidean", max_iter=300, allowed=0, devices=1):
    """`kmeans_blocks` from given centers."""
    sample, is_spherical = np.asarray(x), metric == "spherical"
    rows = module._Rows(x, sample, len(init), block_rows, is_spherical, mesh(devices))
    return rows.result(module._lloyd(rows, rows.placed_centers(init), max_iter, allowed))


def blobs(n=601, d=5, dtype=np.float32):
    """Overlapping groups of unequal spread, far from zero in two of the dimensions."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(n, d)) * rng.uniform(0.5, 2, (n, 1)) + rng.integers(0, 4, (n, d)) * 2
    return (x + np.arange(d) % 2 * 7).astype(dtype)


def seven_groups():
    """210 rows of 2 numbers, float64, in seven small groups, and the group of each."""
    rng = np.random.default_rng(0)
    truth = rng.permutation(np.repeat(np.arange(7), 30))
    places = np.array([[0, 0], [90, 5], [10, 80], [-70, 10], [20, -60], [99, 99], [-95, -90]])
    return places[truth] + rng.uniform(-1, 1, (210, 2)), truth


def squares(x, result):
    return ((x[:, None].astype(np.float64) - result.centers[None]) ** 2).sum(2)


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [7, 53])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_equals_scikit_learn_from_the_same_start(x64, k, dtype):
    """Stopped early and run to the end; 7 and 53 take different ways through the engine."""
    x = blobs(dtype=dtype)
    init = x[np.random.default_rng(1).choice(len(x), k, replace=False)]
    for max_iter in (3, 200):
        expected = cluster.KMeans(k, init=init, n_init=1, tol=0, max_iter=max_iter).fit(x)
        result = run(x, k, init=init, max_iter=max_iter)
        np.testing.assert_array_equal(result.labels, expected.labels_)
        tol = 1e-5 if dtype == np.float32 else 1e-12
        np.testing.assert_allclose(result.centers, expected.cluster_centers_, atol=tol)
        assert result.inertia == pytest.approx(expected.inertia_, rel=tol)
        assert result.centers.dtype == dtype
        assert result.n_iter == min(max_iter, expected.n_iter_ - (max_iter > 3))


def test_spherical_equals_a_plain_loop(x64):
    x = blobs(dtype=np.float64) - 5
    v, centers = unit(x), x[:7]
    result = run(x, 7, init=centers, metric="spherical", max_iter=12)
    centers = unit(centers)
    for _ in range(12):
        labels = np.array([max(range(7), key=lambda j, row=row: row @ centers[j]) for row in v])
        centers = np.stack([v[labels == j].sum(0) for j in range(7)])
        centers /= np.sqrt((centers**2).sum(1))[:, None]
    np.testing.assert_array_equal(result.labels, (v @ centers.T).argmax(1))
    np.testing.assert_allclose(result.centers, centers, atol=1e-12)
    cosines = (v * centers[result.labels]).sum(1)
    assert result.inertia == pytest.approx((2 - 2 * cosines).sum(), rel=1e-12)


@pytest.mark.parametrize(("metric", "k"), [("euclidean", 53), ("spherical", 7)])
def test_devices_do_not_matter(x64, metric, k):
    """601 rows divide by none of them; the starts are drawn, so the draws agree too."""
    settings = {"metric": metric, "n_init": 2}
    one, many = (run(blobs(dtype=np.float64), k, n, **settings) for n in (1, 4))
    np.testing.assert_array_equal(one.labels, many.labels)
    np.testing.assert_allclose(one.centers, many.centers, atol=1e-10)
    assert one.n_iter == many.n_iter


def test_inertia_belongs_to_labels_and_centers_and_restarts_lower_it():
    x = blobs()
    runs = [run(x, 53, n_init=r, seed=4) for r in (1, 8)]
    for result in runs:
        apart = squares(x, result)
        np.testing.assert_array_equal(apart.argmin(1), result.labels)
        assert result.inertia == pytest.approx(apart.min(1).sum(), rel=1e-5)
    assert runs[1].inertia < runs[0].inertia


def test_given_start_is_one_of_the_restarts():
    x = blobs()
    drawn = run(x, 7, n_init=1, seed=1)
    good = run(x, 7, n_init=12, seed=2)
    assert good.inertia < drawn.inertia
    for n_init in (1, 2):
        kept = run(x, 7, n_init=n_init, seed=1, init=good.centers)
        assert kept.inertia <= good.inertia * (1 + 1e-6)
    bad = np.repeat(x[:1], 7, axis=0) + np.arange(7, dtype=np.float32)[:, None] * 1e-3
    alone = run(x, 7, init=bad, max_iter=1)
    assert run(x, 7, n_init=2, init=bad, max_iter=1).inertia < alone.inertia


def test_seed_decides():
    x = blobs()
    a, b, c = (run(x, 53, seed=s) for s in (3, 3, 4))
    for one, other in zip(a, b, strict=True):
        np.testing.assert_array_equal(one, other)
    assert (a.labels != c.labels).any()


@pytest.mark.parametrize("devices", [1, 4])
def test_empty_clusters_go_to_the_farthest_rows(devices):
    """Five of seven centers start where no row is nearest: each lands on a group of its own."""
    x, truth = seven_groups()
    x = x.astype(np.float32)
    init = np.full((7, 2), 1e4) + np.arange(7)[:, None]
    init[[2, 5]] = [0, 0], [90, 5]
    # One row a turn would need five updates before each group is found, and one to see it.
    result = run(x, 7, devices, init=init)
    assert len({(int(a), int(b)) for a, b in zip(truth, result.labels, strict=True)}) == 7
    first = run(x, 7, devices, init=init, max_iter=1)
    np.testing.assert_array_equal(np.unique(first.labels), np.arange(7))


@pytest.mark.parametrize("metric", ["euclidean", "spherical"])
@pytest.mark.parametrize("offset", [0.1, 0.0])
def test_fewer_distinct_rows_than_clusters(metric, offset):
    """Zero rows are on no side of the sphere: they get a label and stay out of the rest."""
    rows = np.array([[1.0, 0.3], [-0.4, 2.0], [0, 0]]) + offset
    x = np.repeat(rows, (5, 3, 4), axis=0)
    result = run(x, 9, n_init=3, metric=metric)
    # Of centers in one place rounding decides; which differs with the processor, but it ends.
    assert result.n_iter < 50
    assert np.isfinite(result.centers).all()
    on_the_sphere = 4 if metric == "spherical" and offset == 0 else 0
    assert result.inertia == pytest.approx(on_the_sphere, rel=1e-6, abs=1e-9)
    for labels in np.split(result.labels, (5, 8)):
        assert len(set(labels)) == 1
    assert len(set(result.labels)) >= (2 if on_the_sphere else 3)
    if metric == "spherical":
        np.testing.assert_allclose(np.linalg.norm(result.centers, axis=1), 1, rtol=1e-6)


def test_nothing_but_zero_rows_and_nothing_but_one_row():
    for metric in module.METRICS:
        result = run(np.zeros((12, 2)), 9, metric=metric)
        np.testing.assert_array_equal(result.centers, 0)
    one = run([[3.0, 4]], 1, metric="spherical")
    np.testing.assert_allclose(one.centers, [[0.6, 0.8]], rtol=1e-6)


@pytest.mark.parametrize(("dtype", "offset"), [(np.float64, 1e9), (np.int64, -(10**12))])
def test_an_offset_beyond_float32_costs_no_precision(dtype, offset):
    """float32 steps by 64 at 1e9; JAX has no float64 here."""
    x = np.round(blobs(dtype=np.float64) * 16).astype(dtype)
    far = x + np.array([offset, 0, -offset, 3, 2 * offset]).astype(dtype)
    moved = far[0].astype(np.float64) - x[0]
    expected = cluster.KMeans(7, init=x[:7], n_init=1, tol=0, max_iter=9).fit(x.astype(float))
    result = run(far, 7, 4, init=far[:7], max_iter=9)
    np.testing.assert_array_equal(result.labels, expected.labels_)
    np.testing.assert_allclose(result.centers - moved, expected.cluster_centers_, atol=1e-3)
    assert result.inertia == pytest.approx(expected.inertia_, rel=1e-5)
    assert result.centers.dtype == np.float64


@pytest.mark.parametrize("scale", [1e-40, 1e-20, 1e30])
def test_a_unit_changes_nothing(scale):
    """Squares of these rows overflow or vanish in float32."""
    x = blobs() * np.float32(scale)
    expected = run(x.astype(np.float64) / scale, 7, init=x[:7].astype(np.float64) / scale)
    result = run(x, 7, init=x[:7])
    np.testing.assert_array_equal(result.labels, expected.labels)
    assert result.inertia / scale**2 == pytest.approx(expected.inertia, rel=1e-3)


@pytest.mark.parametrize(("dtype", "power"), [(np.float32, 90), (np.float64, 600)])
def test_lengths_of_rows_are_nothing_to_the_sphere(dtype, power):
    """Squares of these rows overflow or vanish in float32, or the rows themselves do."""
    x = blobs(dtype=dtype) - 5
    scales = dtype(2) ** np.random.default_rng(0).integers(-power, power, (len(x), 1))
    one, other = (run(rows, 7, 4, metric="spherical") for rows in (x, x * scales))
    np.testing.assert_array_equal(one.labels, other.labels)
    np.testing.assert_allclose(one.centers, other.centers, atol=1e-6)


def test_sums_of_many_rows_stay_exact_in_float32():
    """A running float32 sum would leave the mean of the 30,000 far rows off by 5e-4."""
    x = np.random.default_rng(0).uniform(0, 1, (300_000, 1)).astype(np.float32)
    x[:30_000] -= 100
    result = run(x, 2, init=[[-100.0], [0.0]], max_iter=2)
    expected = [x[:30_000].mean(dtype=np.float64), x[30_000:].mean(dtype=np.float64)]
    np.testing.assert_allclose(result.centers[:, 0], expected, atol=5e-5)  # ulps of 100: 8e-6


def test_starts_are_as_good_as_those_of_scikit_learn():
    """Mean over 20 seeds of the sum of D^2 that the drawn centers leave, greedy in both."""
    x, k = blobs(), 20
    weights, ours, theirs = np.full(len(x), 1e15, np.float32), [], []
    for seed in range(20):
        key = np.array([0, seed], np.uint32)
        centers = np.asarray(module._draw_centers(x, weights, key, k))
        assert len(np.unique(centers, axis=0)) == k
        assert all((x == c).all(1).any() for c in centers)
        ours.append(((x[:, None] - centers) ** 2).sum(2).min(1).sum())
        centers, _ = cluster.kmeans_plusplus(x, k, random_state=seed)
        theirs.append(((x[:, None] - centers) ** 2).sum(2).min(1).sum())
    # Both means have a standard error of 1 %; one candidate instead of four costs 15 %.
    assert np.mean(ours) == pytest.approx(np.mean(theirs), rel=0.05)


def test_the_way_of_accelerators_gives_the_same(monkeypatch):
    """Their layout on the CPU: sums as products, in blocks that do not divide the rows."""
    x, original = blobs(), module._make_layout
    expected = run(x, 7, 4, init=x[:7])

    def make_layout(n, d, k, devices, platform, spherical):
        return original(n, d, k, devices, "gpu", spherical)._replace(block=64)

    monkeypatch.setattr(module, "_make_layout", make_layout)
    result = run(x, 7, 4, init=x[:7])
    np.testing.assert_array_equal(result.labels, expected.labels)
    np.testing.assert_allclose(result.centers, expected.centers, atol=1e-5)


def test_settings_are_traced_once(monkeypatch):
    traces, original = [], module._assign_local
    monkeypatch.setattr(module, "_assign_local", lambda *args: traces.append(1) or original(*args))
    x = blobs(83, 3)
    for i in range(1, 4):
        run(x * i, 4, 4, n_init=i, max_iter=i, seed=i, init=x[i : i + 4])
        run(x, 4, 4, seed=i)
    assert len(traces) == 1


def test_memory_is_bounded():
    """A million rows and 1,000 clusters: their distances alone would take 4 GB."""
    n, d, k = 10**6, 16, 1000
    layout, devices = module._make_layout(n, d, k, 1, "cpu", spherical=False), mesh(1)
    sharding = NamedSharding(devices, PartitionSpec("rows"))
    rows = jax.ShapeDtypeStruct((layout.local, d), jnp.float32, sharding=sharding)
    centers = jax.ShapeDtypeStruct((k, d), jnp.float32)
    compiled = module._assign.lower(layout, devices, rows, centers).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 100e6


def test_float32_unless_double_precision_is_on(x64):
    x = blobs(30, dtype=np.float16)
    assert run(x, 3).centers.dtype == np.float32
    assert run(x.astype(int), 3).centers.dtype == np.float64
    with jax.enable_x64(False):
        assert run(x, 3).centers.dtype == np.float32
        assert run(x.astype(np.int16), 3).centers.dtype == np.float32
        wide = x.astype(np.float64)
        assert run(wide, 3, metric="spherical").centers.dtype == np.float32
        assert run(wide, 3).centers.dtype == np.float64
        assert run(x.astype(int), 3).centers.dtype == np.float64


@every_row(
    ("points", "k", "changed", "message"),
    [
        (np.zeros((3, 2)), 0, {}, "n_clusters must be at least 1; got 0"),
        (np.zeros((3, 2)), 4, {}, "n_clusters must be at most 3; got 4"),
        (np.zeros((3, 2)), 2, {"n_init": 0}, "n_init"),
        (np.zeros((3, 2)), 3.0, {}, "n_clusters must be a whole number; got 3.0"),
        (np.zeros((3, 2)), 2, {"seed": None}, "seed must be at least 0; got None"),
        (np.zeros((3, 2)), 2, {"metric": "cosine"}, "'euclidean', 'spherical'; got 'cosine'"),
        (np.zeros((3, 2)), 2, {"init": np.zeros((2, 3))}, r"centers must have shape \(2, 2\);"),
        (
            np.eye(3, 2),
            2,
            {"init": np.full((2, 2), 1e39)},
            "centers must be finite and near.*1e\\+39",
        ),
        (np.array([[np.nan]]), 1, {}, "NaN"),
        (np.array([[1e200], [0]]), 1, {}, "x must be between .* got 1e.200: scale them"),
    ],
)
def test_bad_input(points, k, changed, message):
    with pytest.raises(ValueError, match=message):
        run(points, k, **changed)


def test_blocks_of_bad_input():
    with np.errstate(all="ignore"), pytest.raises(ValueError, match="x must be finite"):
        kmeans_blocks(np.array([[0.0], [np.nan]]), n_clusters=2, mesh=mesh(1))


def test_rounding_does_not_choose_between_two_rows_of_a_pair(x64):
    """Of ten empty clusters, which start far away, each goes to the first row of a pair."""
    rng = np.random.default_rng(0)
    groups = rng.normal(size=(20, 6))
    rows = np.repeat(groups, 2, axis=0) + 0.05 * rng.normal(size=(40, 6))
    init = np.concatenate([groups, np.full((10, 6), 1e4)])
    first, *others = (
        run(
            rows + rng.choice([-1, 0, 1], rows.shape) * np.spacing(rows),
            30, max_iter=1, seed=1, init=init,
        ).labels
        for _ in range(9)
    )  # fmt: skip
    assert len(set(first)) > 20
    for other in others:
        np.testing.assert_array_equal(other, first)


@pytest.mark.parametrize(
    ("metric", "k", "devices"),
    [
        ("euclidean", 53, 4),
        ("spherical", 7, 1),
        pytest.param("euclidean", 53, 1, marks=pytest.mark.slow),
        pytest.param("spherical", 7, 4, marks=pytest.mark.slow),
    ],
)
def test_blocks_give_the_same_as_all_rows_at_once(tmp_path, metric, k, devices):
    """A memory map of float16, in blocks that divide neither rows nor devices."""
    x = blobs(dtype=np.float16)
    np.save(tmp_path / "x.npy", x)
    rows = np.load(tmp_path / "x.npy", mmap_mode="r")
    for max_iter in (3, 200):
        settings = {"metric": metric, "max_iter": max_iter, "init": x[:k]}
        expected = run(x, k, devices, **settings)
        result = in_blocks(rows, 130, devices=devices, **settings)
        np.testing.assert_array_equal(result.labels, expected.labels)
        np.testing.assert_allclose(result.centers, expected.centers, atol=1e-5)
        assert result.inertia == pytest.approx(expected.inertia, rel=1e-5)
        assert result.n_iter == expected.n_iter
        assert result.centers.dtype == expected.centers.dtype == np.float32


def test_blocks_start_from_a_sample(monkeypatch):
    x, truth = seven_groups()
    monkeypatch.setattr(module, "_MIN_SAMPLE", 60)
    monkeypatch.setattr(module, "_BLOCK_ROWS", 64)
    monkeypatch.setattr(module, "_SAMPLE_PER_CLUSTER", 1)
    samples, original = [], module.kmeans
    monkeypatch.setattr(
        module, "kmeans", lambda x, *a, **b: samples.append(x) or original(x, *a, **b)
    )
    result = kmeans_blocks(x, 7, mesh=mesh(1))
    assert [len(sample) for sample in samples] == [60]
    assert len(set(zip(truth.tolist(), result.labels.tolist(), strict=True))) == 7


def test_blocks_end_when_few_labels_change():
    x = blobs()
    settings = {"block_rows": 130, "init": x[:7], "allowed": len(x) // 50}
    result = in_blocks(x, **settings)
    assert 2 < result.n_iter < run(x, 7, 1, init=x[:7]).n_iter
    before, earlier = (in_blocks(x, max_iter=result.n_iter - i, **settings).labels for i in (1, 2))
    assert 0 < (result.labels != before).sum() <= len(x) // 50 < (before != earlier).sum()


def test_blocks_do_not_end_with_an_empty_cluster_that_could_have_rows():
    x = np.concatenate([np.zeros(500), np.full(500, 9.0), np.full(5, 10.0)])[:, None]
    result = in_blocks(x, 2000, [[0.0], [9.0], [99.0]], allowed=len(x))
    assert np.bincount(result.labels).tolist() == [500, 500, 5]


@pytest.mark.parametrize("offset", [0, 2.0**33])
def test_blocks_give_empty_clusters_rows_and_lose_no_precision_far_from_zero(offset):
    x, truth = seven_groups()
    x = np.round(x * 16) / 16
    init = np.full((7, 2), 1e4) + np.arange(7)[:, None]
    init[[2, 5]] = [0, 0], [90, 5]
    result = in_blocks(x + offset, 100, init + offset)
    assert len(set(zip(truth.tolist(), result.labels.tolist(), strict=True))) == 7
    inertia = sum(x[truth == i].var(0).sum() * 30 for i in range(7))
    assert result.inertia == pytest.approx(inertia, rel=1e-4)
