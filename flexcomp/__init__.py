"""flexcomp compiles neural networks to run in a small memory budget.

    artifact = flexcomp.build("resnet50.onnx", budget="16MB")
    artifact.export_library("resnet50.so")
    session = flexcomp.load("resnet50.so", budget="12MB")
    outputs = session.run({"x": x})

    build, Artifact   compile a model for a target and a budget
    load, Session     run a compiled network; Pool: several under one budget
    Generator         tokens of a language model, chosen by a Sampling
    CustomOperator    an operator that flexcomp lacks: its results' types (Tensor), its kernel in TVMScript or in C (CKernel)
    tune              measure kernels on a device, for later builds
    remote            devices behind RPC: connect, upload, run, measure, profile
    FlexcompError     of the kinds ArtifactError, BudgetError, CompilerError, DeviceError, ExecutionError, InputError,
                      ModelError, RefusedError, StorageError, TargetError, TuningError, UnsupportedModelError

help(flexcomp.build) explains options. Names are imported on first use: running a network never imports the compiler.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flexcomp.lazy_exports import lazy_exports
from flexcomp.version import __version__ as __version__

if TYPE_CHECKING:
    from flexcomp import remote as remote
    from flexcomp.compiler import Artifact as Artifact
    from flexcomp.compiler import build as build
    from flexcomp.errors import ArtifactError as ArtifactError
    from flexcomp.errors import BudgetError as BudgetError
    from flexcomp.errors import CompilerError as CompilerError
    from flexcomp.errors import DeviceError as DeviceError
    from flexcomp.errors import ExecutionError as ExecutionError
    from flexcomp.errors import FlexcompError as FlexcompError
    from flexcomp.errors import InputError as InputError
    from flexcomp.errors import ModelError as ModelError
    from flexcomp.errors import RefusedError as RefusedError
    from flexcomp.errors import StorageError as StorageError
    from flexcomp.errors import TargetError as TargetError
    from flexcomp.errors import TuningError as TuningError
    from flexcomp.errors import UnsupportedModelError as UnsupportedModelError
    from flexcomp.frontend import CKernel as CKernel
    from flexcomp.frontend import CustomOperator as CustomOperator
    from flexcomp.frontend import Tensor as Tensor
    from flexcomp.generation import Generator as Generator
    from flexcomp.generation import Sampling as Sampling
    from flexcomp.runtime import Pool as Pool
    from flexcomp.runtime import Session as Session
    from flexcomp.runtime import load as load
    from flexcomp.tuning import tune as tune

_find, _, _names = lazy_exports(
    __name__,
    compiler="build Artifact",
    frontend="CustomOperator CKernel Tensor",
    generation="Generator Sampling",
    runtime="load Pool Session",
    tuning="tune",
    errors="FlexcompError ArtifactError BudgetError CompilerError DeviceError ModelError TargetError TuningError StorageError "
    "ExecutionError InputError RefusedError UnsupportedModelError",
)
# No `__all__`: `help(flexcomp)` would print the help of each name.
_NAMES = sorted([*_names, "remote", "__version__"])
_OF_THE_COMPILER = ("flexcomp.compiler", "flexcomp.frontend", "flexcomp.remote", "flexcomp.tuning")
# An editable install adds the checkout, whose other folders are no parts of the package.
__path__ = [folder for folder in __path__ if Path(folder) != Path(__file__).parent.parent]


def __dir__() -> list[str]:
    return _NAMES


def __getattr__(name: str) -> Any:
    try:
        return import_module("flexcomp.remote") if name == "remote" else _find(name)
    except ModuleNotFoundError as error:
        if error.name not in _OF_THE_COMPILER:
            raise
        raise ImportError(
            f"flexcomp.{name} is a part of the package flexcomp, and only flexcomp-runtime is installed: pip install flexcomp",
            name=error.name,
        ) from None
