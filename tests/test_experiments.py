"""The experiments fit the package: their modules import, and their configs have its keys."""

import importlib
import pathlib

import pytest

from cluster_jax.core.config import config_names, load_config
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
    if name.endswith("torch_peer"):
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
