"""The experiments fit the package: their modules import, and their configs have its keys."""

import importlib
import pathlib
import types

import pytest

from cluster_jax.core import io
from cluster_jax.core.config import config_names, load_config
from experiments import runs, tables
from experiments.digits import rows as digits_rows
from experiments.ncl import cifar10 as ncl_cifar10
from experiments.ncl import digits as ncl_digits
from experiments.nrcc import cifar10 as nrcc_cifar10
from experiments.nrcc import digits as nrcc_digits

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODULES = sorted(
    ".".join(file.relative_to(ROOT).with_suffix("").parts)
    for file in (ROOT / "experiments").rglob("*.py")
    if "tutorials" not in file.parts  # importing one runs it: test_tutorials.py
)


@pytest.mark.parametrize("name", MODULES)
def test_import(name):
    if name.endswith("_torch_byol"):
        pytest.importorskip("torch")
    assert importlib.import_module(name).__doc__


def _keys(config, prefix=""):
    for key, value in config.items():
        yield prefix + key
        if hasattr(value, "items"):
            yield from _keys(value, f"{prefix}{key}.")


def test_tables_set_keys_that_exist():
    """A misspelled key of `config.method.update(...)` would only fail when the run is built."""
    known = {}
    for name in config_names():
        config = load_config(name)
        known.setdefault(config.method.name, set()).update(_keys(config))
    configs = [config for table in digits_rows.TABLES.values() for config in table().values()]
    configs += [*ncl_digits.rows().values(), *ncl_cifar10.rows("data").values()]
    configs += [*nrcc_digits.rows().values(), nrcc_cifar10.reduced("data")]
    assert len(configs) > 40
    for config in configs:
        assert set(_keys(config)) <= known[config.method.name]


def _results(seed, acc, commit="c1"):
    origin = {"seed": seed, "commit": commit, "devices": "1 x cpu"}
    origin |= {"images_trained": 1797, "images_scored": 1000}
    metrics = {"kmeans": {"acc": acc, "nmi": 0.5}, "gridshift": None, "knn": {"5": None}}
    return {"metrics": metrics, "provenance": origin}


def test_a_table_has_mean_and_deviation_of_the_seeds_and_its_provenance(tmp_path):
    results = {
        "a": [_results(0, 0.25), _results(1, 0.75, "c2")],
        "b": [_results(0, 0.5), _results(1, 0.5)],
    }
    text = runs.write(
        f"{tmp_path}/t", "python -m x", results, lambda found: f"{len(found)} rows.",
        speeds={"a": [1000.0, 2000.0], "b": [10.0]},
    )  # fmt: skip
    assert "|  | k-means ACC | k-means NMI | images/s |" in text
    assert "| a | 0.500 ± 0.354 | 0.500 ± 0.000 | 1,500 |" in text
    assert "| b | 0.500 ± 0.000 | 0.500 ± 0.000 | 10 |" in text
    assert "over seeds 0, 1. 1,797 training images, 1,000 scored. 2 rows." in text
    assert "Command: `python -m x`." in text
    assert text.strip().endswith("Commit: c1, c2.")
    assert (tmp_path / "t.md").read_text() == text
    stored = io.read_json(tmp_path / "t.json")
    column = stored["rows"]["a"]["k-means ACC"]
    assert column["values"] == [0.25, 0.75]
    assert (column["mean"], column["std"]) == (0.5, pytest.approx(0.125**0.5))
    assert stored["provenance"]["machine"] == tables.machine()


def _flags(folder, **changed):
    defaults = {"runs": str(folder / "runs"), "out": str(folder / "t"), "only": None}
    return types.SimpleNamespace(**(defaults | changed))


@pytest.fixture
def workdirs(monkeypatch):
    """The workdirs of the runs that are asked for, in order; nothing is trained."""
    made = []

    def run(config, workdir, name):
        made.append(workdir)
        assert workdir.name.endswith(f"-seed{config.seed}")
        (workdir / "stages").mkdir(parents=True, exist_ok=True)
        return _results(config.seed, 0.5)

    monkeypatch.setattr(runs.pipeline, "run_pipeline", run)
    monkeypatch.setattr(runs.devices, "use_cores", lambda batch: None)
    return made


def _rows():
    bare = load_config("nrcc_digits")
    bare.nrcc.weight = 0.0
    return {"nrcc": load_config("nrcc_digits"), "again": load_config("nrcc_digits"), "bare": bare}


def test_every_row_runs_with_every_seed_and_equal_rows_share_runs(tmp_path, workdirs):
    runs.make(_flags(tmp_path), "python -m x", _rows(), "")
    assert len(workdirs) == 9
    assert workdirs[:3] == workdirs[3:6]
    assert len(set(workdirs)) == 6
    assert (tmp_path / "t.md").exists()


def test_two_processes_split_the_runs_and_write_no_table(tmp_path, workdirs):
    for only in ("0/2", "1/2"):
        runs.make(_flags(tmp_path, only=only), "python -m x", _rows(), "")
    assert len(workdirs) == 9
    assert len(set(workdirs)) == 6
    assert not (tmp_path / "t.md").exists()


def test_rows_may_share_the_stages_of_the_first(tmp_path, workdirs, monkeypatch):
    make = runs.pipeline.run_pipeline

    def run(config, workdir, name):
        if workdir not in workdirs:
            copied = workdir / "stages" / "one"
            assert copied.exists() == bool(config.nrcc.weight == 0.0)
            if config.nrcc.weight:
                copied.mkdir(parents=True)
                (copied / "seed").write_text(str(config.seed))
            assert (copied / "seed").read_text() == str(config.seed)
        return make(config, workdir, name)

    monkeypatch.setattr(runs.pipeline, "run_pipeline", run)
    runs.make(_flags(tmp_path), "python -m x", _rows(), "", shares_stages=True)
    assert len(workdirs) == 9
