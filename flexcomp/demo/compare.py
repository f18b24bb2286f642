"""Compares a compiled network with ONNX Runtime at several budgets: the demo's and the tests' measure."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx

from flexcomp.errors import FlexcompError
from flexcomp.program import Program
from flexcomp.runtime import runner

TOLERANCE = 1e-4  # largest accepted error, as a part of the output's largest absolute value
FRACTIONS = {"all": 1.0, "25 %": 0.25, "10 %": 0.10, "min": 0.0}  # of the resident size


@dataclass(frozen=True)
class Measurement:
    """One run of a compiled network in a process of its own."""

    label: str  # key of FRACTIONS
    budget_nbytes: int
    error: float  # largest absolute error / largest absolute output, over all outputs
    outputs: dict[str, np.ndarray]
    report: dict  # of the runner

    @property
    def overhead_nbytes(self) -> int:
        """Peak over idle memory of the process: the model's own."""
        return self.report["peak_rss_bytes"] - self.report["idle_rss_bytes"]


def budgets(program: Program) -> dict[str, int]:
    """The four budgets in bytes: parts of the resident size, but never below the smallest feasible."""
    smallest, resident = program.rungs[0].budget, program.rungs[-1].budget
    return {label: max(smallest, int(part * resident)) for label, part in FRACTIONS.items()}


def require_reference() -> None:
    """Raise FlexcompError if ONNX Runtime is not installed."""
    if find_spec("onnxruntime") is None:
        raise FlexcompError("ONNX Runtime is missing: pip install 'flexcomp[demo]'")


def reference(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs of ONNX Runtime. Raises FlexcompError if ONNX Runtime is not installed."""
    require_reference()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def relative_error(actual: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    """Largest absolute difference over the largest absolute expected value; infinite if not comparable."""
    worst = 0.0
    for name, want in expected.items():
        got = actual.get(name)
        # A NaN would compare as no difference at all.
        if got is None or got.shape != want.shape or not (np.isfinite(got).all() and np.isfinite(want).all()):
            return float("inf")
        scale = float(np.abs(want).max(initial=0.0)) or 1.0
        difference = np.abs(got.astype(np.float64) - want.astype(np.float64)).max(initial=0.0)
        worst = max(worst, float(difference) / scale)
    return worst


def measure(
    library: str | Path,
    label: str,
    budget_nbytes: int,
    inputs: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    *,
    repeat: int = 3,
    warmup: int = 0,
    threads: int | None = None,
    prefix: Sequence[str] = (),
) -> Measurement:
    """Run `library` in a fresh process under a budget and compare its outputs with `expected`."""
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for index, (name, value) in enumerate(inputs.items()):
            files[name] = Path(folder) / f"input{index}.npy"
            np.save(files[name], value)
        results = Path(folder) / "outputs"
        report = runner.run(
            library,
            budget=budget_nbytes,
            threads=threads,
            repeat=repeat,
            warmup=warmup,
            inputs=files,
            output_dir=results,
            prefix=prefix,
        )
        outputs = {name: np.load(runner.output_file(results, name)) for name in expected}
    return Measurement(label, budget_nbytes, relative_error(outputs, expected), outputs, report)
