"""The outputs that a graph should have: ONNX Runtime's, else those of ONNX's reference implementation; and the comparison."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from tests.fuzz.models.values import narrow

# Relative tolerance of a float, and of 1 where values are smaller than the largest.
_TOLERANCES = {"float64": 1e-4, "float32": 1e-3, "float16": 1e-2, "bfloat16": 6e-2}
_OFTEN = 0.02  # of a result: more elements than this differ for more reasons than rounding
_OLD_SOFTMAX = ("Hardmax", "LogSoftmax", "Softmax")

Outputs = dict[str, np.ndarray]
ALL = ("onnxruntime", "reference")


@dataclass(frozen=True)
class Truth:
    """What is known of a graph."""

    by: str  # one of ALL
    outputs: Outputs


def ask(by: str, model: onnx.ModelProto, inputs: Outputs) -> Truth | None:
    """Of one of ALL; None where it refuses the graph."""
    found = by_onnxruntime(model.SerializeToString(), inputs) if by == "onnxruntime" else by_reference(model, inputs)
    return None if found is None else Truth(by, found)


def by_onnxruntime(model: bytes, inputs: Outputs) -> Outputs | None:
    """None where it refuses the graph."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if any(narrow(array) for array in inputs.values()):
        return None
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        names = [o.name for o in session.get_outputs()]
        found = session.run(None, inputs)
    except Exception:
        return None
    return _as_arrays(names, found)


def by_reference(model: onnx.ModelProto, inputs: Outputs) -> Outputs | None:
    """None where it refuses the graph."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = ReferenceEvaluator(_flattened(model), new_ops=[GlobalMaxPool]).run(None, inputs)
    except Exception:
        return None
    return _as_arrays([o.name for o in model.graph.output], found)


class GlobalMaxPool(OpRun):
    """ONNX's own takes the largest of two axes, however many there are."""

    op_domain = ""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


def _flattened(model: onnx.ModelProto) -> onnx.ModelProto:
    """With a Softmax before opset 13 as one of a matrix: all axes from its own on are one, unlike in ONNX's reference."""
    opset = max((o.version for o in model.opset_import if o.domain == ""), default=1)
    old = [node for node in model.graph.node if node.op_type in _OLD_SOFTMAX]
    if not old or not 5 <= opset < 13:
        return model
    model = onnx.ModelProto.FromString(model.SerializeToString())
    nodes = []
    for node in list(model.graph.node):
        if node.op_type not in _OLD_SOFTMAX:
            nodes.append(node)
            continue
        axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
        (x,), (y,) = node.input, node.output
        nodes += [
            helper.make_node("Shape", [x], [f"{y}/shape"]),
            helper.make_node("Flatten", [x], [f"{y}/rows"], axis=axis),
            helper.make_node(node.op_type, [f"{y}/rows"], [f"{y}/of rows"], axis=1),
            helper.make_node("Reshape", [f"{y}/of rows", f"{y}/shape"], [y]),
        ]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def _as_arrays(names: list[str], found: list) -> Outputs | None:
    arrays = {}
    for name, value in zip(names, found, strict=True):
        if not isinstance(value, np.ndarray | np.generic | int | float | bool):
            return None
        arrays[name] = np.asarray(value)
        if arrays[name].dtype.kind in "OUS":
            return None
    return arrays


def difference(want: Outputs, got: Outputs) -> str:
    """Where outputs differ; empty if they agree as far as rounding allows."""
    for name, expected in want.items():
        found = np.asarray(got[name])
        if found.shape != expected.shape or found.dtype != expected.dtype:
            return f"{name} is {found.dtype}{list(found.shape)} instead of {expected.dtype}{list(expected.shape)}"
        same = agreement(expected, found)
        if not same.all():
            at = tuple(int(i) for i in np.argwhere(~same)[0])
            return f"{name}{list(at)} is {found[at]} instead of {expected[at]} ({np.count_nonzero(~same)} of {same.size} differ)"
    return ""


def agreement(want: np.ndarray, got: np.ndarray) -> np.ndarray:
    """Where arrays of one shape agree, as far as rounding allows."""
    if want.dtype.kind in "biu" or want.dtype in (ml_dtypes.int4, ml_dtypes.uint4):
        return want == got
    tolerance = _TOLERANCES.get(want.dtype.name, 1e-1)
    wide, found = want.astype("f8"), got.astype("f8")
    largest = np.max(np.abs(wide), initial=0.0, where=np.isfinite(wide))
    with np.errstate(all="ignore"):
        close = np.abs(wide - found) <= tolerance * np.abs(wide) + tolerance * min(largest, 1.0) * 0.1 + 1e-37
        overflown = (np.abs(wide) > 3e38) & (np.abs(found) > 3e38) & (np.sign(wide) == np.sign(found))
    return close & np.isfinite(wide) | (wide == found) | (np.isnan(wide) & np.isnan(found)) | overflown


def moved(inputs: Outputs, by: float) -> Outputs:
    """Inputs that are a little larger."""
    return {n: (v * v.dtype.type(1 + by)).astype(v.dtype) if v.dtype.kind == "f" else v for n, v in inputs.items()}


def scattered(inputs: Outputs, by: float, seed: int) -> Outputs:
    """Inputs of which each element is a little larger or smaller: what sums leave of numbers that cancel has either sign then."""
    rng = np.random.default_rng(seed)
    factors = {name: 1 + by * rng.choice([-1.0, 1.0], value.shape) for name, value in inputs.items()}
    return {n: (v * factors[n]).astype(v.dtype) if v.dtype.kind == "f" else v for n, v in inputs.items()}
