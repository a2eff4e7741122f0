"""The folder of a run: whose it is, what a finished run has in it, and its default name."""

import json
import pathlib

import numpy as np
import pytest

from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.data.images import Dataset, with_channels
from cluster_jax.runs import claims, config_paths
from cluster_jax.runs import workdir as workdirs

CONFIG = {"seed": 0, "method": {"name": "byol", "decay": 0.9}, "train": {"batch_size": 16}}

OF_IMAGES = {**CONFIG, "data": {"dir": None}, "eval": {}}


def _write(folder, config=CONFIG, **results):
    folder.mkdir()
    io.write_json(folder / "config.json", config)
    if results:
        about = {"format": workdirs.FORMAT, "config": io.plain(config), "results": results}
        io.write_arrays(folder / "run-1.npz", {"about": np.array(json.dumps(about))})
    return folder


def test_a_new_or_unfinished_workdir_is_free(tmp_path):
    assert claims.claim(tmp_path / "new" / "run", CONFIG) is None
    assert claims.claim(_write(tmp_path / "run"), CONFIG) is None
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("x")
    assert claims.claim(tmp_path / "notes", CONFIG) is None


def test_a_finished_run_is_returned(tmp_path):
    """With its own config, in which tuples count as lists."""
    config = {**OF_IMAGES, "eval": {"knn": (5, 20)}}
    folder = _write(tmp_path / "run", config, metrics={"acc": 1})
    assert claims.claim(folder, config)["results"]["metrics"] == {"acc": 1}
    # An evaluation that was interrupted has written its config, but no state.
    other = {**config, "eval": {"knn": (1,)}}
    io.write_json(folder / "config.json", other)
    finished = claims.claim(folder, other)
    assert finished["config"]["eval"]["knn"] == [5, 20]


def test_only_the_compared_part_must_be_the_same(tmp_path):
    """Of images, that of which the embeddings are made; of embeddings, all."""
    folder = _write(tmp_path / "run", OF_IMAGES, provenance={})
    assert claims.claim(folder, {**OF_IMAGES, "eval": {"knn": (1,)}})
    for config in (OF_IMAGES, CONFIG):
        folder = _write(tmp_path / f"run{len(config)}", config, provenance={})
        with pytest.raises(
            InputError, match=r"has a run with another seed; choose another folder$"
        ):
            claims.claim(folder, {**config, "seed": 1})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"seed": 3, "train": {"batch_size": 32}, "method": {"name": "ncc", "x": 1}},
            "another method.name, method.decay, method.x, seed, train.batch_size; choose another",
        ),
        ({"train": {"batch_sise": 16}}, "another train.batch_sise, train.batch_size; choose"),
        ({"train": {"batch_size": 16, "more": None}, "seed": {"x": 1}}, "with another seed; "),
        ({"train": {f"key_{i}": 0 for i in range(20)}}, r"another .{77}\.\.\.; choose"),
        ({"note": ""}, "was written by an older version of cluster_jax"),
    ],
)
def test_a_run_of_another_config(tmp_path, config, message):
    with pytest.raises(InputError, match=message) as error:
        claims.claim(_write(tmp_path / "run"), {**CONFIG, **config})
    assert "\n" not in str(error.value)


def test_an_unfinished_run_of_other_images(tmp_path):
    folder = _write(tmp_path / "run", OF_IMAGES)
    images = {"size": 3, "sha256": "x"}
    assert claims.check_images(folder, images) == {}
    io.write_json(folder / "images.json", {**images, "workdir": "x"})
    assert claims.check_images(folder, images).keys() == {*images, "workdir"}
    do = "remove that folder, which has no results yet, or choose another folder$"
    with pytest.raises(InputError, match=f"have changed since the run in {folder} started: {do}"):
        claims.check_images(folder, {**images, "sha256": "y"})


@pytest.mark.parametrize("name", ["clusters.npz", "clusterer.npz"])
def test_a_folder_of_an_older_version(tmp_path, name):
    folder = _write(tmp_path / "run")
    (folder / name).write_bytes(b"x")
    with pytest.raises(InputError, match="was written by an older version of cluster_jax"):
        claims.claim(folder, CONFIG)


def test_what_is_no_workdir(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(InputError, match="file is a file; choose another"):
            claims.claim(path, CONFIG)
    for content in ("{", "[1]"):
        folder = _write(tmp_path / f"run{len(content)}")
        (folder / "config.json").write_text(content)
        with pytest.raises(InputError, match=r"config.json is damaged .* choose another folder"):
            claims.claim(folder, CONFIG)


def test_of_a_damaged_state_it_is_said_what_to_do(tmp_path):
    folder = _write(tmp_path / "run")
    (folder / "run-1.npz").write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"run-1.npz is damaged .*, or run the command of the run"):
        workdirs.stored_config(folder)
    (folder / "run-2.npz").write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"run-2.npz is damaged .* --undo`$"):
        workdirs.stored_config(folder)


@pytest.mark.parametrize("name", ["assignments.csv", "embedding.npz"])
def test_files_of_a_run_are_not_written_over(tmp_path, name):
    (tmp_path / "mine.txt").write_text("x")
    assert claims.claim(tmp_path, CONFIG) is None
    (tmp_path / name).write_text("x")
    with pytest.raises(InputError, match=f"must have config.json beside {name}.* choose another"):
        claims.claim(tmp_path, CONFIG)


def test_the_default_path(tmp_path):
    path = claims.default_path("runs", "my photos/1", CONFIG)
    assert str(path).startswith("runs/my_photos_1-")
    assert path == claims.default_path("runs", "my photos/1", json.loads(json.dumps(CONFIG)))
    assert path != claims.default_path("runs", "my photos/1", {**CONFIG, "seed": 1})


def test_all_images_in_memory_are_told_apart():
    pixels = np.zeros((300, 2, 2, 1), np.uint8)
    dataset = Dataset("arrays", 300, (2, 2, 1), pixels, pixels.__getitem__)
    said = claims.describe_images(dataset)
    assert claims.describe_images(with_channels(dataset, 3)) == said
    pixels[6, 1, 1] = 1  # which is none of 256 evenly spaced ones
    assert claims.describe_images(dataset) != said


def test_blank_lines_are_no_folder():
    assert config_paths.normalized("/a\n\n/b/\n") == "/a\n/b"
    assert config_paths.normalized("") == ""


def _paths(folder):
    """A config of which each path is a file in a folder."""
    return {
        "data": {"dir": f"{folder}/a\n{folder}/b", "labels": f"{folder}/labels.csv"},
        "encoder": f"{folder}/resnet18.safetensors",
        "network": {"weights": f"{folder}/w/resnet50.safetensors"},
        "init_from": f"{folder}/first",
        "stages": {
            "one": {"network": {"weights": f"{folder}/s/one.safetensors"}, "seed": 3},
            "two": {"train": {"steps": 3}},
            "three": {"network": {"weights": f"{folder}/s/three.safetensors"}},
        },
        "eval": {},
    }


def _make(config):
    for path in config_paths.paths_of(config).values():
        for line in path.split("\n"):
            pathlib.Path(line).mkdir(parents=True)


def test_all_paths_of_a_config_move_with_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stored = config_paths.with_absolute_paths(_paths("old"))
    assert stored == _paths(tmp_path / "old")
    assert len(config_paths.paths_of(stored)) == 7
    images = {"workdir": str(tmp_path / "old" / "runs" / "run")}
    _make(stored)
    old, new = (tmp_path / name / "runs" / "run" for name in ("old", "new"))
    assert config_paths.with_located(stored, old, images) == stored
    assert config_paths.with_located(stored, new, images) == stored, "what is there is taken"
    (tmp_path / "old").rename(tmp_path / "new")
    assert config_paths.with_located(stored, new, images) == _paths(tmp_path / "new")
    assert claims.made_from(stored, {}) == claims.made_from(_paths(tmp_path / "new"), {})
    # Only the weights stay behind.
    (tmp_path / "old" / "resnet18.safetensors").mkdir(parents=True)
    (tmp_path / "new" / "resnet18.safetensors").rmdir()
    now = config_paths.with_located(stored, new, images)
    assert now == {**_paths(tmp_path / "new"), "encoder": stored["encoder"]}


def test_others_have_come_to_the_place_that_photos_and_run_have_left(tmp_path):
    """The folder with more photos of the run is theirs, whichever files are in the other one."""
    old, new = tmp_path / "old", tmp_path / "new"
    stored = {"data": {"dir": f"{old}/photos\n{old}/one.jpg"}, "eval": {}}
    names = ["photos/1.jpg", "photos/a/2.jpg", "photos/a/3.jpg", "one.jpg"]
    for name in (*names, "run/lock"):
        (new / name).parent.mkdir(parents=True, exist_ok=True)
        (new / name).touch()
    (old / "photos").mkdir(parents=True)

    def located():
        images = {"workdir": str(old / "run")}
        return config_paths.with_located(stored, new / "run", images, names)["data"]["dir"]

    for other in ("9.jpg", "1.jpg"):
        (old / "photos" / other).touch()
        assert located() == f"{new}/photos\n{new}/one.jpg"
    (new / "photos" / "a").rename(old / "photos" / "a")
    assert located() == f"{old}/photos\n{new}/one.jpg"


@pytest.mark.parametrize("name", ["lite2", "hf:a/resnet18.safetensors", "folders", "gs://b/x"])
def test_names_are_no_paths(name):
    config = {"data": {"dir": None, "labels": "folders"}, "encoder": name, "eval": {}}
    assert config_paths.with_absolute_paths(config) == config
    assert config_paths.with_absolute_paths({"network": {"weights": name}}) == {
        "network": {"weights": name}
    }


def test_names_of_images_follow_their_folders(tmp_path):
    """One of two folders has moved, so that another folder holds both."""
    before = f"{tmp_path}/home/a\n{tmp_path}/home/b"
    now = f"{tmp_path}/disk/a\n{tmp_path}/home/b"
    names = ("a/1.jpg", "b/sub/2.jpg", "elsewhere.jpg")
    assert config_paths.relocated(names, before, before) == names
    assert config_paths.relocated(names, before, now) == (
        "disk/a/1.jpg", "home/b/sub/2.jpg", "elsewhere.jpg",
    )  # fmt: skip
