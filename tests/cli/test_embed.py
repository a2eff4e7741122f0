"""`cluster-jax embed` from the command line: the file it writes, and its errors."""

import json

import numpy as np
import pytest

from cluster_jax.cli import embed
from cluster_jax.runs.begin import run_pipeline
from tests import toy
from tests.cli.test_output import check_keys
from tests.rows import every_row

pytestmark = [pytest.mark.usefixtures("one_device", "shallow_lite")]


@pytest.fixture
def flags(tmp_path):
    """Those of twenty images in color."""
    source = toy.file(tmp_path, 20, channels=3)
    keys = ("data.name=arrays", f"data.dir={source}", "data.image_size=32", "eval.batch_size=2")
    return ["--config=images", *(f"--config.{key}" for key in keys)]


def test_features_from_the_shell(flags, tmp_path, capsys, refused):
    out, shards = tmp_path / "x.npz", tmp_path / "shards"
    embed.main([*flags, f"--out={out}"])
    assert capsys.readouterr().out == f"features     20 x 1,280 in {out}\n"
    stored = {**np.load(out)}
    assert stored["features"].shape == (20, 1280)
    said = refused(embed.main, *flags, f"--out={out}", "--config.data.limit=9")
    assert "--out must be new, or have features of these images; got" in said
    embed.main([*flags, f"--out={shards}", "--json"])
    told = json.loads(capsys.readouterr().out)
    check_keys("embed", told)
    assert told["shape"] == [20, 1280]
    rows = np.load(shards / "features-00000-of-00001.npy")
    np.testing.assert_allclose(rows, stored["features"], atol=1e-5)
    labels = np.load(shards / "rows-00000-of-00001.npz")["labels"]
    np.testing.assert_array_equal(labels, stored["labels"])
    before = {file: file.stat().st_mtime_ns for file in shards.iterdir()}
    embed.main([*flags, f"--out={shards}"])
    assert capsys.readouterr().out == f"features     20 x 1,280 in {shards}\n"
    assert {file: file.stat().st_mtime_ns for file in shards.iterdir()} == before


def test_an_encoder_by_name(flags, tmp_path, refused):
    embed.main([*flags, "--encoder=lite2", f"--out={tmp_path}/named.npz"])
    embed.main([*flags, f"--out={tmp_path}/x.npz"])
    named, plain = (np.load(tmp_path / f"{name}.npz")["features"] for name in ("named", "x"))
    np.testing.assert_array_equal(named, plain)
    said = refused(embed.main, *flags, "--encoder=lite", f"--out={tmp_path}/y.npz")
    assert "--encoder must be 'lite2', a .safetensors file" in said


def test_a_folder_with_parts_of_more_processes(flags, tmp_path, refused):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "rows-00000-of-00004.npz").touch()
    said = refused(embed.main, *flags, f"--out={tmp_path}/out")
    assert "with rows-00000-of-00004.npz" in said


@every_row(
    ("flags", "message"),
    [
        ("", "arguments are required: --out"),
        ("--out=x.npy", "must be the path of an .npz file or"),
        ("--out=no/x.npz", "--out must be a file in a folder that exists"),
        ("--out=x.npz --config=nrcc_digits", "must be those of a pretrained network"),
        (
            "--out=x.npz --workdir=w",
            "must be alone, with --split and --out; got --config",
        ),
        ("--out=x.npz --split=test", "--split must be left out without --workdir; got test"),
    ],
)
def test_one_sentence_for_bad_flags(flags, message, refused):
    assert message in refused(embed.main, "--config=images", *flags.split())


@pytest.mark.usefixtures("traced_once")
@pytest.mark.parametrize("kind", ["images", "features"])
def test_a_split_by_the_network_of_a_training(kind, tmp_path, refused):
    """Features and labels of the images that were trained on, and of those that were held out."""
    if kind == "images":
        config, labels = toy.config(toy.file(tmp_path, 60)), toy.images(60)[1]
    else:
        config, labels = toy.shrunken("simclr_features", tmp_path), np.arange(80) % 4
    config.novel.holdout = 0.25
    config.eval.reduce = "pca"  # Numba compiles UMAP for seconds, in other modules.
    config.train.update(duration="2 steps", checkpoint_every=2)
    run = tmp_path / "run"
    run_pipeline(config, run)
    for split in ("train", "test"):
        embed.main([f"--workdir={run}", f"--split={split}", f"--out={tmp_path}/{split}.npz"])
    train, test = ({**np.load(tmp_path / f"{split}.npz")} for split in ("train", "test"))
    both = np.concatenate([train["labels"], test["labels"]])
    np.testing.assert_array_equal(np.sort(both), np.sort(labels))
    assert len(test["features"]) == len(test["labels"]) < len(train["labels"])
    layer = config.eval.features
    stored = {**np.load(run / "embedding.npz")}
    np.testing.assert_allclose(train["features"], stored[layer], atol=1e-4)
    np.testing.assert_array_equal(train["labels"], stored["labels"])
    embed.main([f"--workdir={run}", "--split=test", f"--out={tmp_path}/shards"])
    rows = np.load(tmp_path / "shards" / "features-00000-of-00001.npy")
    np.testing.assert_allclose(rows, test["features"], atol=1e-5)
    said = refused(embed.main, f"--workdir={run}", "--split=val", f"--out={tmp_path}/v.npz")
    assert "--split must be one of 'train', 'test'; got 'val'" in said
    said = refused(embed.main, f"--workdir={run}", "--split=test", f"--out={tmp_path}/train.npz")
    assert "--out must be new, or have features of these images" in said
