"""Packages that list their public names and load each of them where it is first used."""

import ast
import importlib
import pkgutil
import sys
import types
from collections.abc import Callable
from typing import Any


def exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns `__getattr__`, `__dir__` and `__all__` of a package whose `__init__.py` calls this.

    The public names are those that the stub `__init__.pyi` beside it imports, where type checkers
    and editors look for them too. Its lines are read as a table of names and modules; nothing is
    imported before it is used. `from package import module as module` exports a module.

    A public name wins over a submodule of the same name, in every order of imports:
    `losses.nrcc` is the function. Import the module's content by
    `from cluster_jax.losses.nrcc import ...`.

    Args:
        package: the package's `__name__`.

    Example:
        The `__init__.pyi` of a package, and its `__init__.py`:

            from cluster_jax.losses.nrcc import nrcc as nrcc

            __getattr__, __dir__, __all__ = lazy.exports(__name__)
    """
    module = sys.modules[package]
    homes = _homes(package)

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if homes[name] == package:
            return importlib.import_module(f"{package}.{name}")
        module.__dict__[name] = value = getattr(importlib.import_module(homes[name]), name)
        return value

    class Package(types.ModuleType):
        """The package itself."""

        def __setattr__(self, name: str, value: Any) -> None:
            # Python binds a submodule to its package once it is imported.
            if isinstance(value, types.ModuleType) and homes.get(name, package) != package:
                return
            super().__setattr__(name, value)

    module.__class__ = Package
    names = sorted([*homes, *(["__version__"] if "__version__" in vars(module) else [])])
    return load, lambda: names, names


def _homes(package: str) -> dict[str, str]:
    """Maps each public name to the module that defines it; a module to the package around it."""
    stub = ast.parse(pkgutil.get_data(package, "__init__.pyi") or b"")
    return {
        alias.name: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }
