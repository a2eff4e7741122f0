"""Clusters that keep their ids while rows come: updates, refits and removals."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score

from cluster_jax.clustering import stable_ids, tree_fit
from cluster_jax.clustering.smooth_tree import SmoothTree
from tests.rows import every_row


def kinds(seed=0, n=6, d=20, gap=4.0):
    """A function that draws rows of some kinds."""
    rng = np.random.default_rng(seed)
    centers = gap * rng.normal(size=(n, d))

    def draw(*counts):
        truth = rng.permutation(np.repeat(np.arange(len(counts)), counts))
        return centers[truth] + rng.normal(size=(len(truth), d)), truth

    return draw


def announced(before, after, events):
    """The moves of old rows, and those that the events tell."""
    pairs = zip(before.tolist(), after[: len(before)].tolist(), strict=True)
    moved = {pair for pair in pairs if pair[0] != pair[1]}
    return moved, {(e.id, to) for e in events if e.kind in ("split", "merged") for to in e.into}


def explained(state, found):
    """The state after an update in which a fit has found these clusters, of rows alike in each."""
    x = np.asarray(found, float)[:, None]
    return stable_ids.update(state, x, lambda _: stable_ids.Look(found, x, None))


def test_a_class_that_arrives_is_born_and_the_others_stay():
    draw = kinds()
    (x, y), (more, z) = draw(40, 40, 40), draw(5, 5, 5, 12)
    model = SmoothTree("euclidean").fit(x)
    before = model.labels_
    assert (model.partial_fit(more).labels_[:120] == before).all()
    kinds_of = {event.kind for event in model.changes_}
    assert kinds_of == {"grew", "emerged"}
    assert [e.id for e in model.changes_ if e.kind == "emerged"] == [3]
    assert adjusted_rand_score(np.concatenate([y, z]), model.labels_) == 1
    assert (model.labels_.dtype, len(model.labels_)) == (np.int64, 147)
    assert (model.predict(np.concatenate([x, more])) == model.labels_).all()
    assert model.predict_proba(more).shape == (27, 4)
    assert (model.probabilities_ > 0.5).all()
    groups = model.cut(n_clusters=2)
    assert len(set(zip(groups.tolist(), model.labels_.tolist(), strict=True))) == 4
    assert len(np.unique(model.cut(n_clusters=9))) == 9


def test_a_class_that_arrives_little_by_little_is_born():
    draw = kinds(1)
    model, truth = SmoothTree("euclidean"), []
    for counts in [(40, 40, 40), (6, 6, 6, 3), (6, 6, 6, 9)]:
        x, y = draw(*counts)
        model.partial_fit(x)
        truth.append(y)
    assert adjusted_rand_score(np.concatenate(truth), model.labels_) == 1


@every_row(("n", "centers", "step"), [(60, 6, 1)], slow=[(200, 5, 20)])
def test_batches_end_with_the_clusters_of_one_fit(n, centers, step):
    """Rows of the first batch are near copies in it, and not beside the later ones."""
    x, y = make_blobs(n, 8, centers=centers, random_state=0)
    model = SmoothTree("euclidean")
    for rows in np.split(x, n // step):
        model.partial_fit(rows)
    assert adjusted_rand_score(y, model.labels_) == 1
    assert model.linkage_.shape == SmoothTree("euclidean").fit(x).linkage_.shape


def test_first_update_of_a_new_model_is_its_fit():
    x, _ = kinds()(30, 30, 30)
    model = SmoothTree("euclidean").partial_fit(x)
    assert (model.labels_ == SmoothTree("euclidean").fit(x).labels_).all()
    assert [e.kind for e in model.changes_] == ["emerged"] * 3


def test_rows_of_other_width_are_told():
    model = SmoothTree("euclidean").fit(kinds()(30, 30)[0])
    with pytest.raises(ValueError, match="3 features, but SmoothTree is expecting 20"):
        model.partial_fit(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="n_clusters must be at most 62"):
        model.set_params(n_clusters=99).partial_fit(np.zeros((2, 20)))
    assert len(model.labels_) == 60


@pytest.mark.parametrize("seed", [1, 2])
def test_cuts_are_of_the_clusters_and_not_of_the_last_fit(seed):
    draw = kinds(seed, gap=1.5)
    model = SmoothTree("euclidean").fit(draw(30, 30, 30, 30)[0]).partial_fit(draw(9, 9, 9, 9, 9)[0])
    k = model.n_clusters_
    for groups in (model.cut(n_clusters=k), model.cut(n_clusters=2)):
        assert len(set(zip(groups.tolist(), model.labels_.tolist(), strict=True))) == k


@pytest.mark.parametrize(
    ("centers", "metric"),
    [(((10, 10), (70, 70), (70, 10), (74, 10)), "euclidean"), (8, "euclidean"), (5, "cosine")],
)
def test_cuts_stay_while_rows_are_only_added(centers, metric, tmp_path):
    """Two pairs may be equally near: another fit, and its whitening, would join the other one."""
    rng = np.random.default_rng(7)
    if isinstance(centers, int):
        centers = rng.uniform(0, 70, (centers, 2))
    x = np.concatenate([center + rng.normal(size=(35, 2)) for center in np.array(centers)])
    model = SmoothTree(metric).fit(x)
    numbers = range(1, model.n_clusters_ + 1)
    cuts = [model.cut(n_clusters=k) for k in numbers]
    for i in range(3):
        model.partial_fit(x[[5 * i]] + 0.1)
        if i == 1:
            model.save(tmp_path / "model.npz")
            model = SmoothTree.load(tmp_path / "model.npz")
        for before, k in zip(cuts, numbers, strict=True):
            np.testing.assert_array_equal(model.cut(n_clusters=k)[: len(x)], before)


def test_rows_in_no_cluster_are_in_no_leaf():
    draw = kinds()
    x, more = draw(30, 30)[0], draw(3, 3)[0]
    with pytest.warns(UserWarning, match="3 rows are in no cluster"):
        model = SmoothTree("cosine").fit(np.concatenate([x, np.zeros((3, 20))]))
    alone = SmoothTree("cosine").fit(x)
    np.testing.assert_array_equal(
        model.partial_fit(more).linkage_, alone.partial_fit(more).linkage_
    )
    assert (model.labels_[60:63] == -1).all()


def test_rows_of_zeros_alone_come_first():
    rows, zeros = kinds()(30)[0], np.zeros((4, 20))
    model = SmoothTree("cosine").fit(zeros)
    assert model.partial_fit(zeros).labels_.tolist() == [0] * 8
    labels = model.partial_fit(np.concatenate([rows, zeros])).labels_
    assert labels.tolist() == [-1] * 8 + [1] * 30 + [-1] * 4
    assert [(e.kind, e.id) for e in model.changes_] == [("disappeared", 0), ("emerged", 1)]


def test_copies_stay_together_and_a_caller_may_reuse_an_array():
    rng = np.random.default_rng(54)
    known = np.round(
        rng.normal(size=(28, 4)) + 6 * rng.normal(size=(6, 4))[rng.integers(6, size=28)]
    )
    x = known[rng.integers(28, size=(7, 11))]
    model, buffer = SmoothTree("euclidean"), np.empty((11, 4))
    for rows in x:
        buffer[:] = rows
        model.partial_fit(buffer)
    every = x.reshape(77, 4)
    groups = np.unique(every, axis=0, return_inverse=True)[1].ravel()
    pairs = set(zip(groups.tolist(), model.labels_.tolist(), strict=True))
    assert len(pairs) == groups.max() + 1
    assert len(np.unique(model.labels_)) == model.n_clusters_
    again = SmoothTree("euclidean")
    for rows in x:
        again.partial_fit(rows)
    np.testing.assert_array_equal(model.labels_, again.labels_)


def test_many_rows_are_condensed_and_keep_their_clusters(monkeypatch):
    """Also rows in no cluster, and those that a sample stands for."""
    monkeypatch.setattr(tree_fit, "MAX_ROWS", 150)
    monkeypatch.setattr(stable_ids, "LOOK", 120)
    draw = kinds(3)
    x, _ = draw(60, 60, 60)
    x[5] = 0
    with pytest.warns(UserWarning, match="1 row is in no cluster"):
        model = SmoothTree().fit(x)
    (more, y), before = draw(9, 9, 9, 30), model.labels_
    model.partial_fit(np.concatenate([more, np.zeros((1, 20))]))
    is_same = model.labels_[:180] == before
    assert is_same.mean() > 0.99
    assert adjusted_rand_score(y, model.labels_[180:-1]) == 1
    assert (model.labels_[[5, -1]] == -1).all()
    assert (model.predict(more) == model.labels_[180:-1]).mean() > 0.95
    assert len(model._fit_.sample) <= 150


def test_save_keeps_clusters_and_goes_on_as_if_it_had_not_stopped(tmp_path):
    draw = kinds(2)
    model = SmoothTree("euclidean").fit(draw(30, 30, 30)[0]).partial_fit(draw(4, 4, 4, 4)[0])
    model.save(tmp_path / "model.npz")
    loaded = SmoothTree.load(tmp_path / "model.npz")
    assert (loaded.labels_ == model.labels_).all()
    assert loaded.changes_ == model.changes_
    x, _ = draw(4, 4, 4, 9)
    assert (loaded.partial_fit(x).labels_ == model.partial_fit(x).labels_).all()
    assert loaded.changes_ == model.changes_


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1))
def test_whatever_a_fit_finds_rows_move_in_announced_events_alone(seed):
    rng = np.random.default_rng(seed)
    state = stable_ids.start(rng.integers(0, 4, 40))
    used = set(state.ids.tolist())
    for _ in range(7):
        n = len(state.ids) + rng.integers(1, 20)
        found = np.unique(rng.integers(0, rng.integers(1, 7), n), return_inverse=True)[1]
        if rng.random() < 0.5:  # Some things are seen again and again.
            found[: n // 2] = np.arange(n // 2) // 9
        after = explained(state, found)
        moved, told = announced(state.ids, after.ids, after.events)
        assert moved == told
        new = set(after.ids.tolist()) - set(state.ids.tolist())
        assert not new & used  # no id is used twice
        assert (after.ids >= 0).all()
        assert after.next_id > max(used | new)
        used |= new
        state = after


def test_a_split_is_announced_after_three_looks_and_the_largest_part_keeps_the_id():
    state = stable_ids.start(np.repeat([0, 1], [40, 20]))
    found = np.repeat([0, 1, 2], [25, 15, 20])
    for look in range(3):
        found = np.append(found, 2)
        state = explained(state, found)
        split = [event for event in state.events if event.kind == "split"]
        assert split == ([stable_ids.Event("split", 0, 15, (2,))] if look == 2 else [])
    assert (state.ids[:60] == np.repeat([0, 2, 1], [25, 15, 20])).all()


def test_a_merge_waits_and_its_id_is_not_used_again():
    state = stable_ids.start(np.repeat([0, 1], [30, 20]))
    found = np.zeros(50, int)
    for look in range(5):
        found = np.append(found, 0)
        state = explained(state, found)
        merged = [event for event in state.events if event.kind == "merged"]
        assert merged == ([stable_ids.Event("merged", 1, 20, (0,))] if look == 4 else [])
    state = explained(state, np.append(found, [1] * 8))
    assert set(state.ids.tolist()) == {0, 2}


def test_what_is_seen_once_only_moves_nothing():
    state = stable_ids.start(np.repeat([0, 1], [40, 20]))
    for look in range(6):
        found = np.repeat([0, 1, 2], [25, 15, 20]) if look % 2 else np.repeat([0, 1], [40, 20])
        state = explained(state, np.append(found, np.full(look + 1, found[-1])))
        assert {event.kind for event in state.events} <= {"survived", "grew"}


def test_refit_keeps_ids_of_clusters_that_are_mostly_the_same():
    rng = np.random.default_rng(0)
    state = stable_ids.start(np.repeat(np.arange(5), 20))._replace(next_id=9)
    found = (np.repeat(np.arange(5), 20) + 2) % 5
    found[rng.choice(100, 10, replace=False)] = 0
    found[80:90] = 5
    after = stable_ids.refit(state, found)
    assert [np.bincount(after.ids[20 * i : 20 * i + 20]).argmax() for i in range(4)] == [*range(4)]
    assert 9 in after.ids
    assert set(after.ids.tolist()) <= {0, 1, 2, 3, 4, 9}
    moved, told = announced(state.ids, after.ids, after.events)
    assert moved == told


def test_many_rows_are_sampled_and_a_split_takes_all_of_its_rows(monkeypatch):
    monkeypatch.setattr(stable_ids, "LOOK", 120)
    draw = kinds(3, gap=8.0)
    x, y = draw(100, 100, 60)
    labels = np.where(y == 2, 1, y)  # Two kinds are one cluster.
    state, seen = stable_ids.start(labels), []

    def fit(rows):
        seen.append(len(rows))
        found = tree_fit.fit(rows, "euclidean", 3)
        rows = found.smoother
        return stable_ids.Look(
            found.labels, rows.sharp[found.leaves], lambda x: (found.place(x), rows.project(x))
        )

    for _ in range(3):
        more, z = draw(4, 4, 4)
        x, y = np.concatenate([x, more]), np.concatenate([y, z])
        state = stable_ids.update(state, x, fit)
    assert max(seen) <= 120
    assert len(state.ids) == 296
    assert adjusted_rand_score(y, state.ids) == 1
    assert any(e.kind == "split" for e in state.events)


def test_what_a_person_holds_together_has_what_is_found_inside_it():
    """And gives no row away, in a refit either; new rows go to those that they are most like."""
    state = stable_ids.start(np.repeat([0, 1], [40, 20]))
    is_fixed = np.repeat([True, False], [40, 20])
    found = np.repeat([0, 1, 2], [25, 15, 20])
    for _ in range(6):
        found = np.append(found, [1, 2])
        fixed = np.append(is_fixed, np.zeros(len(state.ids) - 60, bool))
        x = found[:, None].astype(float)
        look = stable_ids.Look(found, x, None)
        state = stable_ids.update(state, x, lambda _, look=look: look, fixed)
    assert (state.ids == np.append(np.repeat([0, 1], [40, 20]), [0, 1] * 6)).all()
    fixed = np.append(is_fixed, np.zeros(12, bool))
    anew = np.where(found == 2, 2, np.arange(72) % 2)
    anew[0] = 2
    assert (stable_ids.refit(state, anew, fixed).ids == state.ids).all()


def test_a_look_at_many_clusters_is_no_longer_than_one_at_few(monkeypatch):
    monkeypatch.setattr(stable_ids, "LOOK", 300)
    for clusters in (2, 50, 250, 900):
        state = stable_ids.start(np.arange(2000) % clusters)
        looked_at = stable_ids._sample(state, 2050)
        assert 200 <= len(looked_at) <= 300
        assert set(range(2000, 2050)) <= set(looked_at.tolist())


_JOB = """
import hashlib, numpy as np
from cluster_jax import SmoothTree
rng = np.random.default_rng(0)
centers = 3 * rng.normal(size=(9, 64))
model = SmoothTree()
for live in (6, 7, 9):
    x = np.repeat(centers[:live], 12, axis=0)
    model.partial_fit((x + rng.normal(size=x.shape)).astype(np.float32))
print(hashlib.sha256(model.labels_.tobytes()).hexdigest())
"""


def test_two_processors_give_the_same_ids(capsys):
    """This one, and one without its vector instructions."""
    exec(_JOB, {})
    older = {"OPENBLAS_CORETYPE": "Prescott", "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3"}
    job = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _JOB],
        env={**os.environ, **older}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert job.stdout == capsys.readouterr().out


def test_a_part_that_gets_new_rows_is_not_told_to_be_back_and_losses_are_told_beside_gains():
    after = np.array([0] * 5 + [1] * 6)
    told = stable_ids.events(np.zeros(10, int), after, born=())
    assert [(e.kind, e.id, e.rows) for e in told] == [("split", 0, 5), ("grew", 1, 1)]
    told = stable_ids.events(np.zeros(3, int), np.zeros(5, int), born=(), had=np.zeros(4, int))
    assert [(e.kind, e.rows) for e in told] == [("grew", 2), ("shrank", 1)]
