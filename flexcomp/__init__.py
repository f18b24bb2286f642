"""flexcomp compiles neural networks to run in a small memory budget.

    artifact = flexcomp.build("resnet50.onnx", budget="16MB")
    artifact.export_library("resnet50.so")
    session = flexcomp.load("resnet50.so", budget="12MB")
    outputs = session.run({"x": x})

Names are imported on first use: loading and running a compiled network never imports the compiler.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flexcomp import remote as remote
    from flexcomp.compiler.artifact import Artifact as Artifact
    from flexcomp.compiler.build import build as build
    from flexcomp.errors import ArtifactError as ArtifactError
    from flexcomp.errors import BudgetError as BudgetError
    from flexcomp.errors import CompilerError as CompilerError
    from flexcomp.errors import DeviceError as DeviceError
    from flexcomp.errors import ExecutionError as ExecutionError
    from flexcomp.errors import FlexcompError as FlexcompError
    from flexcomp.errors import InputError as InputError
    from flexcomp.errors import ModelError as ModelError
    from flexcomp.errors import StorageError as StorageError
    from flexcomp.errors import TargetError as TargetError
    from flexcomp.errors import TuningError as TuningError
    from flexcomp.errors import UnsupportedModelError as UnsupportedModelError
    from flexcomp.runtime.session import Session as Session
    from flexcomp.runtime.session import load as load
    from flexcomp.tuning.tune import tune as tune

__version__ = "0.1.0"

_HOMES = {
    "build": "flexcomp.compiler.build",
    "Artifact": "flexcomp.compiler.artifact",
    "load": "flexcomp.runtime.session",
    "Session": "flexcomp.runtime.session",
    "tune": "flexcomp.tuning.tune",
    "FlexcompError": "flexcomp.errors",
    "ArtifactError": "flexcomp.errors",
    "BudgetError": "flexcomp.errors",
    "CompilerError": "flexcomp.errors",
    "DeviceError": "flexcomp.errors",
    "ModelError": "flexcomp.errors",
    "TargetError": "flexcomp.errors",
    "TuningError": "flexcomp.errors",
    "StorageError": "flexcomp.errors",
    "ExecutionError": "flexcomp.errors",
    "InputError": "flexcomp.errors",
    "UnsupportedModelError": "flexcomp.errors",
}

__all__ = [*_HOMES, "remote", "__version__"]


class _Package(ModuleType):
    """Importing the submodule `flexcomp.build` must not hide the function of the same name."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name == "remote":
        return import_module("flexcomp.remote")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
