"""The tutorials run from top to bottom, shortened, and their pages show what the scripts are."""

import importlib.util
import json
import os
import pathlib
import re

import pytest

from experiments.tutorials import __main__ as tutorials

FOLDER = pathlib.Path(tutorials.__file__).parent
PAGES = sorted(f.stem for f in FOLDER.glob("*.md") if f.stem not in ("guide", "pod"))
# Of each script: parts that take long, and what takes their place.
SHORT = {
    "embeddings": {},
    "loop": {"jax.random.key(1), 600)": "jax.random.key(1), 3)", "width=24": "width=4"},
    "method": {
        '"500 steps"': '"12 steps"',
        "config.eval.method": "config.optimizer.warmup = "
        '"3 steps"\nconfig.network.width = 4\nconfig.eval.method',
    },
    "novel": {'"200 steps"': '"12 steps"', '"20 steps"': '"3 steps"'},
    "photos": {"range(25)": "range(4)", "i < 24": "i < 3"},
}


def _without_outputs(page):
    output = r"```text\n.*?\n```\n\n|!\[[^\n]*\)\n\n"
    return re.sub(output, "", page + "\n", flags=re.DOTALL).strip()


def test_every_tutorial_has_a_page():
    scripts = {f.stem for f in FOLDER.glob("*.py") if not f.stem.startswith("_")} - {"digits"}
    assert set(PAGES) == scripts == set(SHORT)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_its_script(name):
    written = (FOLDER / f"{name}.md").read_text()
    assert _without_outputs(written) == tutorials.page(name, tutorials.read(name)).strip()
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", written):
        assert (FOLDER / picture).stat().st_size > 1000


def test_the_notebook_is_its_script():
    notebook = json.loads((FOLDER / "photos.ipynb").read_text())
    cells = tutorials.read("photos")
    written = ["".join(cell["source"]) for cell in notebook["cells"]]
    assert written[1:] == [cell.source for cell in cells[1:]]
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    kinds = {output["output_type"] for output in outputs}
    assert kinds == {"stream", "display_data"}, "pictures and text"


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.usefixtures("one_device", "traced_once")
def test_a_tutorial_runs(name, tmp_path, monkeypatch):
    if name == "photos" and importlib.util.find_spec("skimage") is None:
        pytest.skip("the photographs come with scikit-image")
    monkeypatch.chdir(tmp_path)
    if name == "method":
        from cluster_jax.methods import base

        monkeypatch.setattr(base, "names", base.names)  # the tutorial adds a name
    cells = tutorials.read(name)
    for old, new in SHORT[name].items():
        assert sum(cell.source.count(old) for cell in cells) == 1
        cells = [cell._replace(source=cell.source.replace(old, new)) for cell in cells]
    shown = re.findall(r"```text\n(.*?)\n```", (FOLDER / f"{name}.md").read_text(), re.DOTALL)
    printed = [cell.printed for cell in tutorials.run(cells) if cell.printed]
    assert [_words(text) for text in printed] == [_words(text) for text in shown]
    if not SHORT[name]:
        assert [_numbers(text) for text in printed] == [
            pytest.approx(_numbers(text), rel=0.2, abs=0.1) for text in shown
        ]


def _words(text):
    """What is printed without its numbers, and without how many there are in a list."""
    return re.sub(r"[\[\]\s]+", " ", re.sub(r"-?\d+(\.\d+)?", "", text)).strip()


def _numbers(text):
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text)]


@pytest.mark.usefixtures("one_device", "traced_once")
def test_the_tutorial_of_a_training(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source = (FOLDER / "digits.py").read_text()
    whole = '{"train.duration": "600 steps"}'
    short = str(
        {
            "train.duration": "12 steps",
            "optimizer.warmup": "3 steps",
            "eval.reduce.method": "pca",  # UMAP compiles for 15 seconds
            "eval.linear_probe.epochs": 2,
        }
    )
    assert source.count(whole) == 1
    names = {"__name__": "__main__"}
    exec(compile(source.replace(whole, short), "digits.py", "exec"), names)
    printed = capsys.readouterr().out
    assert f"Found {names['clusterer'].n_clusters_} clusters" in printed
    assert "k-means with k = 10" in printed
    report = pathlib.Path("runs/tutorial/report.html")
    assert report.stat().st_size > 1e5
    assert len(names["restored"].labels_) == len(names["train_images"])
    # The second fit only clustered anew: one training, of the steps asked for.
    assert os.listdir("runs/tutorial/run/checkpoints") == ["12"]
