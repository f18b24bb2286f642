"""One node test through one engine."""

from __future__ import annotations

import enum
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from tests.conformance.cases import Case

# Expected values of 16-bit tests were rounded after each operation. ONNX's runner allows for two units in the last place of
# bfloat16; float16 is given the same.
TWO_ULPS = {"bfloat16": 2**-6, "float16": 2**-9}


class Outcome(enum.Enum):
    """How a test ended."""

    RIGHT = "right"
    REFUSED = "refused"  # with an error that is meant for users
    WRONG = "wrong"
    CRASHED = "crashed"  # any other error, the end of the process, or of the time


@dataclass(frozen=True)
class Verdict:
    """How a test ended, and why if not well."""

    outcome: Outcome
    reason: str = ""


# What LLVM does not optimise compiles in a third of the time, and computes the same to the tolerances of the tests.
UNOPTIMISED = "llvm -opt-level=0"


def by_flexcomp(case: Case, target: str = "native") -> Verdict:
    """Build, export, load and run, with everything resident and in the smallest budget."""
    import flexcomp
    from flexcomp.errors import FlexcompError

    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        library = Path(folder) / "test.so"
        try:
            artifact = flexcomp.build(onnx.load_model_from_string(case.model), target, threads=1)
            artifact.export_library(str(library))
            for budget in ("all", "min"):
                with flexcomp.load(library, budget=budget) as session:
                    found = difference(case, session.run(case.inputs))
                if found:
                    return Verdict(Outcome.WRONG, found)
        except FlexcompError as error:
            return Verdict(Outcome.REFUSED, str(error))
        except Exception as error:  # what users must never see: seen and counted here
            return Verdict(Outcome.CRASHED, last_line(error))
    return Verdict(Outcome.RIGHT)


def together(cases: Sequence[Case], target: str, kernels: str = "auto") -> list[Verdict]:
    """As `by_flexcomp`, of tests in one library. One that fails may make all fail: each alone says more."""
    import flexcomp
    from flexcomp.frontend import load_model
    from tests import joint

    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        library = Path(folder) / "tests.so"
        models = [onnx.load_model_from_string(case.model) for case in cases]
        artifact = joint.build([load_model(model) for model in models], models[0], target=target, kernels=kernels)
        artifact.export_library(str(library))
        marked = [(joint.mark(i), case) for i, case in enumerate(cases)]
        inputs = {mark + name: value for mark, case in marked for name, value in case.inputs.items()}
        wrong: dict[int, str] = {}
        for budget in ("all", "min"):
            with flexcomp.load(library, budget=budget) as session:
                found = session.run(inputs)
            for i, (mark, case) in enumerate(marked):
                own = {name.removeprefix(mark): value for name, value in found.items() if name.startswith(mark)}
                wrong[i] = wrong.get(i) or difference(case, own)
    return [Verdict(Outcome.WRONG, wrong[i]) if wrong[i] else Verdict(Outcome.RIGHT) for i in range(len(cases))]


def by_onnxruntime(case: Case) -> Verdict:
    """ONNX Runtime on the CPU, with its default options."""
    try:
        values = outputs_of_onnxruntime(case.model, case.inputs)
    except Exception as error:  # its errors have no common base
        return Verdict(Outcome.REFUSED, last_line(error))
    found = difference(case, values)
    return Verdict(Outcome.WRONG, found) if found else Verdict(Outcome.RIGHT)


def outputs_of_onnxruntime(model: bytes, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """By name. Raises whatever ONNX Runtime does for models that it does not take."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, inputs), strict=True))


ENGINES: dict[str, Callable[[Case], Verdict]] = {"flexcomp": by_flexcomp, "onnxruntime": by_onnxruntime}


def difference(case: Case, found: dict[str, np.ndarray]) -> str:
    """Where outputs differ from the test's by more than its tolerances; empty if they do not."""
    if list(found) != list(case.outputs):
        return f"outputs {', '.join(found)} instead of {', '.join(case.outputs)}"
    for name, want in case.outputs.items():
        got = np.asarray(found[name])
        if got.dtype != want.dtype or got.shape != want.shape:
            return f"{name} is {got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
        exact = want.dtype.kind in "biu"
        wide = (got, want) if exact else (got.astype("f8"), want.astype("f8"))
        rtol = max(case.rtol, TWO_ULPS.get(want.dtype.name, 0))
        with np.errstate(invalid="ignore", over="ignore"):
            same = got == want if exact else np.isclose(*wide, rtol=rtol, atol=case.atol, equal_nan=True)
        if not same.all():
            at = tuple(int(i) for i in np.argwhere(~same)[0])
            return f"{name}{list(at)} is {got[at]} instead of {want[at]} ({np.count_nonzero(~same)} of {same.size} differ)"
    return ""


def last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"
