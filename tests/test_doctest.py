"""The examples in docstrings run, and every public function of the libraries has one."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import cluster_jax
from tests.rows import every_row

PACKAGES = ("losses", "samplers", "clustering", "metrics")


def modules(packages):
    names = []
    for package in packages:
        folder = importlib.import_module(f"{cluster_jax.__name__}.{package}")
        names += [folder.__name__]
        names += [
            f"{folder.__name__}.{module.name}" for module in pkgutil.iter_modules(folder.__path__)
        ]
    return names


def test_the_packages_have_modules():
    assert len(modules(PACKAGES)) > 20


@pytest.mark.parametrize("name", modules(PACKAGES))
def test_examples_run(name):
    module = importlib.import_module(name)
    output = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for example in doctest.DocTestFinder(exclude_empty=True).find(module):
        runner.run(example, out=output.append)
    assert runner.failures == 0, "".join(output)


@every_row("name", modules(PACKAGES))
def test_every_public_function_has_an_example(name):
    module = importlib.import_module(name)
    for attribute, value in vars(module).items():
        function = inspect.unwrap(value) if callable(value) else None
        if attribute.startswith("_") or not inspect.isfunction(function):
            continue
        if function.__module__ == name:
            assert ">>>" in (function.__doc__ or ""), f"{name}.{attribute} has no example"
