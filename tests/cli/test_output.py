"""What commands print: --quiet, --json, --report=no; progress in the log of the package."""

import importlib
import json

import numpy as np
import pytest

from cluster_jax.cli import app, cluster, predict, report
from cluster_jax.core import logs


@pytest.fixture
def features(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).normal(size=(60, 6)) + 9 * (np.arange(60) % 2)[:, None]
    np.save("x.npy", rows)
    return "--features=x.npy"


@pytest.mark.parametrize("command", app.COMMANDS)
def test_every_command_has_the_flags(command):
    parser = importlib.import_module(f"cluster_jax.cli.{command}")._parser()
    assert {"--quiet", "--json"} <= parser._option_string_actions.keys()


def test_one_object_on_stdout(features, capsys):
    cluster.main([features, "--out=out", "--json"])
    said = capsys.readouterr()
    made = json.loads(said.out)
    assert (made["workdir"], made["report"]) == ("out", "out/report.html")
    assert made["results"]["metrics"]["tree"]["n_clusters"] == 2
    assert said.err.endswith("scoring ...\nwriting ...\n")
    cluster.main([features, "--out=out", "--json"])
    again = capsys.readouterr()
    assert json.loads(again.out) == made
    assert "is finished" in again.err
    predict.main(["--workdir=out", features, "--json", "--quiet"])
    said = capsys.readouterr()
    placed = json.loads(said.out)
    sizes = made["results"]["metrics"]["tree"]["cluster_sizes"]
    assert (placed["rows"], placed["novel"], placed["sizes"]) == (60, 0, sizes)
    assert said.err == ""


def test_quiet(features, capsys):
    cluster.main([features, "--out=out", "--quiet"])
    predict.main(["--workdir=out", features, "--quiet"])
    assert capsys.readouterr() == ("", "")
    with pytest.raises(SystemExit):
        cluster.main(["--features=y.npy", "--out=out", "--quiet"])
    assert "y.npy" in capsys.readouterr().err
    assert logs.logger.level == 0, "as before"


def test_a_report_that_is_written_later(features, tmp_path, capsys):
    cluster.main([features, "--out=with"])
    cluster.main([features, "--out=without", "--report=no"])
    capsys.readouterr()
    with_page, without = tmp_path / "with", tmp_path / "without"
    assert not (without / "report.html").exists()
    for name in ("assignments.csv", "clusterer.npz"):
        assert (with_page / name).read_bytes() == (without / name).read_bytes()
    report.main(["without", "--json"])
    assert json.loads(capsys.readouterr().out) == {"workdir": "without"}
    assert (without / "report.html").exists()


def test_an_application_hears_of_progress_and_warnings(caplog):
    with logs.level(20):
        logs.logger.info("progress")
        assert caplog.messages == ["progress"]
    with logs.printing():
        logs.logger.warning("not twice")
    assert caplog.messages == ["progress"]
    assert logs.logger.handlers == []
