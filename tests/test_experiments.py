"""The experiments can be imported: what they use of the package is there."""

import importlib
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODULES = sorted(
    ".".join(file.relative_to(ROOT).with_suffix("").parts)
    for file in (ROOT / "experiments").rglob("*.py")
    if "tutorials" not in file.parts  # they run when imported: test_tutorials.py
)


@pytest.mark.parametrize("name", MODULES)
def test_import(name):
    module = importlib.import_module(name)
    assert module.__doc__
