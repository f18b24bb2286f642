"""Caches that grow become caches with a capacity: as exporters write decoders, past and new rows are joined.

    present = Concat(past, rows, axis=2)      →      present = ScatterElements(past, n + 0, 1, …, rows, axis=2)

The input `past` becomes [batch, heads, capacity, width], of which the first n rows are valid, and n follows from the inputs: the
mask's sum less the new rows, or the first position. A model without such an input gets one, `cache_position`. What the model
computes of the number of past rows splits in two: extents are those of a full cache, and numbers, such as positions, follow n.
Scores of places after the new rows are hidden.

A known number that depends on the number of past rows (`dependence.py`) and differs by as much for each is a sum of it and n. A
tensor that is the beginning of a longer one is as it is for the full cache. All other operators on known values are computed
again from n. Operators that mix the places of a cache in another way are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from flexcomp.errors import InputError, UnsupportedModelError
from flexcomp.frontend.dependence import Dependence
from flexcomp.frontend.domains import DEFAULT
from flexcomp.frontend.fold import Known, known_results, read_inside
from flexcomp.frontend.quantised.writer import Writer

_EXTENTS = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0, "Tile": 1}  # operator → the input that only says extents
_VIEWS = (
    "Cast", "Concat", "Expand", "Flatten", "Gather", "GatherND", "Identity", "Reshape", "Shape", "Slice", "Squeeze", "Tile",
    "Transpose", "Unsqueeze",
)  # fmt: skip
_ELEMENTWISE = (
    "Abs", "Add", "And", "Clip", "Cos", "Div", "Equal", "Exp", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less",
    "LessOrEqual", "Max", "Min", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Sigmoid", "Sign", "Sin", "Sqrt", "Sub", "Tanh",
    "Trilu", "Where", "Xor",
)  # fmt: skip
_INTEGERS = (TensorProto.INT32, TensorProto.INT64)
_ENCODED = "encoder_"  # begins inputs about an encoder's result, which may be as long as the caches
ADDED = "cache_position"  # the input of a model that has none with places
_FEWER = (0, 1, 2)  # rows than a full cache


def fit_growing_caches(model: onnx.ModelProto, state: Mapping[str, str]) -> None:
    """Rewrite the caches among a model's states, inputs by output. Changes `model`, whose inputs have static shapes.

    Raises UnsupportedModelError or InputError, with the node, where the structure is not understood.
    """
    makers = {name: node for node in model.graph.node for name in node.output}
    inputs = {port.name: port for port in model.graph.input}
    joins: dict[str, onnx.NodeProto] = {}  # by input
    for made, read in state.items():
        if read not in inputs:
            continue
        join = makers.get(_source(made, makers, inputs[read].type.tensor_type.elem_type))
        if join is not None and join.op_type == "Concat" and _source(join.input[0], makers) == read:
            joins[read] = join
    if joins:
        _Fitter(model, inputs, makers, joins).rewrite()


def _source(name: str, makers: Mapping[str, onnx.NodeProto], kind: int = TensorProto.UNDEFINED) -> str:
    """The tensor that `name` is a copy of; of one of the type `kind`, a Cast to that is a copy, too."""
    node = makers.get(name)
    while node is not None and (
        node.op_type == "Identity"
        or (node.op_type == "Concat" and len(node.input) == 1)
        or (node.op_type == "Cast" and any(a.name == "to" and a.i == kind for a in node.attribute))
    ):
        name = node.input[0]
        node = makers.get(name)
    return name


def _named(node: onnx.NodeProto) -> str:
    return f"node {node.name or node.output[0]!r} ({node.op_type})"


def _extents(port: onnx.ValueInfoProto) -> list[int]:
    return [dim.dim_value for dim in port.type.tensor_type.shape.dim]


class _Fitter(Writer):
    def __init__(
        self, model: onnx.ModelProto, inputs: dict[str, onnx.ValueInfoProto], makers: dict[str, onnx.NodeProto],
        joins: dict[str, onnx.NodeProto],
    ) -> None:  # fmt: skip
        super().__init__(model)
        self.name = "growing_caches"
        self.model, self.inputs, self.makers, self.joins = model, inputs, makers, joins
        self.dynamic: dict[str, str] = {}  # by tensor: the one that follows n
        self.pinned: dict[str, str] = {}
        self.hidden: set[str] = set()  # weights of places, those after the new rows being 0
        first, join = next(iter(joins.items()))
        self.axis = self._axis_of(join, len(_extents(inputs[first])))
        self.capacity = _extents(inputs[first])[self.axis]
        self.rows = self._new_rows(first, join)
        self.most = self.capacity - self.rows  # past rows of a full cache
        self.indices = _of_indices(self.graph.node)
        if self.most <= max(_FEWER):
            raise InputError(
                f'state: the cache "{first}" has {self.capacity} places, of which an inference takes {self.rows}: give it more, '
                "by input_shapes"
            )
        self.known = Dependence([self._results(self.most - fewer) for fewer in _FEWER])

    # -- what is known -----------------------------------------------------------------------------

    def _axis_of(self, join: onnx.NodeProto, rank: int) -> int:
        return next(a.i for a in join.attribute if a.name == "axis") % rank

    def _new_rows(self, name: str, join: onnx.NodeProto) -> int:
        types = known_results(self.model).types
        rows = join.input[1] if len(join.input) == 2 else ""
        if rows not in types:
            raise UnsupportedModelError(f"{_named(join)} joins the cache {name!r} and rows whose number is not known")
        return types[rows][1][self.axis]

    def _results(self, past: int) -> Known:
        """What is known with so many past rows."""
        model = onnx.ModelProto.FromString(self.model.SerializeToString())
        for port in model.graph.input:
            dims = port.type.tensor_type.shape.dim
            if port.name in self.joins:
                dims[self.axis].dim_value = past
            elif port.name in self.masks:
                dims[-1].dim_value = past + self.rows
        return known_results(model, self.indices)

    @property
    def masks(self) -> list[str]:
        """Inputs with a number for each place of the caches."""
        weights = {tensor.name for tensor in self.graph.initializer}
        others = [name for name in self.inputs if name not in {*self.joins, *weights} and not name.startswith(_ENCODED)]
        return [name for name in others if len(shape := _extents(self.inputs[name])) > 1 and shape[-1] == self.capacity]

    # -- rewriting ---------------------------------------------------------------------------------

    def rewrite(self) -> None:
        self._count_valid()
        kept = read_inside(list(self.graph.node)) | {output.name for output in self.graph.output}
        joined = {join.output[0]: read for read, join in self.joins.items()}
        for node in self.graph.node:
            if node.output and node.output[0] in joined:
                self._scatter(node, joined[node.output[0]])
            elif all(self.known.values(name) is not None for name in node.output if name):
                if kept & set(node.output):
                    self.nodes.append(node)
            else:
                self._require_understood(node)
                self.nodes.append(self._changed(node, list(node.output)))
        # What is known and read as it is for a full cache.
        made = {name for node in self.nodes for name in node.output}
        for node in list(self.nodes):
            for i, name in enumerate(node.input):
                if name not in made and (values := self.known.values(name)) is not None and name in self.makers:
                    node.input[i] = self._pin(name, values[0])
        del self.graph.node[:]
        self.graph.node.extend(self.nodes)

    def _pin(self, name: str, value: np.ndarray) -> str:
        if name not in self.pinned:
            self.pinned[name] = self.constant(value)
        return self.pinned[name]

    def _count_valid(self) -> None:
        """The number of valid past rows, int64 without axes."""
        shape = self.constant(np.int64([]))
        ports = {name: (port.type.tensor_type.elem_type, _extents(port)) for name, port in self.inputs.items()}
        whole = (*_INTEGERS, TensorProto.BOOL)
        mask = next((name for name in self.masks if ports[name][0] in whole and ports[name][1] == [1, self.capacity]), None)
        counted = [n for n, (kind, one) in ports.items() if "position" in n and kind in _INTEGERS and one[-1:] == [self.rows]]
        if mask is not None:
            numbers = self.emit("Cast", [mask], to=TensorProto.INT64)
            ones = self.emit("Reshape", [numbers, self.constant(np.int64([1, self.capacity]))])
            column = self.constant(np.ones((self.capacity, 1), np.int64))
            total = self.emit("Reshape", [self.emit("MatMul", [ones, column]), shape])
            count = self.emit("Sub", [total, self.constant(np.int64(self.rows))])
        elif counted:
            numbers = self.emit("Cast", counted[:1], to=TensorProto.INT64)
            numbers = self.emit("Reshape", [numbers, self.constant(np.int64([-1]))])
            count = self.emit("Gather", [numbers, self.constant(np.int64(0))], axis=0)
        else:
            count = self.emit("Gather", [self._added_input(), self.constant(np.int64(0))], axis=0)
        # A number below 0 is the caller's mistake; indices of a scatter would be counted from the end.
        is_negative = self.emit("Less", [count, self.constant(np.int64(0))])
        self.valid = self.emit("Where", [is_negative, self.constant(np.int64(self.capacity)), count])
        column = np.arange(self.capacity, dtype=np.int64)
        end = self.emit("Add", [self.valid, self.constant(np.int64(self.rows))])
        self.seen = self.emit("Less", [self.constant(column), end])

    def _added_input(self) -> str:
        """An input for the places of new rows, as the model has none: int64[rows]."""
        if ADDED in self.inputs:
            raise UnsupportedModelError(f"the input {ADDED!r} is not int64[{self.rows}], the places of new rows: rename it")
        self.graph.input.append(helper.make_tensor_value_info(ADDED, TensorProto.INT64, [self.rows]))
        return ADDED

    def _scatter(self, node: onnx.NodeProto, past: str) -> None:
        """New rows after the valid ones."""
        shape, rank = self.known.shapes(node.input[1]), len(_extents(self.inputs[past]))
        if shape is None or self._axis_of(node, rank) != self.axis or _extents(self.inputs[past])[self.axis] != self.capacity:
            raise UnsupportedModelError(f"{_named(node)}: the cache {past!r} grows otherwise than the first one")
        steps = np.arange(self.rows, dtype=np.int64).reshape([self.rows if i == self.axis else 1 for i in range(rank)])
        start = self.emit("Reshape", [self.valid, self.constant(np.ones(rank, np.int64))])
        indices = self.emit("Add", [start, self.constant(steps)])
        indices = self.emit("Expand", [indices, self.constant(np.int64(shape[0]))])
        made = helper.make_node("ScatterElements", [past, indices, node.input[1]], [node.output[0]], node.name, axis=self.axis)
        self.nodes.append(made)

    def _changed(self, node: onnx.NodeProto, outputs: list[str]) -> onnx.NodeProto:
        """The node on inputs that follow n, or are those of a full cache."""
        if node.op_type in ("Slice", "Gather", "Range", "ScatterND") and node.domain in DEFAULT:
            made = getattr(self, f"_{node.op_type.lower()}")(node, outputs)
            if made is not None:
                return made
        changed = onnx.NodeProto.FromString(node.SerializeToString())
        for i, name in enumerate(node.input):
            if self.known.depends(name):
                says_extents = _EXTENTS.get(node.op_type) == i
                changed.input[i] = self._pin(name, self.known.values(name)[0]) if says_extents else self._following(name)
        if node.op_type == "Softmax" and self.known.growing(node.input[0]):
            changed.input[0] = self._hidden(changed.input[0], self.known.type_of(node.input[0]))
            self.hidden.update(node.output)
        elif node.op_type in (*_VIEWS, *_ELEMENTWISE) and self.hidden & set(node.input):
            self.hidden.update(node.output)
        del changed.output[:]
        changed.output.extend(outputs)
        return changed

    def _hidden(self, scores: str, kind: int) -> str:
        hidden = np.asarray(-np.inf, helper.tensor_dtype_to_np_dtype(kind))
        return self.emit("Where", [self.seen, scores, self.constant(hidden)])

    def _following(self, name: str) -> str:
        """A known tensor, as it is for n valid rows."""
        if name not in self.dynamic:
            self.dynamic[name] = self._made_following(name)
        return self.dynamic[name]

    def _made_following(self, name: str) -> str:
        most, fewer, least = self.known.values(name)
        if most.dtype.kind == "i" and most.shape == fewer.shape == least.shape:
            each = most.astype(np.int64) - fewer
            if np.array_equal(each, fewer.astype(np.int64) - least):
                return self._sum(most - each * self.most, each, most.dtype)
        node = self.makers[name]
        if node.domain not in DEFAULT:
            raise self._refuse(node)
        outputs = [f"growing_caches/{one}" for one in node.output]
        made = self._changed(node, outputs)
        self.nodes.append(made)
        self.dynamic.update(zip(node.output, outputs, strict=True))
        return self.dynamic[name]

    def _sum(self, numbers: np.ndarray, each: np.ndarray, kind: np.dtype) -> str:
        """numbers + each · n"""
        count = self.valid if (each == 1).all() else self.emit("Mul", [self.constant(each.astype(np.int64)), self.valid])
        total = self.emit("Add", [self.constant(numbers.astype(np.int64)), count])
        return total if kind == np.int64 else self.emit("Cast", [total], to=helper.np_dtype_to_tensor_dtype(kind))

    # -- operators that choose places --------------------------------------------------------------

    def _range(self, node: onnx.NodeProto, outputs: list[str]) -> onnx.NodeProto | None:
        shape, values = self.known.shapes(node.output[0]), self.known.values(node.input[0])
        if not self.known.depends(node.input[0]):
            return None
        if shape is None or len(set(shape)) > 1 or self.known.values(node.input[2]) is None:
            raise self._refuse(node)
        steps = np.arange(shape[0][0], dtype=values[0].dtype) * self.known.values(node.input[2])[0]
        return helper.make_node("Add", [self._following(node.input[0]), self.constant(steps)], outputs, node.name)

    def _gather(self, node: onnx.NodeProto, outputs: list[str]) -> onnx.NodeProto | None:
        """Places that are counted from the end of the cache."""
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        places, growing = self.known.values(node.input[1]), self.known.growing(node.input[0])
        if not growing or axis % len(self.known.shapes(node.input[0])[0]) not in growing:
            return None
        if places is None or not (places[0] < 0).any():
            return None
        extents = [shape[axis] for shape in self.known.shapes(node.input[0])]
        at = [np.where(one < 0, one + extent, one).astype(np.int64) for one, extent in zip(places, extents, strict=True)]
        each = at[0] - at[1]
        return helper.make_node("Gather", [self._operand(node, 0), self._sum(at[0] - each * self.most, each, np.dtype(np.int64))],
                                outputs, node.name, axis=axis)  # fmt: skip

    def _operand(self, node: onnx.NodeProto, i: int) -> str:
        return self._following(node.input[i]) if self.known.depends(node.input[i]) else node.input[i]

    def _slice(self, node: onnx.NodeProto, outputs: list[str]) -> onnx.NodeProto | None:
        """Ranges that begin after the past rows, or are counted from the end of the cache."""
        if not any(self.known.depends(name) for name in node.input[1:]) and not self.known.growing(node.input[0]):
            return None
        shapes, given = self.known.shapes(node.input[0]), [self.known.values(name) for name in node.input[1:]]
        if shapes is None or None in given:
            raise self._refuse(node)
        cuts = [_cuts([value[number] for value in given], shape) for number, shape in enumerate(shapes)]
        data = self._operand(node, 0)
        kept: list[tuple[int, int, int, int]] = []
        for (axis, start, end, step), (_, begin, stop, _) in zip(cuts[0], cuts[1], strict=True):
            if start == begin:
                kept.append((axis, start, end, step))
                continue
            if step != 1 or start - begin != 1 or end - start != stop - begin:
                raise self._refuse(node)
            steps = self.constant(np.arange(end - start, dtype=np.int64) + (start - self.most))
            data = self.emit("Gather", [data, self.emit("Add", [steps, self.valid])], axis=axis)
        columns = [self.constant(np.int64(column)) for column in zip(*kept, strict=True)]
        if not kept:
            return helper.make_node("Identity", [data], outputs, node.name)
        axes, starts, ends, every = columns
        return helper.make_node("Slice", [data, starts, ends, axes, every], outputs, node.name)

    def _scatternd(self, node: onnx.NodeProto, outputs: list[str]) -> onnx.NodeProto | None:
        """A write of all places is what it writes."""
        if not self._writes_all(node):
            return None
        if node.input[2] in self.hidden:
            self.hidden.update(node.output)
        return helper.make_node("Identity", [self._operand(node, 2)], outputs, node.name)

    def _writes_all(self, node: onnx.NodeProto) -> bool:
        """Whether a ScatterND writes each place of its data, in order, however many there are."""
        shapes, indices = self.known.shapes(node.input[0]), self.known.values(node.input[1])
        if shapes is None or indices is None or any(a.name == "reduction" and a.s != b"none" for a in node.attribute):
            return False
        grids = (np.moveaxis(np.indices(s[: given.shape[-1]]), 0, -1) for s, given in zip(shapes, indices, strict=True))
        return all(map(np.array_equal, indices, grids))

    # -- what is not understood --------------------------------------------------------------------

    def _require_understood(self, node: onnx.NodeProto) -> None:
        """UnsupportedModelError for an operator that mixes places of a cache, the valid ones and the others."""
        inside = read_inside([node])
        if any(self.known.growing(name) or self.known.depends(name) or name in self.joins for name in inside):
            raise self._refuse(node)
        growing = [name for name in node.input if name and self.known.growing(name)]
        if not growing:
            return
        if node.domain not in DEFAULT or not self._keeps_places(node, growing[0]):
            raise self._refuse(node)

    def _keeps_places(self, node: onnx.NodeProto, first: str) -> bool:
        """Whether an operator with a growing input computes places apart, or has those of no use hidden."""
        kind, axes = node.op_type, self.known.growing(first)
        rank = len(self.known.shapes(first)[0])
        axis = next((a.i for a in node.attribute if a.name == "axis"), -1) % rank
        if kind == "MatMul":  # places of the right operand may be those of the result
            left = self.known.shapes(node.input[0])
            mixes = left is None or len(left[0]) - 1 in self.known.growing(node.input[0])
            return not mixes or node.input[0] in self.hidden
        if kind == "Softmax":
            return axes == [axis] == [rank - 1]
        if kind == "ReduceSum":
            return first in self.masks
        if kind == "ScatterND":
            return self._writes_all(node)
        return kind in (*_VIEWS, *_ELEMENTWISE, "CumSum") and not (kind == "Concat" and len(node.input) > 1 and axis in axes)

    def _refuse(self, node: onnx.NodeProto) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{_named(node)} reads a cache that grows, in a way that is not understood for one with a capacity: export the model "
            "with caches of a fixed capacity, or leave state out"
        )


def _of_indices(nodes: Sequence[onnx.NodeProto]) -> set[str]:
    """Tensors that only indices of a ScatterND are made of."""
    readers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
    for node in nodes:
        for i, name in enumerate(node.input):
            readers.setdefault(name, []).append((node, i))
    found: set[str] = set()
    for node in reversed(nodes):
        read = [reader for name in node.output for reader in readers.get(name, ())]
        if read and all((one.op_type == "ScatterND" and i == 1) or found & {*one.output} for one, i in read):
            found.update(node.output)
    return found


def _cuts(given: Sequence[np.ndarray], shape: tuple[int, ...]) -> list[tuple[int, int, int, int]]:
    """(axis, start, end, step) of Slice's inputs, ends not negative."""
    starts, ends, *others = (one.reshape(-1).tolist() for one in given)
    axes = others[0] if others else list(range(len(starts)))
    steps = others[1] if len(others) > 1 else [1] * len(starts)
    result = []
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        begin, stop, _ = slice(start, end, step).indices(shape[axis])
        result.append((axis % len(shape), begin, stop, step))
    return result
