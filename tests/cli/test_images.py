"""`cluster-jax images`: one command from a folder of photos to a report."""

import csv
import json
import pathlib
import shutil
import types
import warnings

import numpy as np
import pytest
from PIL import Image

from cluster_jax.cli import cluster, images, predict, report
from cluster_jax.cli.flags import read_config
from cluster_jax.core.checks import InputError
from cluster_jax.core.config import load_config
from cluster_jax.pipeline import workdir as workdirs
from tests import toy

pytestmark = [
    pytest.mark.usefixtures("one_device"),
]

QUICK = (
    "--config.data.image_size=32", "--config.augment.size=32", "--config.eval.batch_size=16",
    "--config.eval.reduce.method=pca",
)  # fmt: skip


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "my photos"
    folder.mkdir()
    for i, pixels in enumerate(toy.images(48, channels=3)[0]):
        Image.fromarray(pixels).save(folder / f"{i:02}.png")
    return folder


def test_the_conclusion_names_groups_and_counts_copies():
    names = {str(i): [name, "other"] for i, name in enumerate("abcdefghija")}
    results = {
        "metrics": {"tree": {"n_clusters": 11, "n_large": 11, "verdict": "clear"}},
        "provenance": {"images_scored": 90, "number_of_clusters": {"tree": "found"}},
        "suggested_names": names,
        "duplicates": {"groups": 2},
    }
    said = images._conclusion(results, pathlib.PurePath("out"))
    assert "11 groups in 90 photos (clearly apart).\n" in said
    assert "They look like a, b, c, d, e, f, g, h, and 2 more.\n2 groups of near-dup" in said
    results |= {"suggested_names": {"0": ["a"], "1": ["b"]}, "duplicates": None}
    said = images._conclusion(results, pathlib.PurePath("out"))
    assert "(clearly apart).\nThey look like a, b.\nReport: out/report.html\n" in said
    assert "look like" not in images._conclusion(
        results | {"suggested_names": None}, pathlib.PurePath("out")
    )


def test_groups_report_and_what_to_try_next(photos, tmp_path, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr(images.webbrowser, "open", opened.append)
    shutil.copy(photos / "00.png", photos / "copy.png")
    (photos / "text.png").write_text("no image")
    out, linked = tmp_path / "out", tmp_path / "linked"
    streamed = (*QUICK, "--config.data.cache_mb=0")
    images.main([str(photos), f"--out={out}", "--k=3", f"--export={linked}", "--open", *streamed])
    results = json.loads((out / "results.json").read_text())
    assert results["config"]["seed"] == 0
    assert results["metrics"]["tree"]["n_clusters"] == 3
    assert results["provenance"]["number_of_clusters"]["tree"] == "given"
    said = capsys.readouterr().out
    assert said.startswith("50 images of my photos, embedded by efficientnet_lite0,")
    assert "\n3 groups in 49 photos (the number asked for).\n" in said
    assert f"\nReport: {out}/report.html\n" in said
    assert f"--workdir={out} " in said
    assert opened == [(out / "report.html").as_uri()]
    assert len([*linked.iterdir()]) == 3
    assert len([*linked.glob("*/*.png")]) == 49
    # What is corrected in its report is written into a folder of its own.
    assert "replaced" not in said
    assert "<title>my photos</title>" in (out / "report.html").read_text()
    rows = list(csv.DictReader((out / "assignments.csv").read_text().splitlines()))
    to = next(row["cluster"] for row in rows if row["cluster"] != rows[0]["cluster"])
    corrections = tmp_path / "corrections.csv"
    change = f"00.png,{rows[0]['cluster']},move,{to}\n"
    corrections.write_text(f"image,cluster,correction,to\n{change},{to},name,striped\n")
    shutil.copy(photos / "01.png", photos / "000.png")  # came later, and is in no table
    report.main([str(out), f"--corrections={corrections}"])
    said = capsys.readouterr().out
    assert said.startswith("corrected    1 moved, 0 in no cluster (-1), 1 named\n")
    assert f"report       {out}/corrected/report.html" in said
    page = (out / "corrected" / "report.html").read_text()
    assert "Found 3 clusters in 49 images." in page
    assert page.count('<img class="picture') > 20
    assert f'data-cluster="{to}" value="striped"' in page
    assert f'<small data-name="{to}">striped</small>' in page
    for section in ("tree", "duplicates", "skipped"):
        assert f'id="{section}"' in page
    new = list(csv.DictReader((out / "corrected" / "assignments.csv").read_text().splitlines()))
    assert (new[0]["image"], new[0]["cluster"], new[0]["corrected"]) == ("00.png", to, "1")
    # New images are placed in clusters of that name.
    page = tmp_path / "more.html"
    predict.main([f"--workdir={out}", f"--images={photos / '01.png'}", f"--report={page}"])
    table = (out / "predictions.csv").read_text().splitlines()
    assert {row["cluster_name"] for row in csv.DictReader(table) if row["cluster"] == to} <= {
        "striped"
    }
    assert table[0].endswith(",cluster_name")
    assert len([*page.read_text().split("(striped)")]) > 1
    (photos / "000.png").unlink()
    table = (out / "assignments.csv").read_text()
    first, *others = table.splitlines()
    (out / "assignments.csv").write_text("\n".join([first, *others[::-1], ""]))
    with pytest.raises(SystemExit):
        report.main([str(out), f"--corrections={corrections}", f"--out={tmp_path / 'again'}"])
    assert "must have the images of the run in their order; got" in capsys.readouterr().err
    (out / "assignments.csv").write_text(table)
    # Another number of groups replaces the results, and says so.
    images.main([str(photos), f"--out={out}", "--k=2", *streamed])
    said = capsys.readouterr().out
    assert f"the results in {out} had eval.k = 3, not 2: they are replaced\n" in said
    assert json.loads((out / "results.json").read_text())["metrics"]["tree"]["n_clusters"] == 2
    (photos / "00.png").unlink()
    with pytest.raises(SystemExit):
        report.main([str(out), f"--corrections={corrections}", f"--out={tmp_path / 'again'}"])
    assert "must be as they were to be shown again; got others" in capsys.readouterr().err
    # Nor without any; what `predict` shows of new images is then all that there is.
    photos.rename(tmp_path / "moved")
    again = [str(out), f"--corrections={corrections}", f"--out={tmp_path / 'again'}"]
    with pytest.raises(SystemExit) as stop:
        report.main(again)
    assert stop.value.code == 2
    assert (
        "the folder of the run must be an existing folder of images; got" in capsys.readouterr().err
    )
    page = tmp_path / "new.html"
    capsys.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        predict.main([f"--workdir={out}", f"--images={tmp_path / 'moved'}", f"--report={page}"])
    assert "corrects other clusters than those of" in capsys.readouterr().err
    assert "(striped)" not in page.read_text()
    assert "<h1>48 new images</h1>" in page.read_text()
    assert "Typical of the cluster" not in page.read_text()


def test_a_finished_run_compares_the_files_of_the_folder(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (photos / "broken.png").write_bytes(b"no image")
    images.main(["my photos", "--out=run", *QUICK])
    capsys.readouterr()

    def said(folder):
        images.main([folder, "--out=run", *QUICK])
        return capsys.readouterr().out.splitlines()[0]

    same = "run is finished with the files of my photos: to cluster them again, choose another"
    for folder in ("my photos", "./my photos", "my photos/", str(photos)):
        assert said(folder).startswith(same)
    Image.open(photos / "00.png").save(photos / "new.png")
    for name in ("01.png", "02.png"):
        (photos / name).unlink()
    assert said("./my photos") == (
        "run is finished, but the files of my photos have changed since, 1 new and 2 gone: "
        "`cluster-jax predict --workdir=run --images='my photos'` places the new ones, another "
        "--out clusters them again"
    )
    (photos / "new.png").unlink()
    assert "changed since, 2 gone: another --out clusters" in said("my photos")
    for photo in photos.iterdir():
        photo.unlink()
    assert "changed since, 49 gone:" in said("my photos")
    shutil.rmtree(photos)
    assert "changed since, 49 gone:" in said("my photos")
    (tmp_path / "other").mkdir()
    with pytest.raises(SystemExit):
        images.main(["other", "--out=run", *QUICK])
    assert "run with PHOTOS = my photos, not other" in capsys.readouterr().err


def test_default_folders_do_not_depend_on_the_spelling(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_config("images").to_dict()
    made = set()
    for folder in ("photos", "./photos", "photos/", f"{tmp_path}/photos", "x/../photos"):
        config["data"]["dir"] = folder
        made.add(workdirs.default_workdir(config, "images"))
    assert len(made) == 1
    config["data"]["dir"] = "other"
    assert workdirs.default_workdir(config, "images") not in made


def test_one_photo_in_one_group(photos, tmp_path, capsys):
    for file in sorted(photos.iterdir())[1:]:
        file.unlink()
    images.main([str(photos), f"--workdir={tmp_path / 'out'}", *QUICK])
    said = capsys.readouterr().out
    assert "\n1 group in 1 photo (" in said
    assert "ACC" not in said, "no scores without labels"
    assert "-  " not in said


def test_an_array_and_the_number_that_is_found(tmp_path, capsys):
    np.save(tmp_path / "x.npy", toy.images(48, channels=3)[0])
    note = "--config.note=two words"  # Not the photos.
    out = f"--out={tmp_path / 'out'}"
    images.main([note, str(tmp_path / "x.npy"), out, "--config.seed=3", *QUICK])
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (results["config"]["seed"], results["config"]["note"]) == (3, "two words")
    large = results["metrics"]["tree"]["n_large"]
    assert f"\n{large} group" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("none",), "PHOTOS must be an existing folder"),
        ((), "PHOTOS"),
        (("here", "--kk=3"), "there is no flag --kk; did you mean --k?"),
        (("here", "--k=many"), "error: --k must be a whole number; got 'many' (see"),
        (("My", "Photos"), "My must be a folder or an image; got no such file"),
        (("here/00.png",), "/00.png: name its folder, "),
        (("here", "--k=0"), "error: --k must be"),
        (("here", "--k=49"), "error: --k must be between 1 and 48"),
        (("here", "--config.train.nothing=1"), "train.nothing"),
    ],
)
def test_bad_input(photos, arguments, said, tmp_path, capsys):
    given = [a.replace("here", str(photos)) for a in arguments]
    with pytest.raises(SystemExit) as stop:
        images.main([*given, f"--out={tmp_path / 'out'}", *QUICK])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_folders_of_other_commands(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.random.default_rng(0).normal(size=(60, 3)))
    cluster.main(["--features=x.npy", "--workdir=out", "--method=kmeans", "--k=2"])
    with pytest.raises(SystemExit) as stop:
        images.main([str(photos), "--out=out", *QUICK])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error == "error: out contains a run of another command; choose another folder\n"


def test_the_photos_are_no_folder_of_results(photos, capsys):
    before = sorted(photos.iterdir())
    with pytest.raises(SystemExit) as stop:
        images.main([str(photos), f"--out={photos}", *QUICK])
    assert stop.value.code == 2
    assert "--out must be another folder than PHOTOS" in capsys.readouterr().err
    assert sorted(photos.iterdir()) == before


def test_several_photos_and_what_is_left_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = ["--config.seed", "3", "--config.note=a b"]
    assert images._photos("a", ["b", *flags, "c"]) == ("a\nb\nc", flags)
    (tmp_path / "My Photos").mkdir()
    with pytest.raises(InputError, match='a name with spaces needs quotes, "My Photos"'):
        images._photos("My", ["Photos"])
    given = types.SimpleNamespace(exclude=["*_small.*", "web"], include_all=True)
    config, _ = read_config("images", images._left_out(given))
    assert (config.data.exclude, config.data.include_all) == (("*_small.*", "web"), True)
    given = types.SimpleNamespace(exclude=["one"], include_all=False)
    assert read_config("images", images._left_out(given))[0].data.exclude == ("one",)
    several = [f"--config.data.dir={images._photos('a', ['b c'])[0]}"]
    assert read_config("images", several)[0].data.dir == "a\nb c"
