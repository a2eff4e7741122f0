"""The command `train`: a whole run, one sentence for bad input, two processes."""

import pathlib
import re

import numpy as np
import pytest

from cluster_jax.cli import flags, train
from cluster_jax.core import io
from cluster_jax.core.config import load_config
from cluster_jax.training import loop
from tests import toy
from tests.faults import jobs
from tests.rows import every_row

ROOT = pathlib.Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.usefixtures("one_device", "compiled_once")]
TINY = (
    "--config=nrcc_digits",
    "--config.network.width=4", "--config.network.projector.hidden=16",
    "--config.network.projector.out=8", "--config.train.batch_size=16",
    "--config.train.duration=2 steps", "--config.train.log_every=1",
    "--config.optimizer.warmup=1 step", "--config.eval.reduce=pca", "--config.nrcc.weight=0",
    "--config.eval.linear_probe.epochs=1",
)  # fmt: skip


def test_an_array_file(tmp_path, monkeypatch, capsys):
    """In processes of their own commands train in `tests/faults`."""
    data = toy.file(tmp_path)
    flags = (*TINY, "--config.data.name=arrays", f"--config.data.dir={data}")
    flags += ("--config.network.name=mlp",)
    monkeypatch.chdir(tmp_path)
    train.main(flags)
    workdir = re.search(r"workdir (\S+)", capsys.readouterr().out)[1]
    assert workdir.startswith("runs/nrcc_digits-")
    assert (tmp_path / workdir / "report.html").is_file()
    monkeypatch.setattr(loop, "train", lambda *_, **__: pytest.fail("trained again"))
    train.main(flags)
    assert "is finished" in capsys.readouterr().out


@every_row(
    ("flag", "message"),
    [
        ("--config.train.batch_sise=3", "batch_sise"),
        ("--config.train.batch_size=many", "many"),
        ("--config.color=1", "color"),
        ("--configg=1", "configg"),
    ],
)
def test_mistyped_flags(refused, flag, message):
    assert message in refused(train.main, "--config=nrcc_digits", flag)


def test_a_config_without_a_section_is_named(tmp_path, refused):
    (tmp_path / "mine.py").write_text(
        "from cluster_jax.core.config import load_config\n\n\ndef get_config():\n"
        "    config = load_config('nrcc_digits')\n    del config.network\n    return config\n"
    )
    assert "missing config key" in refused(train.main, f"--config={tmp_path / 'mine.py'}")


@pytest.mark.parametrize("given", ["nrcc_digits", "configs/nrcc_digits.py", "nrcc_digits.py"])
def test_config_is_found(given, monkeypatch):
    monkeypatch.chdir(ROOT)
    for arguments in ([f"--config={given}"], ["--config", given]):
        parsed, overrides = flags.parse(train._parser(), arguments)
        assert overrides == []
        config, name = flags.read_config(parsed.config, overrides)
        assert name == "nrcc_digits"
        assert config.to_dict() == load_config("nrcc_digits").to_dict()


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


def test_bad_input_ends_with_code_2_and_writes_nothing(tmp_path, refused):
    (tmp_path / "empty").mkdir()
    workdir, config = tmp_path / "run", "--config=nrcc_digits"
    folder = ("--config.data.name=folder", f"--config.data.dir={tmp_path}/empty")
    assert "empty" in refused(train.main, config, *folder, f"--workdir={workdir}")
    said = "must be flags such as --config.train.batch_size=128; got 'more'"
    assert said in refused(train.main, config, "more")
    assert not workdir.exists()


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path):
    """Two hosts of two devices each: the same embedding as of one process."""
    data = toy.file(tmp_path)
    flags = (*TINY, "--config.data.name=arrays", f"--config.data.dir={data}")
    jobs.Job(["train", *flags, f"--workdir={tmp_path}/two"], tmp_path).succeed()
    train.main([*flags, f"--workdir={tmp_path}/one"])
    one, two = (io.read_arrays(tmp_path / n / "embedding.npz") for n in ("one", "two"))
    np.testing.assert_allclose(one["projection"], two["projection"], atol=2e-3)
