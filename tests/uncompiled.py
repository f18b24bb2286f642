"""Programs of networks without machine code, for tests that run nothing: compiling takes most of a build."""

from __future__ import annotations

import onnx

from flexcomp.compiler.artifact import Artifact
from flexcomp.compiler.builder import prepare
from flexcomp.compiler.options import Request, options_of
from flexcomp.program import Program
from flexcomp.runtime import parse_budget


def planned(
    model: onnx.ModelProto, target: str = "native", budget: str | float | None = None, strategy: str = "best", **options: object
) -> Program:
    """The program of `flexcomp.build`, which has these arguments, too."""
    return artifact(model, target, budget, strategy, **options).program


def artifact(
    model: onnx.ModelProto, target: str = "native", budget: str | float | None = None, strategy: str = "best", **options: object
) -> Artifact:
    """That of `flexcomp.build`, but for machine code."""
    prepared = prepare(model, target, options_of(**options), compiler=UNCOMPILED)
    return prepared.artifacts([Request(parse_budget(budget), strategy)])[0]


class _Uncompiled:
    """In the place of a compiler."""

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def require(self, target: object) -> None:
        pass

    def begin(self, kernels: object, target: object) -> None:
        pass

    def finish(self, kernels: object, target: object, report: object) -> dict[str, bytes]:
        return {}


UNCOMPILED = _Uncompiled()
