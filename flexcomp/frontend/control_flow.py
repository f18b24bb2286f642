"""Writes out control flow whose course is known before an inference: If, Loop and Scan become the nodes that would run.

    Scan(h, x; body), x: (3, 4)                   →  body(h, x[0]), body(h₁, x[1]), body(h₂, x[2]), Concat
    Loop(3, true, v; body), which never breaks    →  body(0, v), body(1, v₁), body(2, v₂)
    Loop(, true, v; body), until i = 1            →  body(0, v), body(1, v₁)
    If(true; a, b)                                →  a
    If(c; a, b), c known in an inference only     →  Where(c, a, b), if both results have the same shapes
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from flexcomp.errors import ModelError
from flexcomp.frontend.allowance import Allowance, count_nodes
from flexcomp.frontend.choices import Choice
from flexcomp.frontend.domains import DEFAULT
from flexcomp.frontend.fold import LARGEST, result_of
from flexcomp.frontend.inference import StaticType, infer, static_types

_SCANS_WITHOUT_BATCHES = 9  # opset from which on they have none
_ENDLESS = 2**62  # iterations of a loop that only its condition ends


def write_out(model: onnx.ModelProto, allowance: Allowance, choices: list[Choice] | None = None) -> bool:
    """Write out control flow of the outermost graph whose course is known. Returns whether there was any. Changes `model`.

    With `choices`, to which they are added, the first If of any other condition becomes both of its branches.

    Raises UnsupportedModelError for control flow that would become larger than the allowance.
    """
    if not any(node.domain in DEFAULT and node.op_type in _WRITERS for node in model.graph.node):
        return False
    writer = _Writer(model, allowance, choices)
    nodes = [written for node in model.graph.node for written in writer.write(node)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(writer.constants)
    return writer.changed


class _Writer:
    def __init__(self, model: onnx.ModelProto, allowance: Allowance, choices: list[Choice] | None) -> None:
        self.model, self.allowance, self.choices = model, allowance, choices
        self.opset = next(o.version for o in model.opset_import if o.domain in DEFAULT)
        self.weights = {tensor.name: tensor for tensor in model.graph.initializer}
        self.types: Mapping[str, StaticType] = static_types(infer(model))
        self.constants: list[onnx.TensorProto] = []
        self.changed = False

    def write(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """The nodes that run in place of a node; the node itself if its course is unknown."""
        if node.domain not in DEFAULT or node.op_type not in _WRITERS:
            return [node]
        written = _WRITERS[node.op_type](self, node, {a.name: helper.get_attribute_value(a) for a in node.attribute})
        self.changed |= written is not None
        return [node] if written is None else written

    def _if(self, node: onnx.NodeProto, attributes: dict) -> list[onnx.NodeProto] | None:
        condition = self._number(node, 0, "its condition")
        if condition is None:
            return self._both(node, attributes) if self.choices is not None and not self.changed else None
        branch = attributes["then_branch" if condition.item() else "else_branch"]
        self._take(node, "a branch", 1, branch)
        nodes, results = self._copy(branch, [], _label(node))
        return nodes + [_identity(name, out) for name, out in zip(results, node.output, strict=True) if out]

    def _both(self, node: onnx.NodeProto, attributes: dict) -> list[onnx.NodeProto] | None:
        """Both branches, and a choice of each result; None where shapes of results differ, or are not known."""
        branches = [attributes["then_branch"], attributes["else_branch"]]
        named = [(f"{_label(node)}/{way}", branch) for way, branch in zip(("then", "else"), branches, strict=True)]
        before = len(self.constants)
        copies = [self._copy(branch, [], label) for label, branch in named]
        nodes = [one for copied, _ in copies for one in copied]
        kinds = self._types_with(nodes)
        pairs = list(zip(*(results for _, results in copies), strict=True))
        if node.input[0] not in self.types or any(kinds.get(a, a) != kinds.get(b, b) for a, b in pairs):
            del self.constants[before:]
            return None
        for branch in branches:
            self._take(node, "a branch", 1, branch)
        chosen = f"{_label(node)}/chosen"
        none = self._constant(f"{chosen}/shape", np.empty(0, np.int64))
        nodes.append(helper.make_node("Reshape", [node.input[0], none], [chosen], name=chosen))
        nodes.append(helper.make_node("Not", [chosen], [f"{chosen}/not"], name=f"{chosen}/not"))
        for (label, _), condition in zip(named, (chosen, f"{chosen}/not"), strict=True):
            self.choices.append(Choice(f"{label}/", condition))
        for (a, b), out in zip(pairs, node.output, strict=True):
            if out:
                nodes.append(helper.make_node("Where", [chosen, a, b], [out], name=out))
        return nodes

    def _types_with(self, nodes: Sequence[onnx.NodeProto]) -> Mapping[str, StaticType]:
        """The types of tensors once these nodes are in the graph."""
        tried = onnx.ModelProto.FromString(self.model.SerializeToString())
        tried.graph.node.extend(nodes)
        tried.graph.initializer.extend(self.constants)
        return static_types(infer(tried))

    def _loop(self, node: onnx.NodeProto, attributes: dict) -> list[onnx.NodeProto] | None:
        body = attributes["body"]
        count = self._number(node, 0, "its number of iterations") if node.input[0] else np.int64(_ENDLESS)
        start = self._number(node, 1, "its condition") if len(node.input) > 1 and node.input[1] else np.bool_(True)
        if count is None or start is None:
            return None
        iterations = count.item() if start else 0
        if iterations < 1:
            return self._no_iterations(node, body)
        goes_on = _goes_on(body)
        if goes_on:
            self._take(node, "iterations", iterations, body)
        state, collected, nodes, before = list(node.input[2:]), [], [], len(self.constants)
        known = {name: self._value(name) for name, tensor in self.weights.items() if np.prod(tensor.dims) <= LARGEST}
        going = self._constant(f"{_label(node)}/going", np.bool_(True))
        shared = self._constants_of(body, _label(node))
        for i in range(iterations):
            at = self._constant(f"{_label(node)}/{i}", np.int64(i))
            copied, results = self._copy(body, [at, going, *state], f"{_label(node)}/{i}", shared)
            nodes += copied
            state = results[1 : 1 + len(state)]
            collected.append(results[1 + len(state) :])
            if goes_on:
                continue
            known |= {tensor.name: numpy_helper.to_array(tensor) for tensor in self.constants[before:]}
            is_next = result_of(copied, results[0], known, self.model)
            if is_next is None:
                del self.constants[before:]
                return None
            if not is_next:
                self._take(node, "iterations", i + 1, body)
                break
            self._require(node, "iterations", i + 2, body)
        return nodes + self._results(node, state, collected, [0] * len(collected[0]))

    def _no_iterations(self, node: onnx.NodeProto, body: onnx.GraphProto) -> list[onnx.NodeProto] | None:
        """The unchanged states, and empty tensors of the types that the body must declare."""
        states = len(node.input) - 2
        nodes = [_identity(name, out) for name, out in zip(node.input[2:], node.output, strict=False) if out]
        for out, info in zip(node.output[states:], body.output[1 + states :], strict=True):
            tensor = info.type.tensor_type
            if not out or not tensor.HasField("shape") or not all(d.HasField("dim_value") for d in tensor.shape.dim):
                return None
            empty = np.zeros((0, *(d.dim_value for d in tensor.shape.dim)), helper.tensor_dtype_to_np_dtype(tensor.elem_type))
            nodes.append(_identity(self._constant(f"{out}/empty", empty), out))
        return nodes

    def _scan(self, node: onnx.NodeProto, attributes: dict) -> list[onnx.NodeProto] | None:
        body, scanned = attributes["body"], attributes["num_scan_inputs"]
        states = len(node.input) - scanned
        sources = list(node.input[states:])
        if not all(name in self.types for name in sources):
            return None
        if self.opset < _SCANS_WITHOUT_BATCHES:
            return self._scan_of_batches(node, attributes)
        axes = attributes.get("scan_input_axes", [0] * scanned)
        backwards = attributes.get("scan_input_directions", [0] * scanned)
        count = self.types[sources[0]][1][axes[0]]
        if count < 1:
            return None
        self._take(node, "iterations", count, body)
        given = list(zip(sources, axes, backwards, strict=True))
        nodes, state, collected = self._iterations(body, node.input[:states], given, count, _label(node))
        made = len(collected[0])
        axes = attributes.get("scan_output_axes", [0] * made)
        order = [[row[k] for row in collected] for k in range(made)]
        directions = attributes.get("scan_output_directions", [0] * made)
        turned = [list(reversed(c)) if d else c for c, d in zip(order, directions, strict=True)]
        return nodes + self._results(node, state, [list(row) for row in zip(*turned, strict=True)] or collected, axes)

    def _scan_of_batches(self, node: onnx.NodeProto, attributes: dict) -> list[onnx.NodeProto] | None:
        """Scan of opset 8: (sequence_lens, states, sequences), with a batch axis, as a Scan for each of the batch."""
        body, scanned = attributes["body"], attributes["num_scan_inputs"]
        first, *inputs = node.input
        states, sources = inputs[: len(inputs) - scanned], inputs[len(inputs) - scanned :]
        batch, count = self.types[sources[0]][1][:2]
        if first or min(batch, count) < 1:
            return None
        self._take(node, "iterations", batch * count, body)
        backwards = attributes.get("directions", [0] * scanned)
        nodes, ends, collected = [], [], []
        for b in range(batch):
            label = f"{_label(node)}/batch_{b}"
            own = [self._part(nodes, name, 0, b, f"{label}/given_{i}") for i, name in enumerate(inputs)]
            given = list(zip(own[len(states) :], [0] * scanned, backwards, strict=True))
            copied, state, rows = self._iterations(body, own[: len(states)], given, count, label)
            nodes += copied
            ends.append(state)
            stacked = [[row[k] for row in rows] for k in range(len(rows[0]))]
            collected.append([self._stacked(nodes, parts, 0, f"{label}/made_{k}") for k, parts in enumerate(stacked)])
        rows = [[*state, *made] for state, made in zip(ends, collected, strict=True)]
        return nodes + self._results(node, [], rows, [0] * len(rows[0]))

    def _iterations(
        self, body: onnx.GraphProto, states: Sequence[str], given: Sequence[tuple[str, int, int]], count: int, label: str
    ) -> tuple[list[onnx.NodeProto], list[str], list[list[str]]]:
        """Nodes, last states and further results of each iteration. `given`: sequences, axes, whether from the end."""
        state, collected, nodes = list(states), [], []
        shared = self._constants_of(body, label)
        for i in range(count):
            parts = [
                self._part(nodes, source, axis, count - 1 - i if backward else i, f"{label}/{i}/part_{k}")
                for k, (source, axis, backward) in enumerate(given)
            ]
            copied, results = self._copy(body, [*state, *parts], f"{label}/{i}", shared)
            nodes += copied
            state = results[: len(states)]
            collected.append(results[len(states) :])
        return nodes, state, collected

    def _part(self, nodes: list[onnx.NodeProto], source: str, axis: int, index: int, out: str) -> str:
        """One index of an axis; the node is added to `nodes`."""
        at = self._constant(f"{out}/at", np.int64(index))
        nodes.append(helper.make_node("Gather", [source, at], [out], name=out, axis=axis))
        return out

    def _stacked(self, nodes: list[onnx.NodeProto], parts: Sequence[str], axis: int, out: str) -> str:
        """Tensors stacked along a new axis; the nodes are added to `nodes`."""
        opened = [f"{out}/{i}" for i in range(len(parts))]
        nodes += [self._unsqueeze(part, one, axis) for part, one in zip(parts, opened, strict=True)]
        nodes.append(helper.make_node("Concat", opened, [out], name=out, axis=axis))
        return out

    def _results(
        self, node: onnx.NodeProto, state: Sequence[str], collected: Sequence[Sequence[str]], axes: Sequence[int]
    ) -> list[onnx.NodeProto]:
        """The node's outputs: last states, then the results of iterations, stacked along an axis."""
        nodes = [_identity(name, out) for name, out in zip(state, node.output, strict=False) if out]
        for k, out in enumerate(node.output[len(state) :]):
            if not out:
                continue
            self._stacked(nodes, [row[k] for row in collected], axes[k], out)
        return nodes

    def _unsqueeze(self, name: str, out: str, axis: int) -> onnx.NodeProto:
        if self.opset < 13:
            return helper.make_node("Unsqueeze", [name], [out], name=out, axes=[axis])
        return helper.make_node("Unsqueeze", [name, self._constant(f"{out}/axes", np.int64([axis]))], [out], name=out)

    def _copy(
        self, body: onnx.GraphProto, given: Sequence[str], label: str, constants: Mapping[str, str] | None = None
    ) -> tuple[list[onnx.NodeProto], list[str]]:
        """The body's nodes with names of their own, and the names of its results; `constants` as `_constants_of` gives them."""
        names = dict(zip([i.name for i in body.input], given, strict=True))
        names |= self._constants_of(body, label) if constants is None else constants
        names.update((name, f"{label}/{name}") for node in body.node for name in node.output if name)
        nodes = []
        for node in body.node:
            copied = onnx.NodeProto.FromString(node.SerializeToString())
            copied.name = f"{label}/{node.name or node.op_type}"
            _rename(copied, names)
            nodes.append(copied)
        return nodes, [names.get(output.name, output.name) for output in body.output]

    def _constants_of(self, body: onnx.GraphProto, label: str) -> dict[str, str]:
        """The names of the body's constants in the outermost graph, where all copies of the body read them."""
        names = {}
        for tensor in body.initializer:
            names[tensor.name] = f"{label}/{tensor.name}"
            self.constants.append(onnx.TensorProto.FromString(tensor.SerializeToString()))
            self.constants[-1].name = names[tensor.name]
        return names

    def _require(self, node: onnx.NodeProto, what: str, count: int, body: onnx.GraphProto) -> None:
        self.allowance.require(node, *_copies(what, count, body))

    def _take(self, node: onnx.NodeProto, what: str, count: int, body: onnx.GraphProto) -> None:
        self.allowance.take(node, *_copies(what, count, body))

    def _value(self, name: str) -> np.ndarray | None:
        return numpy_helper.to_array(self.weights[name]) if name in self.weights else None

    def _number(self, node: onnx.NodeProto, at: int, what: str) -> np.ndarray | None:
        """The only element of an input, where it is known."""
        value = self._value(node.input[at])
        if value is not None and value.size != 1:
            where = f"node {node.name or _label(node)!r} ({node.op_type})"
            raise ModelError(f"{where}: {what} has {value.size} elements: make it a tensor of one element")
        return value

    def _constant(self, name: str, value: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name


_WRITERS = {"If": _Writer._if, "Loop": _Writer._loop, "Scan": _Writer._scan}


def _copies(what: str, count: int, body: onnx.GraphProto) -> tuple[str, int, int]:
    """A title of the copies of a body, and their nodes and bytes; constants count once."""
    nodes = count_nodes(body)
    nbytes = body.ByteSize() + (count - 1) * sum(node.ByteSize() for node in body.node)
    title = f"{count} {what} of {nodes} operators" if what == "iterations" else f"{what} of {nodes} operators"
    return title, count * max(1, nodes), nbytes


def _goes_on(body: onnx.GraphProto) -> bool:
    """Whether the condition that a Loop's body returns is its input condition, or always true."""
    name, makers = body.output[0].name, {o: node for node in body.node for o in node.output}
    while name in makers and makers[name].op_type == "Identity":
        name = makers[name].input[0]
    if name == body.input[1].name:
        return True
    values = [numpy_helper.to_array(tensor) for tensor in body.initializer if tensor.name == name]
    if name in makers and makers[name].op_type == "Constant":
        values += [numpy_helper.to_array(a.t) for a in makers[name].attribute if a.name == "value"]
    return bool(values) and bool(values[0].all())


def _rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Rename tensors that a node reads and writes, also in inner graphs, except names that inner graphs define themselves."""
    for field in (node.input, node.output):
        renamed = [names.get(name, name) for name in field]
        del field[:]
        field.extend(renamed)
    for attribute in node.attribute:
        for inner in (attribute.g, *attribute.graphs):
            own = {info.name for info in (*inner.input, *inner.initializer)}
            own |= {name for nested in inner.node for name in nested.output}
            around = {name: new for name, new in names.items() if name not in own}
            for nested in inner.node:
                _rename(nested, around)
            for output in inner.output:
                output.name = around.get(output.name, output.name)


def _label(node: onnx.NodeProto) -> str:
    """The name after which copies of the node are named: output names are unique, node names need not be."""
    return next(o for o in node.output if o)


def _identity(name: str, out: str) -> onnx.NodeProto:
    return helper.make_node("Identity", [name], [out], name=out)
