"""Writes into caches are recognised in the forms that exporters have for them: rows scattered to an index and those behind it.

    ScatterElements(cache, start + 0, 1, …, rows, axis=a)                  →  TensorScatter(cache, rows, start, axis=a)
    ScatterND(cache, (every i, every j, start + 0, 1, …), rows)            →  TensorScatter(cache, rows, start, axis=2)
    Transpose(ScatterND(Transpose(cache), start + 0, 1, …, rows))          →  TensorScatter(cache, Transpose(rows), start, axis=a)

One row is written to whatever index there is. With several, indices must be seen to follow each other: sums of one number and of
a constant that counts (`counting.py`). Where the cache is a state they are written in place, and nothing is copied. Indices from
the end are counted from the start; several rows that begin at the end of a cache and go on at its start are an InputError.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from flexcomp.frontend.counting import Count, Counting
from flexcomp.frontend.domains import DEFAULT


def recognise_cache_writes(model: onnx.ModelProto) -> None:
    """Replace such scatters of the outermost graph. Changes `model`, whose shapes are inferred."""
    if any(node.domain in DEFAULT and node.op_type in ("ScatterElements", "ScatterND") for node in model.graph.node):
        _Recogniser(model).rewrite()


class _Recogniser(Counting):
    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model)
        self.read = [name for node in self.graph.node for name in node.input] + [output.name for output in self.graph.output]
        self.starts: dict[tuple, str] = {}  # where rows begin, by what that is made of

    def rewrite(self) -> None:
        replaced: set[str] = set()  # results of nodes that are gone, and of those that may be, if nothing else reads them
        for node in self.graph.node:
            rule = _RULES.get(node.op_type) if node.domain in DEFAULT else None
            unneeded = rule(self, node) if rule is not None else None
            if unneeded is None:
                self.nodes.append(node)
            else:
                replaced.update(unneeded)
        for _ in range(2):  # a Transpose is read by the ScatterND that goes first
            read = {name for node in self.nodes for name in node.input} | {output.name for output in self.graph.output}
            self.nodes = [node for node in self.nodes if not replaced & set(node.output) or read & set(node.output)]
        del self.graph.node[:]
        self.graph.node.extend(self.nodes)

    # Forms of writes. Each writes what takes a node's place, and gives the results that nothing may read any more; or None.

    def elements(self, node: onnx.NodeProto) -> list[str] | None:
        data, indices, updates = node.input[:3]
        if not _is_plain(node) or not {data, updates} <= self.types.keys():
            return None
        shape = self.types[data][1]
        if not shape:
            return None
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0) % len(shape)
        count = self.count(indices)
        if count is None or any(n != m for i, (n, m) in enumerate(zip(count.shape, shape, strict=True)) if i != axis):
            return None
        if not axis or not count.follows(axis) or self.types[updates][1] != count.shape:
            return None
        self.write(node, data, updates, count, axis, node.output[0])
        return []

    def tuples(self, node: onnx.NodeProto) -> list[str] | None:
        data, indices, updates = node.input[:3]
        if not _is_plain(node) or not {data, indices, updates} <= self.types.keys():
            return None
        shape, (*grid, each) = self.types[data][1], self.types[indices][1]
        maker = self.makers.get(indices)
        if maker is None or maker.op_type != "Concat" or not len(maker.input) == len(grid) == each:
            return None
        counts = [self.count(name) for name in maker.input]
        if any(one is None or one.shape != (*grid, 1) for one in counts):
            return None
        others = [axis for axis, (one, whole) in enumerate(zip(counts, shape, strict=False)) if not one.is_every(axis, whole)]
        if len(others) != 1 or not others[0] or not counts[others[0]].follows(others[0]):
            return None
        self.write(node, data, updates, counts[others[0]], others[0], node.output[0])
        return []

    def transposed(self, node: onnx.NodeProto) -> list[str] | None:
        """Rows along the first axis, which is another one before and behind."""
        scatter = self.makers.get(node.input[0])
        if scatter is None or scatter.op_type != "ScatterND" or not _is_plain(scatter) or self.read.count(node.input[0]) != 1:
            return None
        before = self.makers.get(scatter.input[0])
        if before is None or before.op_type != "Transpose" or not set(scatter.input) <= self.types.keys():
            return None
        order, back = _order(before), _order(node)
        indices = self.types[scatter.input[1]][1]
        count = self.count(scatter.input[1])
        if count is None or len(indices) != 2 or indices[1] != 1 or not count.follows(0):
            return None
        if before.input[0] not in self.types or not order or not order[0] or back != [order.index(i) for i in range(len(order))]:
            return None
        self.name = scatter.name or scatter.output[0]
        rows = self.emit("Transpose", [scatter.input[2]], perm=back)
        self.write(scatter, before.input[0], rows, count, order[0], node.output[0])
        return [node.input[0], scatter.input[0]]

    def write(self, node: onnx.NodeProto, data: str, rows: str, count: Count, axis: int, out: str) -> None:
        """A TensorScatter in the place of `node`."""
        self.name = node.name or node.output[0]
        shape = self.types[data][1]
        key = (count.start, count.offset, shape[0], shape[axis])
        if key not in self.starts:
            self.starts[key] = self._start(count, shape[0], shape[axis])
        self.nodes.append(helper.make_node("TensorScatter", [data, rows, self.starts[key]], [out], node.name, axis=axis))

    def _start(self, count: Count, batch: int, extent: int) -> str:
        """int64[batch]: the first index, counted from the start."""
        if not count.start:
            return self.constant(np.full(batch, count.offset + (extent if count.offset < 0 else 0), np.int64))
        start = self.emit("Reshape", [count.start, self.constant(np.int64([1]))])
        start = self.emit("Cast", [start], to=TensorProto.INT64)
        if count.offset:
            start = self.emit("Add", [start, self.constant(np.int64([count.offset]))])
        is_negative = self.emit("Less", [start, self.constant(np.int64([0]))])
        start = self.emit("Where", [is_negative, self.emit("Add", [start, self.constant(np.int64([extent]))]), start])
        return start if batch == 1 else self.emit("Expand", [start, self.constant(np.int64([batch]))])


def _is_plain(node: onnx.NodeProto) -> bool:
    """Whether a scatter writes, and neither adds nor compares."""
    return all(a.s == b"none" for a in node.attribute if a.name == "reduction")


def _order(node: onnx.NodeProto) -> list[int]:
    return next((list(a.ints) for a in node.attribute if a.name == "perm"), [])


_RULES = {
    "ScatterElements": _Recogniser.elements, "ScatterND": _Recogniser.tuples, "Transpose": _Recogniser.transposed,
}  # fmt: skip
