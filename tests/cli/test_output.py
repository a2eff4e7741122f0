"""What commands print: --quiet, --json, --report=no; progress in the log of the package."""

import argparse
import importlib
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from cluster_jax.cli import app, cluster, exit_codes, predict, report, train
from cluster_jax.core import logs
from cluster_jax.evaluation import clusters
from cluster_jax.runs import workdir as workdirs

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def features(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).normal(size=(60, 6)) + 9 * (np.arange(60) % 2)[:, None]
    np.save("x.npy", rows)
    return "--features=x.npy"


def check_keys(command, told):
    """The keys of an object are those of the guide's table, whose last column may be missing."""
    guide = (ROOT / "experiments" / "guide" / "outputs.md").read_text()
    row = re.search(rf"^\| `{command}` \|(.*?)\|(.*?)\|$", guide, re.MULTILINE)
    always, sometimes = (set(re.findall("`(.*?)`", cell)) for cell in row.groups())
    assert always <= told.keys() <= always | sometimes


@pytest.mark.parametrize("command", app.COMMANDS)
def test_every_command_has_the_flags(command):
    parser = importlib.import_module(f"cluster_jax.cli.{command}")._parser()
    assert {"--quiet", "--json"} <= parser._option_string_actions.keys()


def test_one_object_on_stdout(features, capsys):
    cluster.main([features, "--workdir=out", "--json"])
    said = capsys.readouterr()
    made = json.loads(said.out)
    assert (made["workdir"], made["report"]) == ("out", "out/report.html")
    assert made["results"]["metrics"]["tree"]["n_clusters"] == 2
    assert said.err.endswith("scoring ...\nwriting ...\ndrawing the map\n")
    cluster.main([features, "--workdir=out", "--json"])
    again = capsys.readouterr()
    assert json.loads(again.out) == made
    assert "is finished" in again.err
    predict.main(["--workdir=out", features, "--json", "--quiet"])
    said = capsys.readouterr()
    placed = json.loads(said.out)
    sizes = made["results"]["metrics"]["tree"]["cluster_sizes"]
    assert (placed["rows"], placed["novel"], placed["sizes"]) == (60, 0, sizes)
    assert said.err == ""
    check_keys("cluster", made)
    check_keys("predict", placed)


def test_the_end_of_a_run_of_images(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(workdirs, "about", lambda _: {"results": {"metrics": {}}})
    for name in ("report.html", "assignments.csv"):
        (tmp_path / name).touch()
    given = argparse.Namespace(json=True, quiet=False)
    train.end(given, tmp_path, "49 photos")
    told = json.loads(capsys.readouterr().out)
    check_keys("images`, `train", told)


@pytest.mark.parametrize("flag", ["--json", ""])
def test_a_result_that_cannot_be_printed_is_an_error(features, capsys, monkeypatch, flag):
    cluster.main([features, "--workdir=out", "--report=no", "--quiet"])
    with open("/dev/full", "w") as full, monkeypatch.context() as patched:
        patched.setattr("sys.stdout", full)
        with pytest.raises(SystemExit) as ended:
            predict.main(["--workdir=out", features, *filter(None, [flag])])
    assert ended.value.code == exit_codes.FAILURE
    assert "No space left on device while the result was printed" in capsys.readouterr().err


def test_devices_that_are_not_there_are_told_by_the_name_of_the_variable():
    code = """
import jax
from cluster_jax.cli import exit_codes
with exit_codes.handle_errors():
    jax.devices()
"""
    env = {**os.environ, "JAX_PLATFORMS": "cuda", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 2
    assert len(said) == 1
    assert said[0].startswith("error: JAX_PLATFORMS must name devices of this machine")
    assert "got cuda" in said[0]
    assert "Traceback" not in done.stderr


def test_quiet(features, capsys, refused):
    cluster.main([features, "--workdir=out", "--quiet"])
    predict.main(["--workdir=out", features, "--quiet"])
    assert capsys.readouterr() == ("", "")
    assert "y.npy" in refused(cluster.main, "--features=y.npy", "--workdir=out", "--quiet")
    assert logs.logger.level == 0, "as before"


def test_a_report_that_is_written_later(features, tmp_path, capsys, monkeypatch):
    """Without a page no map is drawn; the page that comes later has it, and so has the table."""
    cluster.main([features, "--workdir=with"])
    with monkeypatch.context() as patched:
        patched.delattr(clusters, "reduce")
        cluster.main([features, "--workdir=without", "--report=no"])
    capsys.readouterr()
    with_page, without = tmp_path / "with", tmp_path / "without"
    assert not (without / "report.html").exists()
    assert "map_x" not in (without / "assignments.csv").read_text()
    report.main(["without", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["report"] == "without/report.html"
    check_keys("report RUN", told)
    assert (without / "report.html").exists()
    tables = [(folder / "assignments.csv").read_bytes() for folder in (with_page, without)]
    assert tables[0] == tables[1]
    with monkeypatch.context() as patched:  # It is kept.
        patched.delattr(clusters, "reduce")
        report.main(["without"])


def test_an_application_hears_of_progress_and_warnings(caplog):
    with logs.level(20):
        logs.logger.info("progress")
        assert caplog.messages == ["progress"]
    with logs.printing():
        logs.logger.warning("not twice")
    assert caplog.messages == ["progress"]
    assert logs.logger.handlers == []
