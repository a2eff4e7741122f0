"""What the README tells people with embeddings of their own to type works as it stands."""

import pathlib
import re
import shlex

import numpy as np
import pytest

from cluster_jax.cli import cluster

README = pathlib.Path(__file__).resolve().parent.parent / "README.md"
HEADING = "## Your own embeddings"


def _blocks(language):
    """Fenced blocks of a language under the heading."""
    parts = re.split(r"^(## .*)$", README.read_text(), flags=re.M)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert HEADING in sections, f"the README has no section {HEADING!r}"
    found = re.findall(rf"^```{language}\n(.*?)^```$", sections[HEADING], flags=re.M | re.S)
    assert found, f"the section {HEADING!r} has no {language} block"
    return found


@pytest.fixture
def embeddings(tmp_path, monkeypatch):
    """x.npy with three kinds of rows and y.npy with their kinds, in the current folder."""
    rng = np.random.default_rng(0)
    kinds = np.repeat([0, 1, 2], [80, 60, 70])
    x = rng.normal(size=(3, 24))[kinds] * 4 + rng.normal(size=(210, 24))
    np.save(tmp_path / "x.npy", x.astype(np.float32))
    np.save(tmp_path / "y.npy", kinds)
    monkeypatch.chdir(tmp_path)
    return kinds


def test_python(embeddings, capsys):
    names = {}
    for block in _blocks("python"):
        exec(block, names)
    assert names["model"].labels_.shape == embeddings.shape
    assert "3 clusters: clear" in capsys.readouterr().out


def test_command(embeddings, capsys):
    lines = [line for block in _blocks("bash") for line in block.splitlines() if line]
    assert lines
    for line in lines:
        start, flags = shlex.split(line)[:3], shlex.split(line)[3:]
        assert start == ["python", "-m", "cluster_jax.cluster"]
        cluster.main(flags)
        files = capsys.readouterr().out.split()[-3:]
        names = ["report.html", "assignments.csv", "results.json"]
        assert [pathlib.Path(file).name for file in files] == names
        assert all(pathlib.Path(file).stat().st_size for file in files)
