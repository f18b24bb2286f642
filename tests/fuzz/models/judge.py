"""What becomes of graphs: each is drawn, asked of the oracle, imported, built together with others, run and compared."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

import flexcomp
from flexcomp.errors import FlexcompError
from flexcomp.frontend import Imported, load_model
from tests import joint
from tests.fuzz.models import oracle
from tests.fuzz.models.draw import OPSETS, draw
from tests.fuzz.models.mutate import all_cases, mutate

TOGETHER = 32  # graphs in one build
_MUTATED = 0.55  # of the graphs
GOOD = ("right", "refused", "refused though valid", "built without an oracle", "disputed")
BAD = ("wrong", "crashed")
# NonMaxSuppression gives as many rows as there can be. The scale of zeros is 1 for ONNX Runtime, 0 by ONNX's definition.
# Numbers that are drawn differ. A logarithm of a negative number is no integer, NaN no index.
# Windows that lie in padding, and transposed convolutions of three axes with an output shape, are wrong in ONNX's reference.
# And sequences of length 0 that are reversed, one pixel by pytorch_half_pixel, and axes that Unsqueeze counts from the end.
# A mask of Attention with one column is broadcast by ONNX's definition; its reference fills up the other columns with -inf.
_ONLY_BY_ONNXRUNTIME = ("MaxPool", "AveragePool", "LpPool", "ConvTranspose", "ReverseSequence", "Unsqueeze")
_DOCUMENTED = ("NonMaxSuppression", "DynamicQuantizeLinear", "Dropout", "ReduceLogSum", "OneHot")

_ARITHMETIC = ("Add", "CumSum", "Div", "Einsum", "Gemm", "MatMul", "Mean", "Mod", "Mul", "Pow", "Range", "Sub", "Sum")


@dataclass(frozen=True)
class Subject:
    """A graph with its number."""

    index: int
    model: onnx.ModelProto
    inputs: dict[str, np.ndarray]


@dataclass(frozen=True)
class Verdict:
    """What became of a graph."""

    index: int
    outcome: str
    reason: str = ""


@dataclass(frozen=True)
class Candidate:
    """A graph that was imported, and its results, if an oracle knows them."""

    subject: Subject
    truth: oracle.Truth | None
    imported: Imported


Note = Callable[[Sequence[int], str], None]  # numbers of graphs, and what is done with them from now on


def subject(seed: int, index: int, kept: Path) -> Subject:
    """The graph of this number."""
    rng = random.Random(seed * 1_000_003 + index)
    if rng.random() < _MUTATED:
        model, inputs = mutate(rng, rng.choice(all_cases_once(kept)))
        return Subject(index, model, inputs)
    # Graphs that are drawn in a row are of one opset: they can be built together.
    graph = draw(rng, random.Random(seed * 7919 + index // 64).choice(OPSETS))
    return Subject(index, graph.model(), graph.inputs)


_kept_cases: list = []


def all_cases_once(kept: Path) -> tuple:
    """ONNX's node tests, read once in a process."""
    if not _kept_cases:
        _kept_cases.append(all_cases(kept))
    return _kept_cases[0]


def judge(seed: int, indices: Sequence[int], kept: Path, note: Note, alone: bool = False) -> Iterator[Verdict]:
    """Verdicts on graphs, in any order. With `alone` every graph is built for itself."""
    candidates: list[Candidate] = []
    for index in indices:
        note([index], "draw")
        each = subject(seed, index, kept)
        note([index], "oracle")
        truth = _truth(each)
        note([index], "import")
        found: list[Imported] = []
        refusal = _attempt(lambda found=found, each=each: found.append(load_model(each.model)))
        if refusal is None:
            candidates.append(Candidate(each, truth, found[0]))
        else:
            yield _refused(each, truth, refusal)
    for known in (True, False):
        group = [each for each in candidates if (each.truth is not None) is known]
        for start in range(0, len(group), 1 if alone else TOGETHER):
            yield from build(group[start : start + (1 if alone else TOGETHER)], note)


def _truth(each: Subject) -> oracle.Truth | None:
    found = oracle.by_onnxruntime(each.model.SerializeToString(), each.inputs)
    if found is not None:
        return oracle.Truth("onnxruntime", found)
    found = oracle.by_reference(each.model, each.inputs)
    return oracle.Truth("reference", found) if found is not None else None


@dataclass(frozen=True)
class _Refusal:
    ours: bool
    words: str


def _attempt(action: Callable[[], object]) -> _Refusal | None:
    try:
        action()
    except FlexcompError as error:
        return _Refusal(True, f"{type(error).__name__}: {error}")
    except MemoryError:
        return _Refusal(True, "MemoryError")  # beyond the limit of the fuzzer's processes
    except Exception as error:  # what users must never see: seen and counted here
        place = traceback.extract_tb(error.__traceback__)
        own = [f for f in place if "/site-packages/" not in f.filename] or place
        lines = [line for line in str(error).splitlines() if line.strip()] or [""]
        at = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
        return _Refusal(False, f"{type(error).__name__} at {at}: {lines[-1].strip()[:300]}")
    return None


def _refused(each: Subject, truth: oracle.Truth | None, refusal: _Refusal) -> Verdict:
    if not refusal.ours:
        return Verdict(each.index, "crashed", refusal.words)
    return Verdict(each.index, "refused" if truth is None else "refused though valid", refusal.words)


def build(group: list[Candidate], note: Note) -> Iterator[Verdict]:
    """Build a group as one; where that fails, its halves."""
    indices = [each.subject.index for each in group]
    note(indices, "build")
    built: list = []
    refusal = _attempt(lambda: built.append(_built(group)))
    if refusal is not None and len(group) > 1:
        middle = len(group) // 2
        yield from build(group[:middle], note)
        yield from build(group[middle:], note)
        return
    if refusal is not None:
        yield _refused(group[0].subject, group[0].truth, refusal)
        return
    marked = [(joint.mark(i), each) for i, each in enumerate(group)]
    inputs = {mark + name: value for mark, each in marked for name, value in each.subject.inputs.items()}
    found: dict[str, dict] = {}

    def run() -> None:
        with built[0].session("all") as session:
            found["all"] = session.run(inputs)
            session.set_budget("min")
            found["min"] = session.run(inputs)

    note(indices, "run")
    refusal = _attempt(run)
    if refusal is not None and len(group) > 1:
        for one in group:
            yield from build([one], note)
        return
    for mark, each in marked:
        if refusal is not None:
            of_values = refusal.ours and (each.truth is None or "is outside of" in refusal.words)  # an index that is an input
            outcome = "built without an oracle" if of_values else "wrong" if refusal.ours else "crashed"
            yield Verdict(each.subject.index, outcome, refusal.words)
        elif each.truth is None:
            yield Verdict(each.subject.index, "built without an oracle")
        else:
            outputs = {budget: {n: all_of[mark + n] for n in each.truth.outputs} for budget, all_of in found.items()}
            yield _compare(each.subject, each.truth, outputs)


def _built(group: list[Candidate]) -> flexcomp.Artifact:
    """What a user's build makes of the group, which is imported already."""
    kernels = "auto" if group[0].subject.index % 3 == 0 else "smallest"
    return joint.build([each.imported for each in group], group[0].subject.model, kernels=kernels)


def _compare(each: Subject, truth: oracle.Truth, found: dict[str, oracle.Outputs]) -> Verdict:
    for budget, outputs in found.items():
        words = oracle.difference(truth.outputs, outputs)
        if not words:
            continue
        if any(node.op_type in _DOCUMENTED for node in each.model.graph.node):
            return Verdict(each.index, "disputed", f"of an operator that may differ: {words}")
        if truth.by == "reference" and any(_departs(node, each) for node in each.model.graph.node):
            return Verdict(each.index, "disputed", f"of ONNX's reference alone, which departs: {words}")
        if _as_inferred(each, truth, outputs):
            return Verdict(each.index, "disputed", f"we have the types of ONNX's inference, {truth.by} has others: {words}")
        if _is_undefined(truth, outputs) or _overflows(each):
            return Verdict(each.index, "disputed", f"of integers that overflow, or of no number as an integer: {words}")
        if truth.by == "onnxruntime":
            other = oracle.by_reference(each.model, each.inputs)
            if other is not None and other.keys() == outputs.keys() and not oracle.difference(other, outputs):
                return Verdict(each.index, "disputed", f"ONNX's reference agrees with us, ONNX Runtime does not: {words}")
        if _is_sensitive(each, truth, outputs):
            return Verdict(each.index, "disputed", f"small changes of the inputs change that much: {words}")
        return Verdict(each.index, "wrong", f"{truth.by}, budget {budget}: {words}")
    return Verdict(each.index, "right")


def _departs(node: onnx.NodeProto, each: Subject) -> bool:
    """Whether ONNX's reference may be wrong."""
    if node.op_type == "Attention" and len(node.input) > 3:
        given = {t.name: tuple(t.dims) for t in each.model.graph.initializer} | {n: v.shape for n, v in each.inputs.items()}
        return given.get(node.input[3], (1,))[-1:] == (1,)
    one_pixel = any(a.s == b"pytorch_half_pixel" for a in node.attribute if a.name == "coordinate_transformation_mode")
    return node.op_type in _ONLY_BY_ONNXRUNTIME or one_pixel


def _as_inferred(each: Subject, truth: oracle.Truth, outputs: oracle.Outputs) -> bool:
    """Whether results have other types than the oracle's, and those of ONNX's inference where that knows them."""
    ours = {name: (np.shape(outputs[name]), np.asarray(outputs[name]).dtype) for name in truth.outputs}
    if all(ours[name] == (want.shape, want.dtype) for name, want in truth.outputs.items()):
        return False
    try:
        graph = onnx.shape_inference.infer_shapes(each.model, data_prop=True).graph
    except (RuntimeError, ValueError, onnx.shape_inference.InferenceError):
        return False
    for output in graph.output:
        tensor, (found, kind) = output.type.tensor_type, ours[output.name]
        if onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type) != kind:
            return False
        if not tensor.HasField("shape"):
            return truth.by == "reference"
        if len(tensor.shape.dim) != len(found):
            return False
        for dim, extent in zip(tensor.shape.dim, found, strict=True):
            if dim.HasField("dim_value") and dim.dim_value != extent:
                return False
    return True


def _is_undefined(truth: oracle.Truth, outputs: oracle.Outputs) -> bool:
    """Whether integers differ only where one is the largest or smallest there is: no number, and overflows, become that."""
    for name, want in truth.outputs.items():
        got = np.asarray(outputs[name])
        if want.shape != got.shape or (want.dtype.kind not in "iu" and (want != got).any()):
            return False
        if want.dtype.kind in "iu":
            bounds, differ = np.iinfo(want.dtype), want != got
            if not all(np.isin(want[differ], (bounds.min, bounds.max)) | np.isin(got[differ], (bounds.min, bounds.max))):
                return False
    return True


def _overflows(each: Subject) -> bool:
    """Whether it computes with integers that float64 does not hold, as which oracles take them in some operators."""
    graph = each.model.graph
    if not any(node.op_type in _ARITHMETIC or node.op_type.startswith("Reduce") for node in graph.node):
        return False
    given = [*each.inputs.values(), *map(onnx.numpy_helper.to_array, graph.initializer)]
    return any(np.abs(array.astype("f8")).max(initial=0) > 2**53 for array in given if array.dtype.name in ("int64", "uint64"))


def _is_sensitive(each: Subject, truth: oracle.Truth, outputs: oracle.Outputs) -> bool:
    """Whether inputs that differ in their last bits give results that differ as much as ours do, element by element."""
    if any(np.shape(outputs[name]) != want.shape for name, want in truth.outputs.items()):
        return False
    spread = {}
    for by in (1e-6, -1e-6, 3e-6, -3e-6):
        moved = oracle.moved(each.inputs, by)
        again = oracle.by_onnxruntime(each.model.SerializeToString(), moved) if truth.by == "onnxruntime" else None
        again = again or oracle.by_reference(each.model, moved)
        if again is None:
            return False
        for name, value in again.items():
            if value.shape != truth.outputs[name].shape or value.dtype.kind not in "fiu":
                return False
            with np.errstate(all="ignore"):
                off = np.abs(value.astype("f8") - truth.outputs[name].astype("f8"))
            spread[name] = np.maximum(spread.get(name, 0), np.nan_to_num(off, nan=np.inf))
    for name, want in truth.outputs.items():
        with np.errstate(all="ignore"):
            ours = np.abs(np.asarray(outputs[name]).astype("f8") - want.astype("f8"))
            wrong = ours > 10 * spread[name] + 1e-3 * np.abs(want.astype("f8")) + 1e-6
            wrong &= ~(np.isnan(ours) & np.isinf(spread[name]))
        if wrong.any():
            return False
    return True
