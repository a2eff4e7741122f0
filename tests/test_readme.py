"""What the README tells people to type works as it stands and prints what it says."""

import importlib
import os
import pathlib
import re
import shlex
import shutil

import jax
import numpy as np
import pytest

from cluster_jax.cli import app, cluster, images, update
from cluster_jax.core.config import config_names
from cluster_jax.encoding import encoder

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
GUIDE = sorted(ROOT.glob("experiments/guide/*.md"))
PAGES = (README, ROOT / "experiments" / "README.md", *GUIDE)
ALL = sorted({*ROOT.glob("*.md"), *ROOT.glob("experiments/**/*.md")})


def _blocks(heading):
    """Language and text of the fenced blocks under a heading of the README."""
    parts = re.split(r"^(## .*)$", README.read_text(), flags=re.M)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert heading in sections, f"the README has no section {heading!r}"
    return re.findall(r"^```(\w+)\n(.*?)^```$", sections[heading], flags=re.M | re.S)


def _python_and_output(heading):
    """Code, and the lines that it prints, which are comments below the calls of print."""
    (code,) = (text for language, text in _blocks(heading) if language == "python")
    return code, "".join(re.findall(r"^# (.*\n)", code, flags=re.M))


@pytest.fixture
def embeddings(tmp_path, monkeypatch):
    """x.npy with three kinds of rows in the current folder."""
    rng = np.random.default_rng(0)
    kinds = np.repeat([0, 1, 2], [80, 60, 70])
    x = rng.normal(size=(3, 24))[kinds] * 4 + rng.normal(size=(210, 24))
    np.save(tmp_path / "x.npy", x.astype(np.float32))
    monkeypatch.chdir(tmp_path)


def test_embeddings(embeddings, capsys):
    code, output = _python_and_output("## Embeddings")
    exec(code, {})
    assert capsys.readouterr().out == output


def test_what_is_said_of_the_model_of_embeddings(embeddings):
    """Each span of code of the sentences below the snippet does what the sentence says."""
    text = README.read_text().partition("\n## Embeddings\n")[2].partition("\n## ")[0]
    spans = re.findall(r"`((?:model\.|SmoothTree\.|verdict_)[^`]*)`", text.rpartition("```")[2])
    cut = "model.cut(n_clusters=2)"
    called = ["model.predict", "model.partial_fit", cut, "SmoothTree.load", "model.save"]
    assert spans == ["verdict_", *called]
    names = {}
    exec(_python_and_output("## Embeddings")[0], names)
    model, x = names["model"], np.load("x.npy")
    assert f'`verdict_` is "{model.verdict_}", "unclear" (a best guess) or "one_cluster"' in text
    found = model.labels_
    groups = eval(cut, names)
    assert len(np.unique(groups)) == 2
    assert all(len(np.unique(groups[found == k])) == 1 for k in range(3)), "unions of clusters"
    np.testing.assert_array_equal(model.predict(x + 0.01), found)
    model.save("model.npz")
    again = names["SmoothTree"].load("model.npz")
    np.testing.assert_array_equal(again.predict(x), found)
    model.partial_fit(x[:30] + 0.01)
    np.testing.assert_array_equal(model.labels_, [*found, *found[:30]])


def test_every_snippet_has_a_test():
    """Of the sections that are not named here, none has a snippet of Python."""
    text = README.read_text()
    sections = re.findall(r"^## (.*)$", text, flags=re.M)
    assert {s for s in sections for kind, _ in _blocks(f"## {s}") if kind == "python"} == {
        "One loss in a loop of your own", "A folder of photos", "Embeddings"
    }  # fmt: skip
    assert text.count("```python\n") == 3


def test_command_for_embeddings(embeddings, capsys):
    (command,) = re.findall(r"`(python -m cluster_jax cluster .*?)`", README.read_text())
    cluster.main(shlex.split(command)[4:])
    files = capsys.readouterr().out.split()[-3:]
    names = ["report.html", "assignments.csv", "results.json"]
    assert [pathlib.Path(file).name for file in files] == names
    assert all(pathlib.Path(file).stat().st_size for file in files)


@pytest.mark.usefixtures("one_device", "optimized")
def test_photos(tmp_path, monkeypatch, capsys):
    data = os.environ.get("CLUSTER_JAX_TEST_DATA")
    if data is None:
        pytest.skip("CLUSTER_JAX_TEST_DATA is not set to a folder of images")
    for folder in ("photos", "new-photos"):
        (tmp_path / folder).mkdir()
    for kind in sorted(pathlib.Path(data, "images", "tiny_imagenet10").iterdir()):
        *files, new = sorted(kind.iterdir())[:25]
        for file in files:
            shutil.copy(file, tmp_path / "photos")
        shutil.copy(new, tmp_path / "new-photos")
    monkeypatch.chdir(tmp_path)
    # The new photos fill a batch as large as those of the fit, whose program takes 5 s to compile.
    monkeypatch.setattr(encoder, "BATCHES", (64 * jax.device_count(),))
    code, output = _python_and_output("## A folder of photos")
    names = {}
    exec(code, names)
    assert capsys.readouterr().out == output
    assert (tmp_path / "report.html").stat().st_size
    assert len(set(names["new_labels"])) >= 8  # one photo of each of ten classes


@pytest.mark.slow
@pytest.mark.usefixtures("one_device", "optimized")
def test_the_update_of_the_guide(tmp_path, monkeypatch, capsys):
    """Of Tiny-ImageNet: 30 photos of each of five classes, then 6 more, and 15 of a sixth."""
    data = os.environ.get("CLUSTER_JAX_TEST_DATA")
    if data is None:
        pytest.skip("CLUSTER_JAX_TEST_DATA is not set to a folder of images")
    (tmp_path / "photos").mkdir()

    def take(*kinds, rows):
        for kind in kinds:
            folder = pathlib.Path(data, "images", "tiny_imagenet10", kind)
            for file in sorted(folder.iterdir())[rows]:
                shutil.copy(file, tmp_path / "photos" / f"{kind}_{file.name}")

    monkeypatch.chdir(tmp_path)
    five = ("bullfrog", "goldfish", "african_elephant", "king_penguin", "golden_retriever")
    take(*five, rows=slice(30))
    images.main(["photos", "--workdir=run", "--report=no"])
    take(*five, rows=slice(30, 36))
    take("persian_cat", rows=slice(15))
    capsys.readouterr()
    update.main(["--workdir=run", "--report=no"])
    (shown,) = re.findall(
        r"^```text\n(.*?)^```$", (ROOT / "experiments/guide/updates.md").read_text(), re.M | re.S
    )
    said = capsys.readouterr()
    assert shown in said.out + said.err


def test_a_loss_in_a_loop_of_ones_own(keys):
    (code,) = (text for _, text in _blocks("## One loss in a loop of your own"))
    names = {"apply": lambda params, x: x.reshape(len(x), -1) @ params}
    exec(code, names)
    a, b = jax.random.uniform(next(keys), (2, 16, 8, 8, 1))
    params = 0.1 * jax.random.normal(next(keys), (64, 5))
    loss, gradient = jax.jit(jax.value_and_grad(names["loss_fn"]))(params, a, b, next(keys))
    assert np.isfinite(loss)
    assert np.abs(gradient).max() > 0


def test_pages_are_no_longer_than_they_are_to_be():
    words = [len(page.read_text().split()) for page in PAGES[1:]]
    assert words[0] <= 1500
    assert sum(words[1:]) <= 7000
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 120


def test_contributing_names_every_folder_of_tests():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    folders = {file.parent.name for file in ROOT.glob("tests/*/test_*.py")}
    named = {name for name in folders if re.search(rf"pytest[^`]* tests/{name}\b", text)}
    assert named == folders


def test_it_is_short_and_names_what_there_is():
    text = README.read_text()
    assert len(text.splitlines()) <= 150
    assert "It is for " in text.partition("![")[0], "the first screen says for whom"
    table = "".join(re.findall(r"^\|.*\|$", text, flags=re.M))
    configs = table.partition("| method | paper | configs |")[2].partition("| |")[0]
    named = set(re.findall(r"`(\w+)`", configs))
    assert len(named) > 30
    assert named <= set(config_names())


def test_every_flag_on_the_pages_is_one_of_its_command():
    text = "\n".join(
        page.read_text() for page in (*PAGES, *ROOT.glob("experiments/tutorials/*.md"))
    )
    commands = re.findall(r"(?:cluster-jax|cluster_jax) ([a-z]+)\b([^`|\n]*(?:\\\n[^`\n]*)*)", text)
    assert {command for command, _ in commands} >= set(app.COMMANDS)
    for command, rest in commands:
        if command in app.COMMANDS:
            parser = importlib.import_module(f"cluster_jax.cli.{command}")._parser()
            flags = set(re.findall(r"--[a-z][\w-]*(?![\w.-])", rest)) - {"--config"}
            assert flags <= parser._option_string_actions.keys(), (command, rest)


def _anchors(page):
    titles = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", ALL, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_links_lead_somewhere(page):
    """Of links inside the project, also those to a heading of a page."""
    links = re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", page.read_text())
    for link in map("".join, links):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not link.startswith("http"):
            assert target.exists(), link
            assert not anchor or anchor in _anchors(target), link
