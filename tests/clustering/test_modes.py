"""ModeTree: numbers of clusters, nested cuts, invariances, predictions, certainty, small sets."""

import numpy as np
import pytest
from scipy import sparse
from scipy.cluster import hierarchy
from sklearn.datasets import make_moons
from sklearn.metrics import adjusted_rand_score

from cluster_jax.clustering import basins, grouping, levels, membership, modes, separation, signal
from cluster_jax.clustering.levels import Tree
from cluster_jax.clustering.modes import ModeTree
from cluster_jax.core.checks import InputError


def _blobs(sizes, d=2, gap=9.0, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    centers = np.zeros((len(sizes), d))
    centers[:, 0] = gap * np.arange(len(sizes))
    centers[:, 1] = gap * (np.arange(len(sizes)) % 2)
    order = rng.permutation(len(labels))
    return (centers[labels] + rng.normal(size=(len(labels), d)))[order], labels[order]


def _fit(x):
    return ModeTree(metric="euclidean").fit(x)


@pytest.mark.parametrize(
    ("sizes", "d"), [((300,), 2), ((200, 200), 2), ((150,) * 6, 3), ((600, 60, 30), 2)]
)
def test_separate_blobs_are_found_and_counted(sizes, d):
    x, truth = _blobs(sizes, d)
    model = _fit(x)
    assert model.n_clusters_ == len(sizes)
    assert adjusted_rand_score(truth, model.labels_) > 0.98
    assert (np.diff(np.bincount(model.labels_)) <= 0).all()  # the largest first


def test_curved_clusters_stay_whole():
    x, truth = make_moons(600, noise=0.05, random_state=1)
    assert adjusted_rand_score(truth, _fit(x).labels_) == 1


def test_waves_are_not_cut_where_chance_thins_them():
    rng = np.random.default_rng(3)
    truth = np.arange(1200) % 3
    across = rng.uniform(0, 4, 1200)
    x = np.stack([across, 1.2 * truth + 0.8 * np.sin(1.5 * across + 0.2 * truth)], axis=1)
    x += rng.normal(size=x.shape) * 0.07
    assert adjusted_rand_score(truth, _fit(x).labels_) == 1


def test_a_basin_joins_where_the_lower_peak_hardly_rises():
    density = np.array([5.0, 1.0, 1.4, 0.5, 4.0])
    chain = sparse.csr_array(sparse.diags([True] * 4, 1, shape=(5, 5), dtype=bool))
    land = basins.Landscape(density, (chain + chain.T).tocsr())
    assert len(set(basins.basins(land, 0.3).tolist())) == 3
    assert basins.basins(land, 0.5).tolist() in ([0, 0, 0, 0, 1], [0, 0, 0, 1, 1])
    assert basins.saddles(land, np.array([0, 0, 1, 1, 2])).heights.tolist() == [1.0, 0.5]


@pytest.mark.parametrize("seed", range(3))
def test_uniform_noise_is_not_divided(seed):
    assert _fit(np.random.default_rng(seed).uniform(size=(700, 2))).n_clusters_ == 1


def test_mixture_whose_neighbors_are_chance():
    rng = np.random.default_rng(0)
    truth = np.arange(1000) % 5
    x = rng.normal(size=(5, 300))[truth] * 0.22 + rng.normal(size=(1000, 300))
    nearest = np.argsort(-x @ x.T, axis=1)[:, 1:11]
    assert (truth[nearest] == truth[:, None]).mean() < 0.7
    model = ModeTree().fit(x)
    assert model.n_clusters_ == 5
    assert adjusted_rand_score(truth, model.labels_) > 0.9


def test_outliers_of_rows_that_are_mapped():
    rng = np.random.default_rng(0)
    mode = np.arange(480) % 8
    turn = np.linalg.qr(rng.normal(size=(12, 12)))[0]
    x = 60 * turn[mode // 2] + 7 * turn[::-1][mode % 2] + rng.normal(size=(480, 12))
    x[:2] *= 1e3
    model = _fit(x)
    assert model.n_clusters_ == 4 < model.tree_.n_clusters
    assert adjusted_rand_score(mode[2:] // 2, model.labels_[2:]) == 1


def test_columns_of_few_values():
    x, truth = _blobs((300, 300, 300), 3)
    model = _fit(np.round(x))
    assert model.n_clusters_ == 3
    assert adjusted_rand_score(truth, model.labels_) > 0.97


def test_cuts_are_nested_partitions():
    x, _ = _blobs((100,) * 8, 2, gap=3.5)
    model = _fit(x)
    leaves = len(model.tree_.merges) + 1
    coarser = model.cut(k=1)
    for k in range(2, leaves + 1):
        groups = levels.cut(model.tree_, k=k)
        assert len(np.unique(groups)) == k
        assert (np.bincount(groups) > 0).all()
        above = levels.cut(model.tree_, k=k - 1)
        # Every group lies in one of the coarser cut.
        assert len(np.unique(np.stack([groups, above]), axis=1).T) == k
    assert not coarser.any()
    assert np.array_equal(levels.cut(model.tree_), levels.cut(model.tree_, level=0.5))
    assert model.tree_.n_clusters == len(np.unique(levels.cut(model.tree_)))
    assert (np.diff(model.tree_.certainties) >= 0).all()
    for k in range(1, leaves + 1):
        linkage = model.tree_.linkage(k)
        assert linkage.shape == (k - 1, 4)
        assert k == 1 or hierarchy.is_valid_linkage(linkage)


def test_coarser_cuts_unite_clusters_whose_rows_are_in_doubt():
    """Each cut assigns rows in doubt by itself; unions do not."""
    x, _ = _blobs((400,) * 6, 2, gap=3.6)
    model = _fit(x)
    assert model.n_clusters_ > 3
    assert (model.probabilities_ < 0.9).sum() > 20
    fine = model.labels_
    for k in range(model.n_clusters_, 0, -1):
        coarse = model.cut(k=k)
        assert len(np.unique(coarse)) == k
        assert len(np.unique(np.stack([coarse, fine]), axis=1).T) == len(np.unique(fine))
        fine = coarse


def test_seeds_of_halves_are_seeds(monkeypatch):
    seeds = []
    monkeypatch.setattr(modes, "reduce", lambda x, seed, **_: seeds.append(seed) or x[:, :3])
    x = np.random.default_rng(0).normal(size=(40, 5))
    ModeTree(metric="euclidean", seed=2**32 - 1).fit(x).stability(x)
    assert seeds == [2**32 - 1, 0, 1]


def test_levels_of_a_hierarchy():
    x, fine = _blobs((120,) * 6)
    coarse = fine // 3
    x[:, 0] += 60 * coarse
    model = _fit(x)
    assert adjusted_rand_score(fine, model.labels_) == 1
    assert adjusted_rand_score(coarse, model.cut(k=2)) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "k must be between 1 and 3"),
        ({"k": 4}, "k must be between 1 and 3"),
        ({"level": 1.5}, "level must be a number between 0 and 1"),
        ({"level": "a"}, "level must be a number between 0 and 1; got 'a'"),
        ({"k": 2.5}, "k must be a whole number; got 2.5"),
        ({"k": True}, "k must be a whole number; got True"),
        ({"k": 2, "level": 0.5}, "not both"),
    ],
)
def test_cuts_out_of_range(arguments, message):
    tree = Tree(np.array([0, 1, 2]), np.array([[0, 1], [2, 3]]), np.array([-1.0, 2.0]))
    with pytest.raises(InputError, match=message):
        levels.cut(tree, **arguments)


def test_halves_that_find_one_cluster_too_have_no_groups_to_agree_about():
    model = ModeTree(metric="euclidean").fit(np.ones((40, 2)))
    assert model.stability(np.ones((40, 2))) == (1.0, None)


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e30, 1e150])
def test_rows_of_any_size_have_a_direction(scale):
    x, _ = _blobs((60, 60, 60), 8, gap=40)
    assert (ModeTree().fit(x * scale).labels_ == ModeTree().fit(x).labels_).all()


def test_order_of_rows_translation_and_scale_change_nothing():
    x, _ = _blobs((150, 150, 80), 3, gap=5)
    labels = _fit(x).labels_
    order = np.random.default_rng(5).permutation(len(x))
    assert np.array_equal(_fit(x[order]).labels_, labels[order])
    assert np.array_equal(_fit(x * 1024).labels_, labels)
    assert adjusted_rand_score(_fit(x + 2.0**10).labels_, labels) == 1


def test_maps_and_samples_do_not_depend_on_the_order_of_rows(monkeypatch):
    """Of groups that overlap: another map would divide them elsewhere."""
    monkeypatch.setattr(signal, "_SAMPLE", 200)
    monkeypatch.setattr(grouping, "_SAMPLE", 300)
    rng = np.random.default_rng(5)
    x = rng.normal(size=(6, 12))[np.arange(520) % 6] + rng.normal(size=(520, 12)) / 2
    first, order = _fit(x), rng.permutation(len(x))
    assert first._rows.shape[1] > 3  # mapped
    again = _fit(x[order])
    np.testing.assert_array_equal(again.embedding_, first.embedding_[order])
    np.testing.assert_array_equal(again.labels_, first.labels_[order])
    np.testing.assert_array_equal(again.probabilities_, first.probabilities_[order])
    np.testing.assert_array_equal(order[again.sample_], first.sample_)
    np.testing.assert_array_equal(again.predict(x), first.predict(x))
    # The levels of a stored run start from the same rows.
    np.testing.assert_array_equal(grouping.prepare(x, "euclidean").rows, first._rows)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_rows_do_not_depend_on_their_order(metric, monkeypatch):
    """Not where rows of one direction differ, nor beside a column of large numbers."""
    monkeypatch.setattr(signal, "_SAMPLE", 200)
    rng = np.random.default_rng(0)
    directions = rng.integers(1, 4, size=(20, 5))[rng.integers(20, size=600)]
    x = 1.0 * directions * rng.integers(1, 3, size=(600, 1))
    if metric == "euclidean":
        x = np.column_stack([x, np.full(600, 1e17)])
    order = rng.permutation(600)
    rows = grouping.prepare(x, metric).rows
    again = grouping.prepare(x[order], metric).rows
    # Rows that are equal are spread by chance, whichever of them is meant.
    np.testing.assert_array_equal(np.sort(again, axis=0), np.sort(rows, axis=0))


def test_predict_follows_the_labels():
    x, _ = _blobs((200, 200, 200), 3, gap=5)
    model = _fit(x)
    assert np.array_equal(model.predict(x), model.labels_)
    new, new_truth = _blobs((50, 50, 50), 3, gap=5, seed=1)
    assert adjusted_rand_score(new_truth, model.predict(new)) > 0.95
    assert np.array_equal(model.predict(new[:1]), model.predict(new)[:1])


def test_more_rows_than_the_sample(monkeypatch):
    monkeypatch.setattr(grouping, "_SAMPLE", 300)
    x, truth = _blobs((400, 400, 400), 3)
    model = _fit(x)
    assert len(model.tree_.leaves) == 300
    assert adjusted_rand_score(truth, model.labels_) == 1


@pytest.mark.parametrize("n", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("d", [2, 6])
def test_tiny_sets(n, d):
    x = np.random.default_rng(0).normal(size=(n, d))
    model = _fit(x)
    assert model.labels_.shape == (n,)
    assert model.predict(x).shape == (n,)
    assert np.isfinite(model.probabilities_).all()


@pytest.mark.parametrize("d", [2, 5])
def test_equal_rows_are_one_cluster(d):
    model = _fit(np.ones((60, d)))
    assert model.n_clusters_ == 1


def test_copies_of_few_rows():
    x = np.repeat(np.array([[0.0, 0.0], [0.0, 1.0], [8.0, 8.0]]), 40, axis=0)
    labels = _fit(x).labels_.reshape(3, 40)
    assert (labels == labels[:, :1]).all()


def test_probabilities_are_calibrated():
    rng = np.random.default_rng(0)
    truth = np.arange(9000) % 3
    x = np.array([[0.0, 0.0], [3.6, 0.0], [1.8, 3.2]])[truth] + rng.normal(size=(9000, 2))
    model = _fit(x)
    assert model.n_clusters_ == 3
    majority = np.array([np.bincount(truth[model.labels_ == c]).argmax() for c in range(3)])
    right = majority[model.labels_] == truth
    p = model.probabilities_
    assert ((p >= 1 / 3) & (p <= 1)).all()
    assert (model.runner_up_probabilities_ <= p + 1e-12).all()
    for low, high in ((0.5, 0.8), (0.8, 0.95), (0.95, 1.01)):
        rows = (p >= low) & (p < high)
        assert rows.sum() > 100
        assert abs(p[rows].mean() - right[rows].mean()) < 0.05
    second = majority[model.runners_up_] == truth
    assert second[~right].mean() > 0.8


@pytest.mark.parametrize(("sizes", "d"), [((30, 30), 20), ((15, 15), 20), ((60, 60, 300), 20)])
@pytest.mark.parametrize("is_soft", [False, True])
def test_a_row_has_no_part_in_what_it_is_compared_with(sizes, d, is_soft):
    """As if the clusters were fitted again without it."""
    truth = np.repeat(np.arange(len(sizes)), sizes)
    means = 3 * np.eye(len(sizes), d)
    x = means[truth] + np.random.default_rng(0).normal(size=(len(truth), d))
    share = np.eye(len(sizes))[truth]
    if is_soft:
        share = 0.8 * share + 0.2 / len(sizes)

    def log_odds(model, squares):
        log_density = model.log_density(squares)
        return log_density[:, 0] - log_density[:, 1]

    rows = np.arange(sum(sizes[:2]))
    model = membership._fit(x, share)
    found = log_odds(model, model.squares_without(x, share))[rows]
    inside = log_odds(model, model.squares(x))[rows]
    exact = []
    for i in rows:
        without = membership._fit(np.delete(x, i, 0), np.delete(share, i, 0))
        exact.append(log_odds(without, without.squares(x[[i]]))[0])
    error, error_inside = (np.sqrt(np.square(e - exact).mean()) for e in (found, inside))
    assert error < error_inside / (2 if is_soft else 5)


@pytest.mark.parametrize(("d", "small", "gap", "seed"), [(10, 5, 3.5, 5), (3, 6, 2.5, 4)])
def test_no_cluster_loses_most_of_its_rows(d, small, gap, seed):
    """Judged without themselves, most rows of the smallest one would leave it."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(3), (small, 120, 120))
    means = np.zeros((3, d))
    means[1, 0], means[2, 1] = gap, 20
    x = means[truth] + rng.normal(size=(len(truth), d))
    labels = np.square(x[:, None] - means).sum(axis=2).argmin(axis=1)
    member = membership.assign(x, labels, basins.nearest_rows(x, 20)[1])
    assert (2 * np.bincount(member.labels, minlength=3) >= np.bincount(labels)).all()


def test_rows_that_are_sure_have_no_runner_up():
    rng = np.random.default_rng(0)
    truth = np.arange(300) % 3
    x = np.array([0.0, 3.2, 40.0])[truth, None] + rng.normal(size=(300, 1))
    labels = (x[:, 0] > 1.6).astype(int) + (x[:, 0] > 20)
    member = membership.assign(x, labels, basins.nearest_rows(x, 20)[1])
    is_sure = member.runner_up_probabilities == 0
    assert is_sure[truth == 2].all()
    assert not is_sure.all()
    assert ((member.runners_up == -1) == is_sure).all()
    assert (member.runners_up != member.labels).all()
    assert (_fit(np.ones((40, 2))).runners_up_ == -1).all()


def test_curved_clusters_keep_their_rows():
    x, truth = make_moons(600, noise=0.05, random_state=1)
    _, neighbors = basins.nearest_rows(x, 250)
    member = membership.assign(x, truth, neighbors[:, 200:220])  # far ones: all rows in doubt
    assert np.array_equal(member.labels, truth)


def test_a_valley_is_seen_on_rows_held_out_only():
    x = np.random.default_rng(0).normal(size=(60, 400))
    first, second = np.arange(30), np.arange(30, 60)
    half = np.arange(60) % 2 == 0
    assert separation.valley(x, first, second, half) < 2
    assert separation.valley(x, first, second, np.ones(60, bool)) == 0  # nothing held out
    x[:30, 0] += 60
    assert separation.valley(x, first, second, half) > 4


@pytest.mark.parametrize("others", [0, 39, "constant", "twice"])
@pytest.mark.parametrize("share", [0.5, 0.2])
def test_two_groups_that_overlap_a_little_are_two(others, share):
    """Bayes error 1 %. One column holds what tells them apart."""
    rng = np.random.default_rng(0)
    truth = rng.random(1500) < share
    x = rng.normal(size=(1500, 1)) + 4.65 * truth[:, None]
    if isinstance(others, int):
        x = np.concatenate([x, rng.normal(size=(1500, others))], axis=1)
    else:
        x = np.concatenate([x, np.ones_like(x) if others == "constant" else 2 * x], axis=1)
    model = _fit(x)
    assert model.n_clusters_ == 2
    assert adjusted_rand_score(truth, model.labels_) > 0.93


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: rng.normal(size=1500),
        lambda rng: rng.uniform(size=1500),
        lambda rng: rng.gamma(2, size=1500),
        lambda rng: rng.lognormal(size=1500),
        lambda rng: rng.standard_t(4, size=1500),
        lambda rng: rng.exponential(size=1500),
        lambda rng: rng.triangular(-1, 0, 3, size=1500),
    ],
)
def test_numbers_of_one_group_are_one(draw):
    for seed in range(3):
        model = _fit(draw(np.random.default_rng(seed))[:, None])
        assert model.n_clusters_ == 1
        # Without a gap there is no evidence.
        assert len(np.unique(model.cut(level=0.05))) < 5


def test_many_numbers_of_one_group_are_one():
    """The more rows, the more places where chance may leave a gap."""
    for seed in range(3):
        x = np.random.default_rng(seed).uniform(size=(10_000, 1))
        assert _fit(x).n_clusters_ == 1


def test_a_gap_is_counted_in_rows():
    """Twice the standard errors for four times the rows; none where a tail begins."""
    rng = np.random.default_rng(1)
    few, many = (separation.gap(rng.normal(size=n), rng.normal(size=n) + 5) for n in (400, 1600))
    assert 1.7 < many / few < 2.3
    tail = np.sort(rng.exponential(size=3000))
    assert separation.gap(tail[:2500], tail[2500:]) < 3
    assert separation.gap(tail[2500:], tail[:2500]) == separation.gap(tail[:2500], tail[2500:])
    assert separation.gap(np.zeros(50), np.ones(50)) == 0  # no width to see a gap with
    assert separation.gap(np.arange(60.0), 1e9 + np.arange(60.0)) > 5


def test_a_valley_takes_both_halves_in_turn():
    x, truth = _blobs((80, 80), 6, gap=2.2)
    first, second = np.flatnonzero(truth == 0), np.flatnonzero(truth == 1)
    half = np.random.default_rng(0).permutation(len(x)) % 2 == 0
    depth = separation.valley(x, first, second, half)
    assert depth > 0.5
    assert depth == pytest.approx(separation.valley(x, first, second, ~half))


def test_components_above_noise():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(500, 100))
    assert signal.fit(noise).components.shape == (100, 100)
    rows = noise.copy()
    rows[:, :8] += 4 * rng.normal(size=(500, 8))
    projection = signal.fit(rows)
    assert projection.components.shape == (100, 16)
    kept = np.linalg.norm(projection.components[:8], axis=1)
    assert (kept > 0.97).all()


def test_halves_agree_about_clusters():
    x, _ = _blobs((200, 200, 200), 3)
    agreement, stable_k = _fit(x).stability(x)
    assert agreement > 0.98
    assert stable_k == 3
    few = _fit(x[:3]).stability(x[:3])
    assert np.isnan(few.agreement)
    assert few.stable_k is None
    with pytest.raises(ValueError, match="X must be the 600 rows of fit; got 5"):
        _fit(x).stability(x[:5])


def test_halves_agree_about_a_coarser_level():
    x, truth = _blobs((150, 150), 2, gap=40)
    model = _fit(x)
    # A split by chance, which the answer has and halves do not find.
    above = x[:, 1] > np.median(x[model.labels_ == 0, 1])
    leaves = np.where(model.labels_ == 1, 1, 2 * above)[model.sample_]
    model.tree_ = Tree(leaves, np.array([[0, 2], [1, 3]]), np.array([0.1, 9.0]))
    model.labels_ = model.cut(k=3)
    model.n_clusters_ = 3
    agreement, stable_k = model.stability(x)
    assert agreement < 0.9
    assert stable_k == 2
    assert adjusted_rand_score(truth, model.cut(k=2)) == 1
    assert modes.verdict(model, agreement) == "no clear answer"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metric": "manhattan"}, "metric must be one of"),
        ({"method": "mds"}, "method must be one of"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        ModeTree(**arguments).fit(np.zeros((5, 2)))
