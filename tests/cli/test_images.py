"""`cluster-jax images`: one command from a folder of photos to a report."""

import collections
import dataclasses
import hashlib
import json
import logging
import pathlib
import shutil
import types

import numpy as np
import pytest
from etils import epath
from PIL import Image

from cluster_jax.cli import cluster, images, report, update
from cluster_jax.core.config import load_config
from cluster_jax.data import decode
from cluster_jax.data import images as data
from cluster_jax.report import report_data
from cluster_jax.runs import claims
from cluster_jax.runs import run as records
from cluster_jax.runs.run import Run
from cluster_jax.training.config import parse_config
from tests import toy
from tests.report.test_report import Page
from tests.rows import every_row

pytestmark = [pytest.mark.usefixtures("one_device", "shallow_lite")]

QUICK = (
    "--config.data.image_size=48", "--config.eval.batch_size=16",
    "--config.eval.reduce=pca",
)  # fmt: skip


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "my photos"
    toy.save(folder, toy.images(48, channels=3)[0])
    return folder


def test_a_folder_that_was_mended_after_a_first_attempt(tmp_path, refused):
    """The same command takes its photos of now: nothing was finished."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/text.jpg").write_text("no image")
    command = (images.main, str(tmp_path / "photos"), f"--workdir={tmp_path}/run", *QUICK)
    assert "text.jpg (not an image): save them anew" in refused(*command)
    toy.save(tmp_path / "photos", toy.images(8, channels=3)[0])
    images.main([*command[1:], "--report=no"])
    assert len(toy.table(tmp_path / "run")) == 8


def test_an_encoder_of_the_hub_without_a_network_is_one_sentence(photos, monkeypatch, refused):
    """The last one; that it is tried again says the library."""
    hub = pytest.importorskip("huggingface_hub")
    logger = logging.getLogger("huggingface_hub.utils._http")

    def download(repository, name):
        logger.warning("Retrying in 1s [Retry 1/5].")
        raise hub.errors.LocalEntryNotFoundError("no network")

    monkeypatch.setattr(hub, "hf_hub_download", download)
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda repository, name: None)
    flags = f"--workdir={photos.parent / 'out'}", "--encoder=hf:facebook/dinov2-small"
    assert refused(images.main, str(photos), *flags) == (
        "error: preprocessor_config.json of 'hf:facebook/dinov2-small' must be within reach on "
        "the Hugging Face Hub; got "
        "LocalEntryNotFoundError: try again with a network, or download the files of the model "
        "elsewhere into a folder dinov2-small and give the path of model.safetensors"
    )


def test_the_conclusion_names_groups_and_counts_copies(tmp_path):
    """Each word follows from the state; the results in it are not read."""
    labels = np.repeat(np.arange(-1, 11), [13, 6, 7, 7, *[6] * 7, 15])
    columns = np.zeros(90, records.COLUMNS)
    columns["label"] = columns["found"] = labels
    config = load_config("images")
    values = parse_config(config, "images").values
    out = tmp_path / "out"
    run = dataclasses.replace(
        Run("photos", epath.Path(out), values, {}),
        columns=columns,
        fit={"verdict": "clear", "is_shown": True},
        suggested={i: [name, "other"] for i, name in enumerate("abcdefghija")},
        copies=types.SimpleNamespace(n_groups=2),
    )

    def concluded(**changes):
        return images._conclusion(dataclasses.replace(run, **changes), out)

    said = concluded()
    assert "90 photos, 11 groups (clearly apart).\n" in said
    assert "the same command with --n-clusters=N" in said
    assert "the same command with --n-clusters=N" in concluded(updates=1)
    shown = "a (other), b, c, d, e, f, g, h"
    assert "Sizes: 15, 7, 7, 6, 6, 6, 6, 6, 6, 6, and 1 more.\nThey" in said
    said_names = f"They look like {shown}, and 3 more.\n"
    network = "Compared by EfficientNet-Lite2, trained on ImageNet-1k with the labels of its 1,000"
    assert f"{said_names}{network} classes.\n2 sets of equal or nearly equal photos." in said
    few = {"suggested": {0: ["a"], 1: ["b"]}, "copies": None}
    sure = {"second_labels": labels, "second_probabilities": np.zeros(90)}
    said = concluded(**few, **sure, probabilities=np.where(np.arange(90) // 4 == 5, 0.4, 1.0))
    assert "(clearly apart); 4 photos are doubtful.\nSizes: " in said
    assert " more.\nThey look like a, b.\nCompared by " in said
    assert "Report: none yet: " in said
    one = columns.copy()
    one["label"] = 0
    said = concluded(**few, columns=one)
    assert "90 photos, 1 group (" in said
    assert "Sizes: 90.\nIt looks like a.\n" in said
    out.mkdir()
    (out / "report.html").touch()
    assert f" classes.\nReport: {out}/rep" in concluded(**few)
    assert "look like" not in concluded(suggested={})
    assert "11 groups (as you have corrected them)" in concluded(shaped=frozenset({1}))
    assert "11 groups (as before; `update --refit`" in concluded(fit={"verdict": "clear"})
    with config.unlocked():
        config.eval.n_clusters = 11
    said = concluded(config=parse_config(config, "images").values)
    assert "11 groups (the number asked for)." in said
    one = columns.copy()
    one["label"] = one["found"] = 0
    few = {"verdict": "one_cluster", "is_shown": True, "rows_clustered": 1}
    said = concluded(columns=one, fit=few)
    assert "1 group (too few different photos to look for more)" in said


def test_names_of_two_groups_are_never_the_same():
    names = {"0": ["parachute", "sky"], "1": ["church"], "2": ["parachute", "sky"], "7": ["x"]}
    found = report_data.suggested_names({**names, "8": ["x"]})
    assert found == {
        "0": "parachute (sky)", "1": "church", "2": "parachute (2)", "7": "x", "8": "x (8)",
    }  # fmt: skip


def _needs_no_photos(run, refused, export):
    """Where all photos are away, only an export asks for them."""
    said = refused(report.main, str(run), f"--export={export}")
    assert "bring " in said
    assert " back, or name its new place by `cluster-jax update --workdir=" in said
    before = (run / "report.html").read_text()
    report.main([str(run), "--name=0=of no photo"])
    drawn = Page((run / "report.html").read_text()).record["map"]["clusters"]
    assert "of no photo" in {cluster["name"] for cluster in drawn}
    update.main([f"--workdir={run}", "--undo"])
    assert (run / "report.html").read_text() == before
    assert Page(before).record["map"]["sheets"][0]["uri"].startswith("data:image/webp")


def _exported(run, folder):
    """The folders of an export, in which each photo has the place that the tables say."""
    kept = {row["image"]: row["keep"] for row in toy.table(run, "duplicates.csv")}
    names = {row["image"]: row["name"] for row in toy.table(run)}
    wanted = {(i, "copies" if kept.get(i) == "0" else name) for i, name in names.items()}
    found = {(file.resolve().name, file.parent.name) for file in folder.glob("*/*")}
    assert found == wanted
    return {name for _, name in found}


def _another_number_and_back(photos, out, streamed, capsys):
    """Another number of groups takes the place of the one before, and an undo goes back."""
    table, features = ((out / name).read_bytes() for name in ("assignments.csv", "store-0.npz"))
    images.main([str(photos), f"--workdir={out}", "--n-clusters=2", *streamed])
    undo = f"`cluster-jax update --workdir={out} --undo` brings them back\n"
    said = f"{out} are of another eval.n_clusters: they are replaced, and {undo}"
    assert said in capsys.readouterr().out
    assert len({row["cluster"] for row in toy.table(out)}) == 2
    assert (out / "store-0.npz").read_bytes() == features, "not made again"
    update.main([f"--workdir={out}", "--undo"])
    assert (out / "assignments.csv").read_bytes() == table


def test_groups_report_and_what_to_try_next(photos, tmp_path, capsys, refused, monkeypatch):
    opened = []
    monkeypatch.setattr(images.webbrowser, "open", opened.append)
    shutil.copy(photos / "00.png", photos / "copy.png")
    (photos / "text.png").write_text("no image")
    out, linked = tmp_path / "out", tmp_path / "linked"
    streamed = (*QUICK, "--config.data.cache_mb=0")
    images.main([str(photos), f"--workdir={out}", "--n-clusters=3", "--open", *streamed])
    results = json.loads((out / "results.json").read_text())
    assert results["provenance"]["number_of_clusters"]["tree"] == "given"
    said = capsys.readouterr().out
    assert said.startswith("50 images of my photos, compared by a network trained on other photos")
    assert "\n49 photos, 3 groups (the number asked for)" in said
    assert f"\nReport: {out}/report.html\n" in said
    assert opened == [(out / "report.html").as_uri()]
    # What is corrected in its report is used from then on.
    assert "<title>my photos</title>" in (out / "report.html").read_text()
    rows = toy.table(out)
    assert (rows[0]["width"], rows[0]["height"], rows[0]["taken"]) == ("8", "8", "")
    assert int(rows[0]["bytes"]) == (photos / "00.png").stat().st_size
    to = next(row["cluster"] for row in rows if row["cluster"] != rows[0]["cluster"])
    corrections, run = tmp_path / "corrections.json", records.read(out)
    moved = {str(run.names.index(name)): int(to) for name in ("00.png", "copy.png")}
    said = {"state": run.state, "names": {to: "striped"}, "labels": moved}
    corrections.write_text(json.dumps(said))
    shutil.copy(photos / "01.png", photos / "000.png")  # came later, and is in no table
    report.main([str(out), f"--corrections={corrections}", f"--export={linked}"])
    assert capsys.readouterr().out.startswith("corrections  2 moved, 1 named\n")
    assert (linked / "striped" / "00.png").is_symlink()
    called = {**report_data.suggested_names(results["suggested_names"]), to: "striped"}.values()
    assert _exported(out, linked) == {*called, "copies"}
    for folder, said in ((photos, "be new or empty"), (photos / "out", "outside of the images'")):
        assert said in refused(report.main, str(out), f"--export={folder}")
    page = Page((out / "report.html").read_text())
    assert "49 photos, 3 groups" in page.text
    assert page.record["map"]["sheets"][0]["uri"].startswith("data:image/")
    assert {"tree", "duplicates", "skipped", "map"} <= {*page.sections()}
    assert [toy.table(out)[0][key] for key in ("cluster", "decided")] == [to, "1"]
    # The command of the run says what the page shows now.
    images.main([str(photos), f"--workdir={out}", "--n-clusters=3", *streamed])
    said = capsys.readouterr().out
    assert "\nTree (number corrected) " in said
    assert "\n49 photos, 3 groups (as you have corrected them)" in said
    assert "striped" in said.partition("They are called ")[2].partition(".")[0].split(", ")
    assert f"\nReport with your corrections: {out}/report.html\n" in said
    (photos / "000.png").unlink()
    _another_number_and_back(photos, out, streamed, capsys)
    shown = (out / "report.html").read_text()
    # A photo that is gone stays in the report until an update.
    (photos / "00.png").unlink()
    said = refused(report.main, str(out), "--name=0=late", f"--export={tmp_path / 'late'}")
    assert "got 00.png gone: run `cluster-jax update" in said
    report.main([str(out), f"--corrections={corrections}"])
    assert "corrections  nothing new; in force: 2 decided, 1 named" in capsys.readouterr().out
    assert (out / "report.html").read_text() == shown
    photos.rename(tmp_path / "moved")
    _needs_no_photos(out, refused, tmp_path / "late")


def test_each_photo_is_decoded_once(photos, tmp_path, monkeypatch):
    """For its features, its thumbnail and the facts about its file; no later command reads it."""
    for name in ("00.png", "01.png"):  # The network sees all photos in three batches.
        (photos / name).unlink()
    toy.save(photos, toy.images(50, channels=3)[0][48:], prefix="more")
    decoded = collections.Counter()
    attempt, look = data.ItemReader.attempt, data.ItemReader._look

    def counted(self, i, function):
        decoded[self.names[i]] += 1
        return function(self, i)

    monkeypatch.setattr(data.ItemReader, "attempt", lambda self, i: counted(self, i, attempt))
    monkeypatch.setattr(data.ItemReader, "_look", lambda self, i: counted(self, i, look))
    images.main([str(photos), f"--workdir={tmp_path / 'run'}", *QUICK])
    assert decoded == collections.Counter(sorted(f.name for f in photos.iterdir()))
    monkeypatch.setattr(decode, "opened", None)  # No picture is opened from here on.
    report.main([str(tmp_path / "run"), "--name=1=waves"])
    run = records.read(tmp_path / "run")
    kept = run.pictures()
    for row, name in enumerate(run.names):
        content = (photos / name).read_bytes()
        facts = run.facts[row]
        assert facts["bytes"] == len(content)
        assert facts["file"].tobytes() == hashlib.sha256(content).digest()
        with Image.open(photos / name) as image:
            side = min(image.size)
            assert (facts["width"], facts["height"]) == image.size
            wanted = np.asarray(image.convert("RGB").resize((48, 48), Image.Resampling.BICUBIC))
        assert side == max(image.size)
        shown = kept.fetch(np.array([row]))[0]
        assert np.abs(shown.astype(int) - wanted).mean() < 6  # It is a JPEG.


def test_a_finished_run_leads_to_update(photos, tmp_path, capsys, refused, monkeypatch):
    """It does not look at the files: only `update` knows what is a change."""
    monkeypatch.chdir(tmp_path)
    (photos / "broken.png").write_bytes(b"no image")
    images.main(["my photos", "--workdir=run", *QUICK])
    capsys.readouterr()

    def said(folder, *flags):
        images.main([folder, "--workdir=run", *flags, *QUICK])
        return capsys.readouterr().out.splitlines()[0]

    leads = (
        "run is finished: `cluster-jax update --workdir=run` takes new photos in and lets those go "
        "that are gone, and with --refit it clusters all anew"
    )
    for folder in ("my photos", "./my photos", "my photos/", str(photos)):
        assert said(folder) == leads
    shutil.rmtree(photos)
    assert said("my photos") == leads
    others = ("my photos", "--config.eval.method=gridshift", "--config.eval.reduce=pca")
    said(*others)  # Only clusters of the tree are updated.
    assert said(*others) == (
        "run is finished, and its images were not read again: to cluster them again, choose "
        "another --workdir"
    )
    (tmp_path / "other").mkdir()
    error = refused(images.main, "other", "--workdir=run", *QUICK)
    moved = "`cluster-jax update --workdir=run FOLDER` takes new and moved photos in"
    assert f"run has a run with another PHOTOS; {moved}" in error


def test_default_folders_do_not_depend_on_the_spelling(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_config("images").to_dict()
    made = set()
    for folder in ("photos", "./photos", "photos/", f"{tmp_path}/photos", "x/../photos"):
        config["data"]["dir"] = folder
        made.add(claims.default_workdir(config, "images"))
    assert len(made) == 1
    config["data"]["dir"] = "other"
    assert claims.default_workdir(config, "images") not in made


def test_one_photo_in_one_group(photos, tmp_path, capsys):
    for file in sorted(photos.iterdir())[1:]:
        file.unlink()
    images.main([str(photos), f"--workdir={tmp_path / 'out'}", *QUICK])
    said = capsys.readouterr().out
    assert "\n1 photo, 1 group (" in said
    assert "ACC" not in said, "no scores without labels"
    assert "-  " not in said


def test_an_array_and_the_number_that_is_found(tmp_path, capsys):
    np.save(tmp_path / "x.npy", toy.images(48, channels=3)[0])
    note = "--config.note=two words"  # Not the photos.
    out = f"--workdir={tmp_path / 'out'}"
    images.main([note, str(tmp_path / "x.npy"), out, "--config.seed=3", *QUICK])
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (results["config"]["seed"], results["config"]["note"]) == (3, "two words")
    large = results["metrics"]["tree"]["n_large"]
    assert f"\n48 photos, {large} group" in capsys.readouterr().out


@every_row(
    ("given", "said"),
    [
        ("none", "PHOTOS must be an existing folder"),
        ("", "PHOTOS"),
        ("here empty", "PHOTOS must be folders or files of images; got an empty name"),
        ("here --n-cluster=3", "no flag --n-cluster; did you mean --n-clusters?"),
        ("here --n-clusters=many", "--n-clusters: invalid int value: 'many'"),
        ("My Photos", "PHOTOS must be an existing folder"),
        ("here --n-clusters=0", "error: --n-clusters must be"),
        ("here --n-clusters=49", "error: --n-clusters must be between 1 and 48"),
        ("here --config.train.nothing=1", "train.nothing"),
    ],
)
def test_bad_input(photos, given, said, tmp_path, refused):
    given = [{"here": str(photos), "empty": ""}.get(word, word) for word in given.split()]
    assert said in refused(images.main, *given, f"--workdir={tmp_path / 'out'}", *QUICK)
    assert not (tmp_path / "out").exists()


def test_folders_of_other_commands(photos, tmp_path, refused, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.random.default_rng(0).normal(size=(60, 3)))
    cluster.main(["--features=x.npy", "--workdir=out", "--method=kmeans", "--n-clusters=2"])
    error = refused(images.main, str(photos), "--workdir=out", *QUICK)
    assert error == "error: out has a run of another command; choose another folder"


def test_the_photos_are_no_folder_of_results(photos, refused):
    before = sorted(photos.iterdir())
    said = refused(images.main, str(photos), f"--workdir={photos}", *QUICK)
    assert "--workdir must be another folder than PHOTOS" in said
    assert sorted(photos.iterdir()) == before


def test_subfolders_are_no_labels_unless_asked(photos, tmp_path, capsys, refused):
    for i, file in enumerate(sorted(photos.iterdir())):
        (photos / f"20{i % 2 + 23}").mkdir(exist_ok=True)
        file.rename(photos / f"20{i % 2 + 23}" / file.name)
    out = tmp_path / "out"
    images.main([str(photos), f"--workdir={out}", *QUICK])
    assert "ACC" not in capsys.readouterr().out
    page = (out / "report.html").read_text()
    assert "agree with the labels" not in page
    table = toy.table(out)
    names = [row["image"] for row in table]
    (tmp_path / "labels.csv").write_text("".join(f"{name},{name[:4]}\n" for name in names[::-1]))
    for labels in ("folders", str(tmp_path / "labels.csv")):
        images.main([str(photos), f"--workdir={out}", f"--labels={labels}", *QUICK])
        assert "ACC" in capsys.readouterr().out
        assert "agree with the labels" in (out / "report.html").read_text()
        # k-means is given the number of labels.
        for one, other in zip(toy.table(out), table, strict=True):
            same = other.keys() - {"kmeans_cluster"}
            assert {key: one[key] for key in same} == {key: other[key] for key in same}
    (tmp_path / "labels.csv").write_text("".join(f"{name},{name[:4]}\n" for name in names[1:]))
    flags = f"--workdir={tmp_path / 'new'}", f"--labels={labels}"
    said = refused(images.main, str(photos), *flags, *QUICK)
    assert f"--labels must name each of the 48 images; got none of {names[0]} in" in said


def test_several_photos_and_what_is_left_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = ["--config.seed=3", "--config.note=a b"]
    assert images._photos("a", ["b", *flags, "c"]) == ("a\nb\nc", flags)
    given = ["a", "--exclude=*_small.*", "--exclude=web", "--n-clusters=2"]
    values = images._values(images._parser().parse_args(given), images._photos("a", ["b c"])[0])
    assert values == {
        "data.dir": "a\nb c", "data.exclude": ("*_small.*", "web"), "eval.n_clusters": 2,
    }  # fmt: skip


def test_copies_of_photos_change_no_group(photos, tmp_path):
    """The features of a smaller copy are far from its original's; their pictures are alike."""

    def groups(folder, workdir):
        images.main([str(folder), *QUICK, f"--workdir={workdir}"])
        return records.read(workdir)

    for i, file in enumerate(sorted(photos.iterdir())):
        picture = Image.open(file).resize((64, 64), Image.Resampling.BICUBIC)
        noise = np.random.default_rng(i).integers(-20, 20, (64, 64, 3))
        pixels = np.clip(np.asarray(picture, int) + noise, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(file)
    alone = groups(photos, tmp_path / "alone")
    both = tmp_path / "both"
    shutil.copytree(photos, both / "phone")
    (both / "backup").mkdir()
    for file in photos.iterdir():
        small = Image.open(file).resize((32, 32), Image.Resampling.BOX)
        small.save(both / "backup" / f"{file.stem}.jpg", quality=90)
    again = groups(both, tmp_path / "again")
    labels = dict(zip(again.names, again.labels.tolist(), strict=True))
    for name, label in zip(alone.names, alone.labels.tolist(), strict=True):
        stem = pathlib.Path(name).stem
        assert labels[f"phone/{stem}.png"] == labels[f"backup/{stem}.jpg"] == label


def test_of_several_processes_the_first_alone_ends_the_command(photos, tmp_path, monkeypatch):
    """The others have no results to read yet, and open no browser."""
    monkeypatch.setattr("cluster_jax.cli.train.run", lambda *_, **__: tmp_path / "unfinished")
    monkeypatch.setattr("cluster_jax.core.devices.is_first", lambda: False)
    monkeypatch.setattr(images.webbrowser, "open", lambda _: pytest.fail("a browser"))
    images.main([str(photos), f"--workdir={tmp_path / 'run'}", "--open"])
