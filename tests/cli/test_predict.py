"""New images in the clusters of a finished run: the command, its table and what it refuses."""

import dataclasses
import json
import os
import shutil
from io import StringIO

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from cluster_jax.cli import predict, predictions
from cluster_jax.clustering import membership
from cluster_jax.clustering.base import Assignment
from cluster_jax.core import io, logs
from cluster_jax.core.checks import InputError
from cluster_jax.data import datasets
from cluster_jax.encoding.encoder import Encoder
from cluster_jax.runs import begin as pipeline
from cluster_jax.runs import carry, place
from cluster_jax.runs import run as records
from cluster_jax.runs.run import Run
from tests import toy
from tests.cli.test_output import check_keys

pytestmark = pytest.mark.usefixtures("one_device", "compiled_once")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Workdir of a finished run whose images are gone, and the config."""
    folder = tmp_path_factory.mktemp("trained")
    config = toy.config(toy.file(folder, 90), network=toy.CONVOLUTIONS)
    pipeline.run_pipeline(config, folder / "run")
    (folder / "toy.npz").unlink()
    return folder / "run", config


@pytest.fixture
def workdir(trained, tmp_path):
    """A copy to do damage to."""
    return shutil.copytree(trained[0], tmp_path / "run")


def _columns(rows, *names):
    return [[float(row[name]) for row in rows] for name in names]


def test_training_images_get_their_own_cluster(trained, tmp_path, capsys):
    workdir, _ = trained
    np.save(tmp_path / "x.npy", toy.images(90)[0])
    predict.main([f"--workdir={workdir}", f"--images={tmp_path}/x.npy", f"--out={tmp_path}/p.csv"])
    rows, old = toy.table(tmp_path, "p.csv"), toy.table(workdir)
    assert [row["image"] for row in rows] == [row["image"] for row in old]
    assert _columns(rows, "cluster") == _columns(old, "cluster")
    np.testing.assert_allclose(*_columns(rows, "distance"), *_columns(old, "distance"), atol=1e-4)
    assert set(rows[0]) == {"image", "cluster", "distance", "novelty", "is_novel"}
    assert {row["is_novel"] for row in rows} == {"0"}
    assert "Assigned 90 images to " in capsys.readouterr().out
    assert not (workdir / "predictions.csv").exists()


def test_images_do_not_affect_each_other(trained):
    run = records.read(trained[0])
    embed = run.encoder().embed
    pixels = toy.images(100, seed=8)[0]

    def features(images):
        return embed(datasets.load_new(images, toy.DATA, (8, 8, 1)))

    together, rows = features(pixels), [0, 5, 63, 64, 99]
    others = toy.images(100, seed=9)[0]
    others[rows] = pixels[rows]
    assert (features(others)[rows] == together[rows]).all()
    # At another place in its batch an image is rounded otherwise on some processors.
    alone = np.concatenate([features(pixels[i : i + 1]) for i in rows])
    np.testing.assert_allclose(alone, together[rows], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, rtol=1e-5)
    few, all_ = place.place(run, alone), place.place(run, together)
    assert (few.labels == all_.labels[rows]).all()
    assert (few.is_novel == all_.is_novel[rows]).all()
    np.testing.assert_allclose(few.distances, all_.distances[rows], rtol=1e-3, atol=1e-5)


def test_progress_counts_no_padding(trained, monkeypatch):
    bars, tqdm = [], logs.tqdm

    def made(items, **options):
        bars.append(tqdm(items, **{**options, "file": StringIO(), "disable": False}))
        return bars[-1]

    monkeypatch.setattr(logs, "tqdm", made)
    run = records.read(trained[0])
    dataset = datasets.load_new(toy.images(5)[0], toy.DATA, (8, 8, 1))
    assert len(run.encoder().embed(dataset)) == 5
    assert [(bar.total, bar.n) for bar in bars] == [(5, 5)]


def test_new_images_join_their_like(trained):
    """Images of the same four kinds: placed as well as the training images are clustered."""
    run = records.read(trained[0])
    pixels, kinds = toy.images(80, seed=8)
    dataset = datasets.load_new(pixels, toy.DATA, (8, 8, 1))
    placed = place.place(run, run.encoder().embed(dataset))
    known = toy.images(90)[1]
    clusters = run.labels
    commonest = np.array(
        [np.bincount(known[clusters == c]).argmax() for c in range(max(clusters) + 1)]
    )
    before = (commonest[clusters] == known).mean()
    assert (commonest[placed.labels] == kinds).mean() >= before - 0.1
    assert placed.is_novel.mean() < 0.2
    foreign = place.place(run, -run.features)
    assert foreign.is_novel.all()


def test_a_folder_with_files_that_cannot_be_read(trained, tmp_path, capsys):
    workdir, _ = trained
    pixels = toy.images(12, seed=5)[0]
    toy.save(tmp_path / "new" / "sub", pixels)
    (tmp_path / "new" / "broken.png").write_bytes(b"no image")
    predict.main([f"--workdir={workdir}", f"--images={tmp_path}/new"])
    assert "skipped broken.png (not an image)" in capsys.readouterr().out
    rows = toy.table(workdir, "predictions.csv")
    (workdir / "predictions.csv").unlink()
    assert [row["image"] for row in rows] == [f"sub/{i:02}.png" for i in range(12)]
    run = records.read(workdir)
    dataset = datasets.load(toy.DATA, pixels)
    placed = place.place(run, run.encoder().embed(dataset))
    assert _columns(rows, "cluster") == [placed.labels.tolist()]
    predict.main([f"--workdir={workdir}", f"--images={tmp_path}/new/sub/03.png",
                  f"--out={tmp_path}/one.csv"])  # fmt: skip
    (one,) = toy.table(tmp_path, "one.csv")
    # A forward pass of one image rounds otherwise than one of a batch.
    for title in ("distance", "novelty"):
        assert float(one.pop(title)) == pytest.approx(float(rows[3].pop(title)), rel=1e-4)
    assert one == {**rows[3], "image": "03.png"}


def test_tsne_refuses(workdir, tmp_path, refused, monkeypatch):
    run = records.read(workdir)
    dataclasses.replace(run, placer=None).write()  # as such a run leaves it
    monkeypatch.setattr(Run, "encoder", lambda run: pytest.fail("too late"))
    np.save(tmp_path / "x.npy", toy.images(2)[0])
    sentence = refused(predict.main, f"--workdir={workdir}", f"--images={tmp_path}/x.npy")
    assert "t-SNE" in sentence
    assert "eval.reduce=umap" in sentence


def test_an_encoder_that_is_missing_or_damaged_is_made_again(trained, workdir):
    """New images need no checkpoint and no training built again, only `encoder.npz`."""
    pixels, (_, config) = toy.images(5, seed=8)[0], trained
    np.savez(trained[0].parent / "toy.npz", images=toy.images(90)[0], labels=toy.images(90)[1])
    wanted = Encoder.load(workdir)(pixels)
    assert_array_equal(records.read(workdir).encoder()(pixels), wanted)
    file, content = workdir / "encoder.npz", (workdir / "encoder.npz").read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"encoder\.npz is damaged"):
        records.read(workdir).encoder()
    file.unlink()
    with pytest.raises(InputError, match=r"encoder\.npz must be that of .*got none or another one"):
        records.read(workdir).encoder()
    with pytest.raises(InputError, match=r"got .*run, without encoder\.npz"):
        Encoder.load(workdir)
    io.write_arrays(file, {"x": np.zeros(3)})
    with pytest.raises(InputError, match="must be an encoder that `save` has written"):
        Encoder.load(file)
    file.unlink()
    pipeline.run_pipeline(config, workdir)
    assert_array_equal(Encoder.load(workdir)(pixels), wanted)
    # Other features of the same training are clustered: those of new images follow.
    other = config.copy_and_resolve_references()
    other.eval.features = "backbone"
    pipeline.run_pipeline(other, workdir)
    run = records.read(workdir)
    assert run.features.shape[1] != wanted.shape[1]
    rows = Encoder.load(workdir)(toy.images(90)[0])
    np.testing.assert_allclose(rows, run.features, atol=1e-5)
    shutil.rmtree(workdir / "checkpoints")
    assert_array_equal(Encoder.load(workdir)(toy.images(90)[0]), rows)
    file.unlink()
    with pytest.raises(InputError, match=r"must have its checkpoints, of which encoder\.npz"):
        pipeline.run_pipeline(other, workdir)
    (trained[0].parent / "toy.npz").unlink()


def test_images_that_are_not_there_or_do_not_fit(trained, tmp_path, refused):
    flag = f"--workdir={trained[0]}"
    (tmp_path / "empty").mkdir()
    np.save(tmp_path / "x.npy", np.zeros((2, 8, 8, 2), np.uint8))
    for name, said in (
        ("none", "error: --images must be an existing folder of images"),
        ("empty", "error: --images must hold images, such as jpg,"),
        ("empty", "no image file"),
        ("x.npy", "C = 1 or 3; got"),
    ):
        assert said in refused(predict.main, flag, f"--images={tmp_path}/{name}")
    assert not (trained[0] / "predictions.csv").exists()


def test_tables_that_cannot_be_written(trained, tmp_path, refused, monkeypatch):
    np.save(tmp_path / "x.npy", toy.images(2)[0])
    flags = f"--workdir={trained[0]}", f"--images={tmp_path}/x.npy"
    (tmp_path / "folder").mkdir()
    said = refused(predict.main, *flags, f"--out={tmp_path}/folder")
    assert "--out must be a file; got the folder" in said
    with monkeypatch.context() as patch:
        patch.setenv("HOME", str(tmp_path))
        predict.main([*flags, "--out=~/p.csv"])
    assert len(toy.table(tmp_path, "p.csv")) == 2
    (tmp_path / "p.csv").write_text("old")
    (tmp_path / "link.csv").symlink_to("p.csv")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDWR)
    for name in ("link.csv", "pipe"):
        predict.main([*flags, f"--out={tmp_path}/{name}"])
    assert len(toy.table(tmp_path, "p.csv")) == 2
    assert os.read(reader, 5) == b"image"
    os.close(reader)
    monkeypatch.setattr(Run, "encoder", lambda run: pytest.fail("too late"))
    sentence = refused(predict.main, *flags, f"--out={tmp_path}/none/p.csv")
    assert f"--out must be a file in a folder that exists; got {tmp_path}/none/p.csv" in sentence


def test_export_of_new_images(trained, tmp_path, capsys, refused, monkeypatch):
    workdir, _ = trained
    pixels = toy.images(12, seed=5)[0]
    for folder, some in (("a", pixels[:6]), ("b", pixels[6:])):
        toy.save(tmp_path / "new" / folder, some)
    (tmp_path / "new" / "broken.png").write_bytes(b"no image")
    flags = [f"--workdir={workdir}", f"--out={tmp_path}/p.csv"]
    images = f"--images={tmp_path}/new"
    predict.main([*flags, images, f"--export={tmp_path}/out"])
    clusters = {row["image"]: int(row["cluster"]) for row in toy.table(tmp_path, "p.csv")}
    assert f"exported     {len(set(clusters.values()))} folders" in capsys.readouterr().out
    links = list((tmp_path / "out").glob("*/*"))
    found = {str(f.resolve().relative_to(tmp_path / "new")): f.parent.name for f in links}
    assert found == {name: f"cluster_{cluster:02d}" for name, cluster in clusters.items()}
    predict.main([*flags, images, f"--export={tmp_path}/again", "--json"])
    told = json.loads(capsys.readouterr().out)
    check_keys("predict", told)
    assert told["exported"] == f"{tmp_path}/again"
    np.save(tmp_path / "x.npy", pixels)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    # What cannot be used is refused before the work.
    monkeypatch.setattr(Run, "encoder", lambda run: pytest.fail("too late"))
    for source, to, said in (
        (images, "mine", "must be new or empty"),
        (f"--images={tmp_path}/x.npy", "pixels", "images in files; got a run on arrays"),
        (images, "new/out", "outside of the images' folder"),
    ):
        assert said in refused(predict.main, *flags, source, f"--export={tmp_path}/{to}")


def test_what_is_printed_of_new_images(trained, tmp_path):
    run = records.read(trained[0])
    columns, clusters = run.columns.copy(), np.repeat([0, 1, 2], [40, 48, 2])
    columns["label"] = clusters
    run = dataclasses.replace(run, columns=columns, outliers=clusters == 2)
    labels = np.array([1, 2, 0, 1, 2, 2])
    placed = Assignment(labels, np.zeros(6), np.where(labels == 0, 2.0, 0.5))
    run = dataclasses.replace(run, named={2: "cats"})
    words = "image", "cluster"
    lines = predictions._written(run, placed, None, tmp_path / "p.csv", words)[0].splitlines()
    assert lines[:3] == [
        "cluster  2  3  images  cats",
        "cluster  1  2  images",
        "cluster  0  1  image",
    ]
    sentence = "Assigned 6 images to 3 clusters; 1 is unlike all images of the run."
    assert lines[3:] == [sentence, f"predictions  {tmp_path / 'p.csv'}"]


def test_placed_rows_have_probabilities(tmp_path):
    """Those of the votes, in the clusters that a person has merged."""
    file = toy.file(tmp_path, 90)
    config = toy.config(file)
    config.eval.method = "tree"
    pipeline.run_pipeline(config, tmp_path / "run")
    run = records.read(tmp_path / "run")
    rng = np.random.default_rng(0)
    rows = run.features + rng.normal(size=run.features.shape).astype(np.float32) / 3
    placed = place.place(run, rows)
    leaves, smoother = run.labels[run.placer.sample], run.placer.smoother
    around = membership.shares(smoother, leaves)
    shares = membership.probabilities(smoother, np.arange(around.shape[1]), around, rows)
    every = np.arange(len(rows))
    assert (placed.probabilities == shares[every, placed.labels]).all()
    has_other = placed.second_labels >= 0
    assert has_other.any()
    others = shares[every[has_other], placed.second_labels[has_other]]
    assert (placed.second_probabilities[has_other] == others).all()
    # The runner-up of a cluster that has become a part of another is that one.
    first, second = placed.labels[has_other][0], placed.second_labels[has_other][0]
    merged = carry.corrected(run, {"merges": [[int(first), int(second)]]})
    again = place.place(merged, rows[has_other][:1])
    assert again.labels[0] == second
    assert again.probabilities[0] >= shares[has_other][0, [first, second]].sum() - 1e-6

    # A copy of an image that a person has moved, or marked wrong, goes with it, and no other does.
    moved = [int(run.labels.max()) - int(run.labels[i]) for i in (0, 1)]
    said = {"labels": {"0": moved[0], "1": moved[1]}, "wrong": [2]}
    corrected = carry.corrected(run, said)
    near = run.features + rng.normal(size=run.features.shape).astype(np.float32) / 1_000
    followed = place.place(corrected, 3 * near)
    assert followed.labels[:3].tolist() == [*moved, -1]
    assert followed.probabilities[:3].tolist() == [1, 1, 0], "0 in no cluster"
    assert followed.second_labels[:3].tolist() == [-1, -1, -1]
    assert (followed.labels[3:] == place.place(run, near).labels[3:]).mean() > 0.9
