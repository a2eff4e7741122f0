"""The command `train`: a run from the shell, one sentence for bad input, two processes."""

import csv
import os
import pathlib
import re
import socket
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from cluster_jax.cli import flags, report, train
from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.core.config import load_config
from cluster_jax.training import loop
from tests import toy
from tests.rows import every_row

ROOT = pathlib.Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.usefixtures("one_device", "compiled_once")]
TINY = (
    "--config.network.width=4", "--config.network.projector.hidden=16",
    "--config.network.projector.out=8", "--config.train.batch_size=16",
    "--config.train.duration=2 steps", "--config.train.log_every=1",
    "--config.optimizer.warmup=1 step", "--config.eval.reduce=pca", "--config.nrcc.weight=0",
    "--config.eval.linear_probe.epochs=1",
)  # fmt: skip


def _command(*flags, config="nrcc_digits"):
    return [sys.executable, "-m", "cluster_jax.cli.app", "train", f"--config={config}", *flags]


def _run(*flags, cwd=ROOT, **options):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        _command(*flags, **options), cwd=cwd, env=environment, capture_output=True, text=True
    )


def _sentence(text):
    lines = [line for line in text.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, text
    assert "Traceback" not in text
    return lines[0]


def _refused(capsys, *flags):
    """The sentence of a command that must end with code 2, in this process."""
    with pytest.raises(SystemExit) as stop:
        train.main(_command(*flags)[4:])
    assert stop.value.code == 2
    return _sentence(capsys.readouterr().err)


def test_an_array_file_from_the_shell(tmp_path, monkeypatch, capsys):
    data = toy.file(tmp_path)
    flags = (*TINY, "--config.data.name=arrays", f"--config.data.dir={data}")
    done = _run(*flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    workdir = re.search(r"workdir (\S+)", done.stdout)[1]
    assert workdir.startswith("runs/nrcc_digits-")
    assert (tmp_path / workdir / "report.html").is_file()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loop, "train", lambda *_, **__: pytest.fail("trained again"))
    train.main(_command(*flags)[4:])
    assert "is finished" in capsys.readouterr().out


def test_export_of_a_finished_run(tmp_path, monkeypatch, capsys):
    """The files of a folder; a finished run is not trained again."""
    (tmp_path / "photos" / "a").mkdir(parents=True)
    for i, image in enumerate(toy.images(40)[0]):
        folder = tmp_path / "photos" / ("a" if i < 20 else "")
        Image.fromarray(image[..., 0]).save(folder / f"{i % 20:02}.png")
    monkeypatch.chdir(tmp_path)
    flags = (*TINY, "--config.data.name=folder", "--config.data.dir=photos")
    train.main(_command(*flags)[4:])
    assert "is finished" not in capsys.readouterr().out
    monkeypatch.setattr(loop, "train", lambda *_, **__: pytest.fail("trained again"))
    train.main(_command(*flags)[4:])
    assert "is finished" in capsys.readouterr().out
    (workdir,) = (tmp_path / "runs").iterdir()
    for folder, message in {
        "photos": "must be new or empty",
        "photos/out": "outside of the images' folder",
    }.items():
        with pytest.raises(SystemExit):
            report.main([str(workdir), f"--export={folder}"])
        assert message in _sentence(capsys.readouterr().err)
    report.main([str(workdir), "--export=first"])
    rows = list(csv.DictReader((workdir / "assignments.csv").read_text().splitlines()))
    links = list((tmp_path / "first").glob("*/*"))
    assert all(link.is_symlink() for link in links)
    found = {(str(f.resolve().relative_to(tmp_path / "photos")), f.parent.name) for f in links}
    width = max(2, len(str(max(int(row["cluster"]) for row in rows))))
    wanted = {r["image"]: f"cluster_{r['cluster'].zfill(width)}" for r in rows}
    copies = csv.DictReader((workdir / "duplicates.csv").read_text().splitlines())
    wanted |= {copy["image"]: "copies" for copy in copies if copy["keep"] == "0"}
    assert found == set(wanted.items())


def test_images_without_files_are_not_exported(tmp_path, capsys):
    data = f"--config.data.dir={toy.file(tmp_path)}"
    flags = (*TINY, "--config.data.name=arrays", data, f"--workdir={tmp_path}/run")
    train.main(_command(*flags)[4:])
    with pytest.raises(SystemExit):
        report.main([f"{tmp_path}/run", f"--export={tmp_path}/out"])
    assert "must be images in files; got a run on arrays" in capsys.readouterr().err


@every_row(
    ("flag", "message"),
    [
        ("--config.train.batch_sise=3", "batch_sise"),
        ("--config.train.batch_size=many", "many"),
        ("--config.color=1", "color"),
        ("--configg=1", "configg"),
    ],
)
def test_mistyped_flags(capsys, flag, message):
    assert message in _refused(capsys, flag)


def test_a_config_without_a_section_is_named(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "from cluster_jax.core.config import load_config\n\n\ndef get_config():\n"
        "    config = load_config('nrcc_digits')\n    del config.network\n    return config\n"
    )
    train_error = _refused(capsys, f"--config={tmp_path / 'mine.py'}")
    assert "missing config key" in train_error


@pytest.mark.parametrize("given", ["nrcc_digits", "configs/nrcc_digits.py", "nrcc_digits.py"])
def test_config_is_found(given, monkeypatch):
    monkeypatch.chdir(ROOT)
    for arguments in ([f"--config={given}"], ["--config", given]):
        parsed, overrides = flags.parse(train._parser(), arguments)
        assert overrides == []
        config, name = flags.read_config(parsed.config, overrides)
        assert name == "nrcc_digits"
        assert config.to_dict() == load_config("nrcc_digits").to_dict()
    with pytest.raises(InputError, match=r"nrcc_digits.* got 'no_such'"):
        flags.read_config("no_such", [])


def test_values_of_the_config():
    """With a space, of any type; the last one counts."""
    arguments = [
        *("--config.train.duration=3 epochs", "--config", "nrcc_digits", "--workdir", "w"),
        *("--config.seed=3", "--config.network.width=4", "--config.network.width=8"),
        *("--config.eval.knn=(3, 7)", "--config.nrcc.sghmc.normalize_gradient=false"),
    ]
    parsed, overrides = flags.parse(train._parser(), arguments)
    assert (parsed.config, parsed.workdir) == ("nrcc_digits", "w")
    config, _ = flags.read_config(parsed.config, overrides)
    assert (config.train.duration, config.seed, config.network.width) == ("3 epochs", 3, 8)
    assert config.eval.knn == (3, 7)
    assert not config.nrcc.sghmc.normalize_gradient


def test_bad_input_ends_with_code_2_and_writes_nothing(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    workdir = tmp_path / "run"
    folder = ("--config.data.name=folder", f"--config.data.dir={tmp_path}/empty")
    assert "empty" in _refused(capsys, *folder, f"--workdir={workdir}")
    assert "must be flags such as --config.train.batch_size=128; got 'more'" in _refused(
        capsys, "more"
    )
    assert not workdir.exists()


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path):
    """Two hosts of two devices each: the same files as one process, written by the first."""
    data = toy.file(tmp_path)
    flags = (*TINY, "--config.data.name=arrays", f"--config.data.dir={data}")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "2",
        "JAX_COORDINATOR_ADDRESS": f"localhost:{port}",
        "JAX_NUM_PROCESSES": "2",
    }
    hosts = [
        subprocess.Popen(
            _command(*flags, f"--workdir={tmp_path}/two"),
            cwd=ROOT,
            env={**environment, "JAX_PROCESS_ID": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [host.communicate(timeout=300)[0] for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], outputs
    assert _run(*flags, f"--workdir={tmp_path}/one").returncode == 0
    one, two = (io.read_arrays(tmp_path / n / "embedding.npz") for n in ("one", "two"))
    np.testing.assert_allclose(one["projection"], two["projection"], atol=2e-3)
    assert io.read_json(tmp_path / "two" / "results.json")["provenance"]["processes"] == 2
