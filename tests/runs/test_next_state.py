"""The next state of a run and what is measured of it: stories that cross two features."""

import dataclasses
import json
import os
import shutil
import sys
import types

import numpy as np
import pytest
from PIL import Image

from cluster_jax.cli import cluster, images, predict, update
from cluster_jax.core.checks import InputError
from cluster_jax.data.tables import Table
from cluster_jax.runs import measured, next_state, place, states
from cluster_jax.runs import run as records
from cluster_jax.runs import update as updates
from cluster_jax.runs import workdir as workdirs
from tests import toy
from tests.runs.heaps import digests, rows

FIRST = rows(30, 20, 12)


def tree(run):
    """The metrics of the clusters in `results.json`, and where their number is from."""
    results = json.loads((run / "results.json").read_text())
    return results["metrics"]["tree"], results["provenance"]["number_of_clusters"]["tree"]


def file(run, **said):
    path = run.parent / "said.json"
    path.write_text(json.dumps({"state": records.read(run).state, **said}))
    return path


def corrected(run, names=None, **said):
    states.correct(run, [file(run, **said)] if said else [], names, with_report=False)
    return records.read(run)


def test_the_verdict_is_that_of_the_clusters_that_are_shown(run):
    """Fits of more rows find another number; kept clusters are not said to be clearly apart."""
    first, origin = tree(run)
    assert (first["verdict"], origin, first["n_clusters"]) == ("clear", "found", 3)
    one = corrected(run, merges=[[2, 1]])
    metrics, origin = tree(run)
    assert (metrics["verdict"], metrics["gap"], origin) == (None, None, "corrected")
    assert metrics["cluster_sizes"] == {"0": 30, "1": 32}
    assert not one.is_of_fit
    states.undo(run, with_report=False)
    kept = dataclasses.replace(records.read(run), fit={**one.fit, "is_shown": False})
    results = measured.measured(kept).results
    metrics, origins = results["metrics"]["tree"], results["provenance"]["number_of_clusters"]
    assert (metrics["verdict"], origins["tree"]) == (None, "kept")
    assert tree(run) == (first, "found")


@pytest.mark.parametrize(
    ("found", "shown", "is_same"),
    [
        ([0, 0, 1, -1], [7, 7, 2, -1], True),
        ([0, 0, 1, -1], [7, 7, 7, -1], False),
        ([0, 0, 0, 1], [7, 7, 2, 1], False),
        ([0, 0, 1, 2], [7, 7, 2, -1], False),
    ],
)
def test_whether_the_clusters_of_the_fit_are_shown(found, shown, is_same):
    assert next_state._are_same(np.array(found), np.array(shown)) == is_same


def test_scores_are_those_of_the_rows_with_a_label(tmp_path):
    truth = np.repeat([5, 7, 9], [30, 20, 12])
    np.savez(tmp_path / "x.npz", features=FIRST, ids=np.array([f"i{i}" for i in range(62)]))
    np.save(tmp_path / "y.npy", truth)
    flags = [f"--features={tmp_path}/x.npz", f"--labels={tmp_path}/y.npy", "--report=no"]
    cluster.main([*flags, f"--workdir={tmp_path}/run", "--array=features", "--ids=ids"])
    run = tmp_path / "run"
    assert (tree(run)[0]["ari"], tree(run)[0]["acc"]) == (1, 1)
    ids = tuple(f"i{i}" for i in [*range(61, 9, -1), *range(100, 108)])
    more = np.concatenate([FIRST[:9:-1], rows(0, 8, seed=3)])
    updates.update_rows(run, Table(more, ids), with_report=False)
    metrics, _ = tree(run)
    assert (metrics["ari"], metrics["acc"], metrics["n_classes"]) == (1, 1, 3)
    assert records.read(run).truth.tolist() == [*truth[:9:-1], *[-1] * 8] or metrics["matching"]
    corrected(run, labels={"0": int(records.read(run).labels[-1])})
    assert tree(run)[0]["acc"] == pytest.approx(51 / 52)


def test_a_name_changes_only_the_name(run):
    corrected(run, wrong=[3], right=[40])
    before = records.read(run)
    after = corrected(run, {"1": "cats"})
    for name in (
        *("linkage", "outliers", "distances", "probabilities", "second_labels", "labels"),
        "second_probabilities",
    ):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name), name)
    for count in (1, 2, 3):
        np.testing.assert_array_equal(
            place.cut(after, n_clusters=count), place.cut(before, n_clusters=count)
        )
    assert after.results == before.results


def test_a_name_changes_no_score_of_rows_that_came_first(run, monkeypatch):
    """The sample of the silhouette was drawn before the rows were in the order of their file."""
    monkeypatch.setattr(measured, "SILHOUETTE_ROWS", 20)
    table = Table(np.concatenate([rows(4, 4, 4, seed=5), FIRST]))
    updates.update_rows(run, table, with_report=False)
    before = records.read(run)
    after = corrected(run, {"1": "cats"}, whole=[0])
    assert after.results == before.results
    assert corrected(run, wrong=[3]).results != before.results


def test_what_is_measured_follows_from_the_state(run):
    """Computed anew from any state, it is what the state has; but the tree of clusters stays."""
    corrected(run, labels={"0": 1}, merges=[[2, 1]])
    updates.update_rows(run, Table(rows(4, 4, 4, seed=5)), add=True, with_report=False)
    states.correct(run, names={"0": "cats"}, with_report=False)
    for number in workdirs.states(run):
        state = records.read(run, number)
        again = measured.measured(measured.described(state))
        assert again.results == state.results
        for name in ("distances", "outliers", "probabilities", "second_labels"):
            np.testing.assert_array_equal(getattr(again, name), getattr(state, name), name)
        assert again.linkage.shape == state.linkage.shape


def test_a_row_in_no_cluster_has_no_share_among_its_neighbors(run):
    """Neither of the run's rows nor of new ones; a copy of it is in no cluster, too."""
    before = records.read(run)
    after = corrected(run, wrong=[3, 5])
    others = np.setdiff1d(np.arange(62), [3, 5])
    assert (after.probabilities[[3, 5]] == 0).all()
    assert (after.probabilities[others] >= before.probabilities[others] - 1e-6).all()
    assert ((after.second_labels >= 0) == (after.second_probabilities > 0)).all()
    placed = place.place(after, FIRST[:6])
    assert placed.labels.tolist() == after.labels[:6].tolist()
    np.testing.assert_allclose(placed.probabilities, after.probabilities[:6], atol=1e-6)
    assert not place.probabilities(after, FIRST)[:, 0].any(), "the column of -1"


def test_a_refit_tells_of_rows_that_were_in_no_cluster(run, capsys):
    x = np.concatenate([FIRST, FIRST[3:4] + 1e-4])
    corrected(run, wrong=[3])
    np.save(run.parent / "more.npy", x)
    update.main([f"--workdir={run}", f"--features={run.parent}/more.npy"])
    came = int(records.read(run).labels[-1] < 0)
    capsys.readouterr()
    update.main([f"--workdir={run}", f"--features={run.parent}/more.npy", "--refit"])
    assert records.read(run).labels[[3, 62]].min() == -1
    said = capsys.readouterr().out
    assert ("1 row that was in no cluster is in one now" in said) == came, said
    assert came


def test_a_row_is_as_far_from_its_cluster_as_a_new_row_like_it(run):
    """In every state: as found, moved and divided, after an update, and in another number."""
    corrected(run, labels={"0": 1, "1": "a", "2": "a"}, new={"a": None}, wrong=[3])
    updates.update_rows(run, Table(rows(6, 2, 3, seed=8)), add=True, with_report=False)
    updates.with_number(run, 2, with_report=False)
    for number in workdirs.states(run):
        state = records.read(run, number)
        placed = place.place(state, state.features)
        same = (placed.labels == state.labels) & (state.labels >= 0)
        assert same.mean() > 0.9
        np.testing.assert_allclose(placed.distances[same], state.distances[same], rtol=1e-5)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_k_means_measures_as_before_after_a_correction(tmp_path, metric):
    """With the cosine it is 1 - cosine, whoever has made the clusters."""
    x = rows(18, 11, 7) + np.float32(1)
    np.save(tmp_path / "x.npy", x)
    flags = [f"--features={tmp_path}/x.npy", f"--workdir={tmp_path}/run", "--reduce=none"]
    cluster.main([*flags, "--method=kmeans", "--n-clusters=3", f"--metric={metric}", "--report=no"])
    first = records.read(tmp_path / "run")
    label = int(first.labels[0])
    now = corrected(tmp_path / "run", labels={"0": int(first.labels[-1])})
    stays = np.isin(first.labels, [label, first.labels[-1]], invert=True)
    np.testing.assert_allclose(now.distances[stays], first.distances[stays], rtol=1e-4, atol=1e-6)
    rest = x[1:][first.labels[1:] == label]
    if metric == "cosine":
        rest = rest / np.linalg.norm(rest, axis=1, keepdims=True)
        mean = rest.mean(axis=0) / np.linalg.norm(rest.mean(axis=0))
        expected = 1 - rest @ mean
    else:
        expected = np.linalg.norm(rest - rest.mean(axis=0), axis=1)
    found = now.distances[1:][first.labels[1:] == label]
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("flags", [[], ["--n-clusters=2"]])
def test_rows_that_a_module_leaves_out_stay_outliers(tmp_path, monkeypatch, flags):
    noise = np.arange(36) % 9 == 4
    labels = np.where(noise, -1, np.arange(36) % 2)
    module = types.SimpleNamespace(fit=lambda x, n_clusters, seed: labels)
    monkeypatch.setitem(sys.modules, "leaves_out", module)
    np.save(tmp_path / "x.npy", rows(18, 11, 7))
    how = ["--method=leaves_out", "--reduce=pca", "--report=no", *flags]
    run = tmp_path / "run"
    cluster.main([f"--features={tmp_path}/x.npy", f"--workdir={run}", *how])
    first = json.loads((run / "results.json").read_text())["metrics"]["leaves_out"]
    assert (first["n_large"], first["outliers"]) == (2, 4)
    np.testing.assert_array_equal(records.read(run).outliers, noise)
    now = corrected(run, labels={"0": 1, "13": 0})
    np.testing.assert_array_equal(now.outliers, noise & (np.arange(36) != 13))
    assert now.results["metrics"]["leaves_out"]["outliers"] == 3


def test_outliers_do_not_flip_with_corrections(tmp_path):
    """With a number that is given every cluster counts, also a small one, and after corrections."""
    np.save(tmp_path / "x.npy", rows(20, 20, 3, 3))
    run = tmp_path / "run"
    flags = [f"--features={tmp_path}/x.npy", f"--workdir={run}", "--n-clusters=4", "--report=no"]
    cluster.main(flags)
    for i in range(3):
        now = records.read(run)
        assert np.bincount(now.labels).tolist() == [20, 20, 3, 3]
        assert not now.outliers.any()
        assert now.results["metrics"]["tree"]["n_large"] == 4
        corrected(run, {"0": f"name {i}"}, right=[i])


def test_another_number_of_clusters_and_back(run):
    """After an update; numbers are never used twice, and clusters of the same rows stay."""
    big = int(records.read(run).labels[0])
    corrected(run, {str(big): "cats"}, wrong=[1])
    updates.update_rows(run, Table(rows(5, 5, 5, 9, seed=4)), add=True, with_report=False)
    before = records.read(run)
    seen = set(before.labels.tolist())
    for count in (2, 5, 4):
        update.main([f"--workdir={run}", f"--n-clusters={count}", "--report=no", "--quiet"])
        now = records.read(run)
        made = set(now.labels.tolist()) - {-1}
        assert len(made) == count
        assert now.labels[1] == -1, "what a person has decided"
        assert tree(run)[1] == "corrected"
        new = made - seen
        assert new <= {*range(before.next_label, now.next_label)}
        seen |= made
        before = now
    assert (now.labels[0], now.cluster_names) == (big, {str(big): "cats"}), "it is back"
    for count in (4, 3):
        assert len(workdirs.states(run)) == count + 2
        states.undo(run, with_report=False)
    with pytest.raises(InputError, match="n_clusters must be at most"):
        updates.with_number(run, 500)


def test_halves_of_a_cluster_get_their_own_numbers_back(tmp_path):
    """Of two equal clusters that were one for a while, each has its number and its name again."""
    np.save(tmp_path / "x.npy", rows(12, 12, 12, 12))
    run = tmp_path / "run"
    cluster.main(
        [f"--features={tmp_path}/x.npy", f"--workdir={run}", "--n-clusters=4", "--report=no"]
    )
    before = corrected(run, {str(i): f"name {i}" for i in range(4)})
    for count in (3, 2, 1):
        updates.with_number(run, count, with_report=False)
        updates.with_number(run, 4, with_report=False)
        back = records.read(run)
        np.testing.assert_array_equal(back.labels, before.labels)
        assert back.cluster_names == before.cluster_names
        assert all(event.rows for event in back.events), "each cluster that is told of is there"


def test_a_cluster_that_gets_its_number_back_is_told_to_be_back(tmp_path):
    """No row has come: the parts of a cluster that were clusters for a while are one again."""
    np.save(tmp_path / "x.npy", rows(30, 30, 30, 30))
    run = tmp_path / "run"
    cluster.main(
        [f"--features={tmp_path}/x.npy", f"--workdir={run}", "--n-clusters=2", "--report=no"]
    )
    parted = int(np.bincount(records.read(run).labels).argmax())
    corrected(run, {str(parted): "cats"})
    said, _ = updates.with_number(run, 4, with_report=False)
    assert "is back" not in said
    said, told = updates.with_number(run, 2, with_report=False)
    assert f"\n  cluster {parted} (cats) is back (90 rows)\n" in said
    assert [event["id"] for event in told["events"] if event["kind"] == "returned"] == [parted]


def test_a_fine_cut_after_all_rows_were_marked_as_wrong(run):
    """It ignores corrections, also those of before the last update."""
    corrected(run, wrong=list(range(62)))
    before = place.cut(records.read(run), n_clusters=5)
    updates.update_rows(run, Table(rows(0, 0, 0, 9)), add=True, with_report=False)
    updates.update_rows(run, refit=True, with_report=False)
    after = records.read(run)
    assert (after.labels[:62] == -1).all()
    assert len(np.unique(after.labels[62:])) == 1
    for count in (2, 4, 9):
        groups = place.cut(after, n_clusters=count)
        assert np.unique(groups).tolist() == list(range(count)), "no group is empty"
    assert len(np.unique(before)) == 5


@pytest.mark.parametrize("is_whole", [False, True])
def test_another_number_tells_that_a_merge_is_lost(run, is_whole):
    """The merged cluster is there, but a part of it is a cluster again. So is one of one kind."""
    large, small = (int(records.read(run).labels[row]) for row in (30, 50))
    if is_whole:
        updates.with_number(run, 2, with_report=False)
        large = int(records.read(run).labels[30])
        corrected(run, {str(large): "both"}, whole=[large])
    else:
        corrected(run, {str(large): "both"}, merges=[[small, large]])
    said, _ = updates.update_rows(run, refit=True, with_report=False)
    assert "holds" not in said
    said, _ = updates.with_number(run, 2, with_report=False)
    assert "holds" not in said
    said, _ = updates.with_number(run, 3, with_report=False)
    now = records.read(run)
    assert [now.labels[row] == large for row in (30, 50)] == [True, False]
    lost = "1 cluster that you had made, merged, divided or called one kind"
    assert f"This no longer holds: {lost}.\n" in said


def test_all_rows_are_others(run):
    """A new cluster has one event, by the number that it has."""
    before = records.read(run)
    _, told = updates.update_rows(run, Table(rows(0, 0, 0, 9)), confirmed=True, with_report=False)
    events = {(event["kind"], event["id"], event["rows"]) for event in told["events"]}
    new, counts = np.unique(records.read(run).labels, return_counts=True)
    wanted = {("emerged", *pair) for pair in zip(new.tolist(), counts.tolist(), strict=True)}
    wanted |= {("disappeared", i, 0) for i in np.unique(before.labels).tolist()}
    assert events == wanted


def test_a_page_of_another_number_of_clusters(run):
    """It is about the clusters that are still the same rows, and is refused for all others."""
    large, middle, small = (int(records.read(run).labels[row]) for row in (0, 30, 50))
    pages = {
        "same": file(run, names={str(large): "cats"}, labels={"31": large}).read_text(),
        "other": file(run, names={str(middle): "dogs", str(small): "birds"}).read_text(),
    }
    update.main([f"--workdir={run}", "--n-clusters=2", "--report=no", "--quiet"])
    two = records.read(run)
    halves = [set(two.labels[rows].tolist()) for rows in (slice(0, 30), slice(30, None))]
    assert [len(half) for half in halves] == [1, 1], "the smaller heaps are one cluster now"
    before = digests(run)
    (run.parent / "said.json").write_text(pages["other"])
    with pytest.raises(InputError, match="must have more than half of the rows that it has on the"):
        states.correct(run, [run.parent / "said.json"])
    assert digests(run) == before
    (run.parent / "said.json").write_text(pages["same"])
    states.correct(run, [run.parent / "said.json"], with_report=False)
    after = records.read(run)
    called = {label for label, name in after.named.items() if name == "cats"}
    assert {*after.labels[:30].tolist(), int(after.labels[31])} == called == halves[0]


def test_more_clusters_are_asked_for_than_rows_are_left(tmp_path):
    np.save(tmp_path / "x.npy", rows(9, 9, 9))
    run = tmp_path / "run"
    flags = [f"--features={tmp_path}/x.npy", f"--workdir={run}", "--n-clusters=8", "--report=no"]
    cluster.main(flags)
    left = rows(9, 9, 9)[[0, 1, 9, 18, 19]]
    updates.update_rows(run, Table(left), confirmed=True, with_report=False)
    assert len(records.read(run).labels) == 5
    updates.update_rows(run, refit=True, with_report=False)
    assert len(records.read(run).labels) == 5


def test_the_table_is_in_the_order_of_the_file(run):
    """So that a join by row is right, with new rows first, and where nothing is new."""
    own = dict(zip(map(bytes, FIRST), records.read(run).labels.tolist(), strict=True))
    order = np.random.default_rng(1).permutation(62)
    for x in (FIRST[order], np.concatenate([rows(0, 7, seed=8), FIRST[order][5:]])):
        np.save(run.parent / "now.npy", x)
        update.main([f"--workdir={run}", f"--features={run.parent}/now.npy", "--quiet"])
        table = [int(row["cluster"]) for row in toy.table(run)]
        known = {i: own[bytes(row)] for i, row in enumerate(x) if bytes(row) in own}
        assert {i: table[i] for i in known} == known
        assert len(table) == len(x)
        placed = place.place(records.read(run), x).labels
        assert placed.tolist() == table
    assert set(table[:7]) == {own[bytes(FIRST[30])]}


def test_a_cluster_that_a_person_has_divided_stays_divided(run):
    """In updates that find its parts together again and again, and in refits."""
    apart = corrected(run, new={"a": None}, labels={str(i): "a" for i in range(18)})
    half, rest = int(apart.labels[0]), int(apart.labels[20])
    assert half != rest
    for month in range(7):
        new = rows(1, 2, seed=20 + month)
        updates.update_rows(run, Table(new), add=True, refit=month == 6, with_report=False)
        now = records.read(run).labels
        assert (set(now[:18].tolist()), set(now[18:30].tolist())) == ({half}, {rest})


def test_two_processes_cluster_one_folder(run, monkeypatch, capsys):
    """The second one is refused before it clusters, and the first one ends as if it were alone."""
    np.save(run.parent / "x.npy", rows(9, 9))
    new = run.parent / "new"
    flags = [f"--features={run.parent}/x.npy", f"--workdir={new}", "--report=no"]
    said = []

    def second(*arguments, **options):
        with pytest.raises(SystemExit):
            cluster.main(flags)
        said.append(capsys.readouterr().err)
        assert [path.name for path in new.iterdir()] == ["lock"]
        return next_state.find(*arguments, **options)

    monkeypatch.setattr("cluster_jax.runs.rows.find", second)
    cluster.main(flags)
    assert len(said) == 1, "the second one has clustered nothing"
    assert f"{new} is used by another run, process {os.getpid()} on " in said[0]
    assert records.read(new).number == 1
    files = digests(new)
    cluster.main(flags)
    assert digests(new) == files, "it is finished"


def test_scores_of_novel_classes_are_those_of_now():
    """The accuracy on all classes takes the corrected clusters of the images without a class."""
    run = types.SimpleNamespace(
        has_class=np.arange(10) < 4,
        labels=np.array([0, 1, 0, 1, 2, 2, 2, 3, 3, 2]),
        known_classes=("cats", "dogs"),
        truth=np.array([0, 1, 0, 1, 2, 2, 2, 3, 3, 3]),
        columns=np.zeros(10),
    )
    metrics = {"novel": {"acc": 0.1}, "labeled_acc": 0.5, "all_acc": 0.2, "novel_classes": 2}
    now = measured._discovery(run, metrics)
    assert now["novel"]["acc"] == pytest.approx(5 / 6)
    assert now["all_acc"] == pytest.approx(0.6 * 5 / 6 + 0.4 * 0.5)
    assert (now["labeled_acc"], now["novel_classes"]) == (0.5, 2)


@pytest.mark.usefixtures("one_device", "shallow_lite")
@pytest.mark.filterwarnings("ignore:n_jobs value:UserWarning")
def test_copies_count_once_in_each_fit(tmp_path):
    """Two pictures are there in nine sizes: a refit of the same files finds what the first has."""
    pixels = toy.images(26, channels=3)[0].repeat(6, axis=1).repeat(6, axis=2)
    toy.save(tmp_path / "photos", pixels)
    for i in (3, 11):
        for side in range(30, 46, 2):
            small = Image.fromarray(pixels[i]).resize((side, side), Image.Resampling.LANCZOS)
            small.save(tmp_path / "photos" / f"{i:02}-{side}.png")
    run = tmp_path / "run"
    quick = ("data.image_size=32", "eval.batch_size=2", "eval.reduce=pca")
    flags = [f"--workdir={run}", *(f"--config.{key}" for key in quick), "--report=no", "--quiet"]
    images.main([str(tmp_path / "photos"), *flags])
    first = records.read(run)
    assert first.duplicates.n_groups >= 2
    update.main([f"--workdir={run}", "--refit", "--report=no", "--quiet"])
    again = records.read(run)
    assert again.labels.tolist() == first.labels.tolist()
    assert again.results["metrics"]["tree"] == first.results["metrics"]["tree"]


@pytest.mark.usefixtures("one_device", "shallow_lite")
@pytest.mark.filterwarnings("ignore:n_jobs value:UserWarning")
def test_a_copy_goes_where_a_person_has_put_its_photo(tmp_path):
    """One photo is in no group, and a small copy of another one has been moved, and not that one.

    Copies of both come, of which one is more like the photo that has stayed.
    """
    photos, run, new = tmp_path / "photos", tmp_path / "run", tmp_path / "new"
    wrong, moved, stays = 5, 40, 9
    pixels = toy.images(40, channels=3)[0].repeat(6, axis=1).repeat(6, axis=2)
    toy.save(photos, pixels)
    new.mkdir()

    def shrink(row, side, file):
        Image.fromarray(pixels[row]).resize((side, side), Image.Resampling.LANCZOS).save(file)

    shrink(stays, 40, photos / "small.png")
    quick = ("data.image_size=32", "eval.batch_size=2", "eval.reduce=pca", "eval.n_clusters=3")
    flags = [f"--workdir={run}", *(f"--config.{key}" for key in quick), "--report=no", "--quiet"]
    images.main([str(photos), *flags])
    first = records.read(run)
    other = int((first.labels[moved] + 1) % 3)
    corrected(run, wrong=[wrong], labels={str(moved): other})
    shrink(wrong, 40, new / "a.png")
    shrink(stays, 46, new / "b.png")
    predict.main([f"--workdir={run}", f"--images={new}", f"--out={tmp_path}/new.csv", "--quiet"])
    placed = {row["image"]: int(row["cluster"]) for row in toy.table(tmp_path, "new.csv")}
    assert placed == {"a.png": -1, "b.png": other}
    for file in new.iterdir():
        shutil.copy(file, photos)
    for flag in ("--quiet", "--refit"):
        update.main([f"--workdir={run}", flag, "--report=no", "--quiet"])
        after = records.read(run)
        where = dict(zip(after.names, after.labels.tolist(), strict=True))
        assert {name: where[name] for name in placed} == placed
        assert where[first.names[stays]] == first.labels[stays]
        assert after.columns["decided"].sum() == 2, "a person has said nothing about the copies"


def test_a_cut_is_by_the_distance_of_the_metric_and_stays_while_rows_are_only_added(tmp_path):
    """Two of these clusters lie in one direction, and are far from each other."""
    centers = np.array([(10, 10), (70, 70), (70, 10), (74, 10)])
    rng = np.random.default_rng(7)
    x = np.concatenate([center + rng.normal(size=(35, 2)) for center in centers])
    np.save(tmp_path / "x.npy", x)
    workdir = tmp_path / "run"
    flags = ["--metric=euclidean", "--report=no", "--quiet"]
    cluster.main([f"--features={tmp_path}/x.npy", f"--workdir={workdir}", *flags])
    before = records.read(workdir)
    assert len(np.unique(place.cut(before, n_clusters=3)[70:])) == 1
    for row in (0, 5, 10):  # The second pair of three clusters is as near as another one.
        updates.update_rows(workdir, Table(x[[row]] + 0.1), add=True, with_report=False)
        after = records.read(workdir)
        np.testing.assert_array_equal(after.labels[:140], before.labels)
        for k in (2, 3):
            cut = place.cut(after, n_clusters=k)[:140]
            np.testing.assert_array_equal(cut, place.cut(before, n_clusters=k))
