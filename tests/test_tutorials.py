"""The tutorials run from top to bottom, shortened, and their pages show what the scripts are."""

import json
import os
import pathlib
import re

import pytest

from experiments.tutorials import __main__ as tutorials

FOLDER = pathlib.Path(tutorials.__file__).parent
PAGES = sorted(f.stem for f in FOLDER.glob("*.md"))
# Of each script: parts that take long, and what takes their place.
SHORT = {
    "digits": {
        '{"train.duration": "600 steps"}': '{"train.duration": "12 steps", '
        '"optimizer.warmup": "3 steps", "eval.reduce": "pca", '
        '"eval.linear_probe.epochs": 2}'
    },
    "embeddings": {"fitted, new = slice(0, 1500)": "fitted, new = slice(0, 500)"},
    "loop": {
        "steps = 400": "steps = 3",
        "width=24": "width=4",
        "digits = load_digits()\n": "digits = load_digits()\n"
        "digits.update({key: digits[key][:400] for key in ('images', 'data', 'target')})\n",
    },
    "method": {
        '"500 steps"\n': '"12 steps"\n    config.optimizer.warmup = "3 steps"\n'
        '    config.network.width = 4\n    config.eval.reduce = "pca"\n'
        "    config.eval.linear_probe.epochs = 2\n"
    },
    "novel": {'"200 steps"': '"12 steps"', '"20 steps"': '"3 steps"'},
    "photos": {"range(25)": "range(7)", "i < 24": "i < 6"},
    "year": {},
}
# What other tests run as well: trainings by configs and in a loop, a method of one's own, photos,
# updates.
LONG, SLOW = ("digits", "loop", "method", "novel", "photos", "year"), pytest.mark.slow
# Nothing in them is drawn at random on more than one thread.
DETERMINISTIC = ("embeddings", "photos")
# What a short run may print in other words: verdicts, suggested names, novelty.
VARIABLE = r"unclear|one_cluster|clear|\(unlike all others\)|^\d+ \w.*,.*$"


def _cells(name, short=True):
    cells = tutorials.read(name)
    for old, new in SHORT[name].items() if short else ():
        assert sum(cell.source.count(old) for cell in cells) == 1, old
        cells = [cell._replace(source=cell.source.replace(old, new)) for cell in cells]
    return cells


def _shown(name):
    text = (FOLDER / f"{name}.md").read_text()
    return re.findall(r"^```text\n(.*?)\n```$", text, re.DOTALL | re.M)


def _words(text):
    """The different lines, without numbers and what varies."""
    text = re.sub(VARIABLE, "", text, flags=re.M)
    lines = re.sub(r"-?\d+(\.\d+)?", "", text).splitlines()
    return {" ".join(re.sub(r"[\[\]().]", " ", line).split()) for line in lines}


def _numbers(text):
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text)]


def test_every_tutorial_has_a_page():
    scripts = {f.stem for f in FOLDER.glob("*.py") if not f.stem.startswith("_")}
    assert set(PAGES) == scripts == set(SHORT)
    guide = (FOLDER.parent / "guide" / "README.md").read_text()
    assert [name for name in PAGES if f"tutorials/{name}.md" not in guide] == []


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_its_script(name):
    written = (FOLDER / f"{name}.md").read_text()
    outputs = r"^```text\n.*?\n```\n\n?|^!\[[^\n]*\)\n\n?"
    without = re.sub(outputs, "", written, flags=re.DOTALL | re.M)
    assert without.strip() == tutorials.page(name, tutorials.read(name)).strip()
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", written):
        assert (FOLDER / picture).stat().st_size > 1000


def test_the_notebook_is_its_script():
    notebook = json.loads((FOLDER / "photos.ipynb").read_text())
    assert ["".join(cell["source"]) for cell in notebook["cells"]] == [
        cell.source for cell in tutorials.read("photos")
    ]
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    text = [out for out in outputs if out["output_type"] == "stream"]
    assert ["".join(out["text"]) for out in text] == _shown("photos"), "as on the page"
    pictures = [out for out in outputs if out["output_type"] == "display_data"]
    assert len(text) + len(pictures) == len(outputs)
    assert len(pictures) == (FOLDER / "photos.md").read_text().count("![") == 2


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a tutorial in an empty folder; gives what its cells print."""
    monkeypatch.chdir(tmp_path)

    def run_cells(name, short):
        if name in ("photos", "year"):
            pytest.importorskip("skimage", reason="the photographs come with scikit-image")
        return [cell.printed for cell in tutorials.run(_cells(name, short)) if cell.printed]

    return run_cells


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
@pytest.mark.usefixtures("optimized")
def test_what_a_page_shows_is_what_the_script_prints(name, run):
    printed = run(name, short=False)
    if name in DETERMINISTIC:
        assert printed == _shown(name)
    for text, shown in zip(printed, _shown(name), strict=True):
        assert _words(text) == _words(shown)
        decimals, expected = (re.findall(r"\d+\.\d+", t) for t in (text, shown))
        assert [float(d) for d in decimals] == pytest.approx([float(d) for d in expected], abs=0.1)


# But "year", which runs above: it prints names, of which a shallow network suggests others.
RUN = [pytest.param(name, marks=SLOW if name in LONG else ()) for name in PAGES if name != "year"]


@pytest.mark.parametrize("name", RUN)
@pytest.mark.usefixtures("one_device", "traced_once", "shallow_lite")
def test_a_tutorial_runs(name, run):
    printed = run(name, short=True)
    assert [_words(text) for text in printed] == [_words(text) for text in _shown(name)]
    if not SHORT[name]:
        assert [_numbers(text) for text in printed] == [
            pytest.approx(_numbers(text), rel=0.2, abs=0.1) for text in _shown(name)
        ]
    if name == "digits":
        # The second fit only clustered anew: one training, of the steps asked for.
        assert os.listdir("runs/tutorial/run/checkpoints") == ["12"]
