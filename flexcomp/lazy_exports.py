"""Lazy exports: names of a package that are imported from its files on first use.

    __getattr__, __dir__, __all__ = lazy_exports(__name__, session="Session load", budget="Budget parse_budget")

Files of one package may cost much or little to import: running a compiled network, or asking for help, never imports TVM.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from flexcomp.gc_threshold import high_gc_threshold


def lazy_exports(package: str, **files: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package, from the exported names of each file, separated by spaces.

    No file may bear one of the names: once imported, the module would replace the exported object.
    """
    homes = {name: file for file, names in files.items() for name in names.split()}
    if both := homes.keys() & files.keys():
        raise ValueError(f"{package} has files that are called like a name that it exports: {', '.join(sorted(both))}")

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with high_gc_threshold():
            value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return find, names, list(homes)
