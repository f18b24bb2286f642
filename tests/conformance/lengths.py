"""Node tests with every axis dynamic, in a library for three lengths: the test's own, and two that ONNX allows as well.

Axes of one extent have one name, `d3`, in all inputs, so that what must be equal stays equal. The other lengths are one more, and
twice as many, of all names at once, or else of one name alone: the first for which ONNX's reference implementation takes both,
and a library for each alone can be built. A test whose parameters fix all extents has its own lengths only. Inputs of other
lengths repeat those of the test. Their outputs are those of the reference implementation or, where these differ, of ONNX Runtime:
the reference implementation numbers maxima wrongly, and averages other elements in pools with dilations and `ceil_mode`.
"""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from tests.conformance.cases import Case
from tests.conformance.verdict import Outcome, Verdict, difference, last_line, outputs_of_onnxruntime

_MOST_ELEMENTS = 1 << 20  # of an input
_DECLARED = ("NonMaxSuppression",)  # as many rows as the model declares, of fixed shapes only
_NOISE = 1e-5  # of the largest element: the reference's own rounding


@dataclass(frozen=True)
class Lengths:
    """A test in several lengths, with extents by name; the test's own length comes first."""

    model: onnx.ModelProto
    axes: Mapping[str, tuple[str, ...]]  # names by input
    tests: list[tuple[dict[str, int], Case]]


def in_lengths(case: Case) -> Iterator[Lengths]:
    """The test in three lengths, in all ways; at last in its own."""
    model = onnx.load_model_from_string(case.model)
    if case.operator in _DECLARED:
        yield Lengths(model, {}, [({}, case)])
        return
    axes = {name: tuple(f"d{extent}" for extent in array.shape) for name, array in case.inputs.items() if array.size}
    for port in model.graph.input:
        for dim, name in zip(port.type.tensor_type.shape.dim, axes.get(port.name, ()), strict=False):
            dim.dim_param = name
    for port in (*model.graph.output, *model.graph.value_info):
        for dim in port.type.tensor_type.shape.dim:
            dim.Clear()
    own = {name: extent for port, names in axes.items() for name, extent in zip(names, case.inputs[port].shape, strict=True)}
    for some in _choices(own):
        others = [own | {name: longer(own[name]) for name in some} for longer in (lambda n: n + 1, lambda n: 2 * n)]
        found = [_tested(case, model, axes, extents) for extents in others]
        if some and None not in found and others[0] != others[1]:
            yield Lengths(model, axes, [(own, case), *zip(others, found, strict=True)])
    yield Lengths(model, axes, [(own, case)])


def _choices(own: Mapping[str, int]) -> Iterator[list[str]]:
    """Names whose extents change together: all, or one of them, the largest first."""
    longer = sorted((name for name, extent in own.items() if extent > 1), key=lambda name: -own[name])
    yield longer
    yield from ([name] for name in longer)


def _tested(case: Case, model: onnx.ModelProto, axes: Mapping[str, tuple[str, ...]], extents: Mapping[str, int]) -> Case | None:
    """The test with other extents; None where ONNX's reference implementation refuses these."""
    inputs = {}
    for name, array in case.inputs.items():
        shape = tuple(extents[one] for one in axes[name]) if name in axes else array.shape
        if math.prod(shape) > _MOST_ELEMENTS:
            return None
        inputs[name] = np.resize(array, shape)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            values = ReferenceEvaluator(model).run(None, inputs)
    except Exception:  # its errors have no common base
        return None
    if not all(isinstance(value, np.ndarray | np.generic) for value in values):
        return None
    found = {port.name: np.asarray(value) for port, value in zip(model.graph.output, values, strict=True)}
    own = case.outputs
    if any(found[name].ndim != own[name].ndim or found[name].dtype != own[name].dtype for name in found):
        return None
    floats = [value for value in found.values() if value.size and value.dtype.kind == "f"]
    exact = all(np.isfinite(value).all() for value in own.values() if value.dtype.kind == "f")
    if exact and not all(np.isfinite(value).all() for value in floats):
        return None  # numbers that the reference implementation alone cannot hold, as of log(exp(x))
    largest = max((float(np.nan_to_num(np.abs(value.astype("f8")), posinf=0).max()) for value in floats), default=0.0)
    return replace(case, inputs=inputs, outputs=found, atol=max(case.atol, _NOISE * largest))


def by_lengths(case: Case, target: str = "native") -> Verdict:
    """Build a library for all lengths of a test, export, load and run it in each, in the smallest budget."""
    for lengths in in_lengths(case):
        verdict, others = _of(lengths, target), range(1, len(lengths.tests))
        if verdict.outcome != Outcome.REFUSED or not any(_is_refused(lengths, index, target) for index in others):
            break
    return verdict


def _as_onnxruntime(model: onnx.ModelProto, case: Case, outputs: dict[str, np.ndarray]) -> bool:
    """Whether ONNX Runtime computes these outputs, too."""
    try:
        expected = outputs_of_onnxruntime(model.SerializeToString(), case.inputs)
    except Exception:  # its errors have no common base
        return False
    return not difference(replace(case, outputs=expected), outputs)


def _is_refused(lengths: Lengths, index: int, target: str) -> bool:
    """Whether no library can be built for one of the lengths alone."""
    return _of(replace(lengths, tests=lengths.tests[index : index + 1]), target).outcome == Outcome.REFUSED


def _of(lengths: Lengths, target: str) -> Verdict:
    import flexcomp
    from flexcomp.errors import FlexcompError

    shapes = [extents for extents, _ in lengths.tests]
    axes = {name: names for name, names in lengths.axes.items() if names}
    named = {"input_shapes": axes, "shapes": shapes} if axes else {}
    try:
        with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
            library = Path(folder) / "test.so"
            flexcomp.build(lengths.model, target, threads=1, probe=False, progress=False, **named).export_library(str(library))
            with flexcomp.load(library, budget="min") as session:
                for extents, one in reversed(lengths.tests):
                    outputs = session.run(one.inputs)
                    found = difference(one, outputs)
                    if found and not (extents != shapes[0] and _as_onnxruntime(lengths.model, one, outputs)):
                        return Verdict(Outcome.WRONG, f"{extents}: {found}")
    except FlexcompError as error:
        return Verdict(Outcome.REFUSED, str(error))
    except Exception as error:  # what users must never see: seen and counted here
        return Verdict(Outcome.CRASHED, last_line(error))
    return Verdict(Outcome.RIGHT)
