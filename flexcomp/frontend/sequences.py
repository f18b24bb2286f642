"""Sequences whose length is known are written out as the tensors that they hold.

    s = SplitToSequence(x, [2, 3]); y = SequenceAt(s, 1)          →   a, y = Split(x, [2, 3])
    s = SequenceInsert(SequenceConstruct(a, b), c)
    y = ConcatFromSequence(s, axis=0, new_axis=1)                 →   y = Concat(Unsqueeze(a), Unsqueeze(b), Unsqueeze(c))

Sequences that branches and loops hand on are known once these are written out.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper

from flexcomp.errors import ModelError, UnsupportedModelError
from flexcomp.frontend.allowance import Allowance
from flexcomp.frontend.domains import DEFAULT
from flexcomp.frontend.large_weights import names_read
from flexcomp.frontend.quantised.writer import Writer

_INPUTS_SINCE = 13  # opset from which on axes of Unsqueeze and Squeeze, and the lengths of Split, are inputs


def write_sequences(model: onnx.ModelProto, allowance: Allowance) -> bool:
    """Write out the sequences of the outermost graph whose length is known; whether there were any. Changes `model`.

    Raises ModelError for a position outside of a sequence, UnsupportedModelError for more than is left of the allowance.
    """
    if not any(_is_of_sequences(node) for node in model.graph.node):
        return False
    return _Writer(model, allowance).rewrite()


def require_known_sequences(model: onnx.ModelProto) -> None:
    """Raise UnsupportedModelError for an operator on sequences that is left because something about it is not known."""
    if not any(_is_of_sequences(node) for node in model.graph.node):
        return
    writer = _Writer(onnx.ModelProto.FromString(model.SerializeToString()), Allowance())
    writer.rewrite()
    for node in writer.unknown[:1]:
        raise UnsupportedModelError(
            f"node {node.name or node.output[0]!r} ({node.op_type}): {_UNKNOWN.get(node.op_type, _LENGTH)} depends on the "
            "network's inputs, and must be known when the network is built: export the network with tensors in its place"
        )


_LENGTH = "the length of its sequence"
_UNKNOWN = {
    "SplitToSequence": "how it splits its input",
    **dict.fromkeys(("SequenceAt", "SequenceErase", "SequenceInsert"), "its position, or the length of its sequence,"),
}


class _Writer(Writer):
    def __init__(self, model: onnx.ModelProto, allowance: Allowance) -> None:
        super().__init__(model)
        self.allowance = allowance
        self.made = {name for node in self.graph.node for name in node.output}
        self.sequences: dict[str, list[str]] = {}  # by name the tensors in it
        self.unknown: list[onnx.NodeProto] = []
        self.changed = False

    def rewrite(self) -> bool:
        makers = []
        for node in self.graph.node:
            self.name = node.name or next(name for name in node.output if name)
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            rule = _RULES.get(node.op_type) if node.domain in DEFAULT else None
            done = rule is not None and rule(self, node, attributes)
            if not done or node.output[0] in self.sequences:
                self.nodes.append(node)
            if not done and _is_of_sequences(node):
                self.unknown.append(node)
            if done and node.output[0] in self.sequences:
                makers.append(node)
            self.changed |= done and node.output[0] not in self.sequences
        self._drop(makers)
        return self.changed

    def _drop(self, makers: list[onnx.NodeProto]) -> None:
        """Drop the nodes that make sequences which nothing reads any more."""
        unread = {node.output[0] for node in makers}
        read = {output.name for output in self.graph.output}
        kept = []
        for node in reversed(self.nodes):
            if node.output[0] in unread - read:
                self.changed = True
                continue
            kept.append(onnx.NodeProto.FromString(node.SerializeToString()))
            read |= {*node.input}.union(*(names_read(g) for a in node.attribute for g in (a.g, *a.graphs)))
        del self.graph.node[:]
        self.graph.node.extend(reversed(kept))

    def _empty(self, node: onnx.NodeProto, _attributes: dict) -> bool:
        self.sequences[node.output[0]] = []
        return True

    def _construct(self, node: onnx.NodeProto, _attributes: dict) -> bool:
        self.sequences[node.output[0]] = list(node.input)
        return True

    def _same(self, node: onnx.NodeProto, _attributes: dict) -> bool:
        if node.input[0] not in self.sequences:
            return False
        self.sequences[node.output[0]] = self.sequences[node.input[0]]
        return True

    def _insert(self, node: onnx.NodeProto, _attributes: dict) -> bool:
        held = self.sequences.get(node.input[0])
        at = None if held is None else self._position(node, 2, len(held), len(held) + 1)
        if at is None:
            return False
        self.sequences[node.output[0]] = [*held[:at], node.input[1], *held[at:]]
        return True

    def _erase(self, node: onnx.NodeProto, _attributes: dict) -> bool:
        held = self.sequences.get(node.input[0])
        at = None if held is None else self._position(node, 1, len(held) - 1, len(held))
        if at is None:
            return False
        self.sequences[node.output[0]] = [*held[:at], *held[at + 1 :]]
        return True

    def _at(self, node: onnx.NodeProto, _attributes: dict) -> bool:
        held = self.sequences.get(node.input[0])
        at = None if held is None else self._position(node, 1, None, len(held))
        if at is None:
            return False
        self.nodes.append(helper.make_node("Identity", [held[at]], node.output, self.name))
        return True

    def _length(self, node: onnx.NodeProto, _attributes: dict) -> bool:
        held = self.sequences.get(node.input[0])
        if held is None:
            return False
        self.nodes.append(helper.make_node("Identity", [self.constant(np.int64(len(held)))], node.output, self.name))
        return True

    def _concat(self, node: onnx.NodeProto, attributes: dict) -> bool:
        held = self.sequences.get(node.input[0])
        if held is None:
            return False
        if not held:
            raise ModelError(f"node {self.name!r} ({node.op_type}): its sequence is empty")
        axis = attributes["axis"]
        if attributes.get("new_axis", 0):
            self.allowance.take(node, f"{len(held)} parts", len(held), 0)
            opened = [f"{self.name}/part_{i}" for i in range(len(held))]
            self._along("Unsqueeze", held, opened, axis)
            held = opened
        self.nodes.append(helper.make_node("Concat", held, node.output, self.name, axis=axis))
        return True

    def _split(self, node: onnx.NodeProto, attributes: dict) -> bool:
        """Parts of one element each, of the same length but the last, or of given lengths."""
        given, axis = node.input[1] if len(node.input) > 1 else "", attributes.get("axis", 0)
        lengths = self.value(given) if given else np.int64(1)
        if lengths is None or node.input[0] not in self.types:
            return False
        shape = self.types[node.input[0]][1]
        if not -len(shape) <= axis < len(shape):
            raise ModelError(f"node {self.name!r} ({node.op_type}): there is no axis {axis} in {list(shape)}")
        extent = shape[axis]
        if lengths.ndim == 0 and lengths > 0:
            each = int(lengths)
            lengths = np.array([each] * (extent // each) + [extent % each] * bool(extent % each), "int64")
        if lengths.ndim != 1 or lengths.sum() != extent or (lengths < 0).any():
            raise ModelError(f"node {self.name!r} ({node.op_type}): parts of {lengths.tolist()} are none of an axis of {extent}")
        names = [f"{self.name}/part_{i}" for i in range(len(lengths))]
        squeezed = not given and not attributes.get("keepdims", 1)
        results = [f"{name}/squeezed" for name in names] if squeezed else names
        self.sequences[node.output[0]] = results
        if self.made.issuperset(results):  # in an earlier round, of a sequence that something else reads
            return True
        self.allowance.take(node, f"{len(names)} parts", len(names), 0)
        if len(names) == 1:
            self.nodes.append(helper.make_node("Identity", [node.input[0]], names, names[0]))
        elif self.opset < _INPUTS_SINCE:
            self.nodes.append(helper.make_node("Split", [node.input[0]], names, self.name, axis=axis, split=lengths.tolist()))
        else:
            parts = self.constant(lengths.astype("int64"))
            self.nodes.append(helper.make_node("Split", [node.input[0], parts], names, self.name, axis=axis))
        if squeezed:
            self._along("Squeeze", names, results, axis)
        return True

    def _along(self, kind: str, names: list[str], results: list[str], axis: int) -> None:
        """Squeeze or Unsqueeze tensors."""
        if self.opset < _INPUTS_SINCE:
            more, attributes = [], {"axes": [axis]}
        else:
            more, attributes = [self.constant(np.int64([axis]))], {}
        for name, out in zip(names, results, strict=True):
            self.nodes.append(helper.make_node(kind, [name, *more], [out], out, **attributes))

    def _position(self, node: onnx.NodeProto, i: int, default: int | None, count: int) -> int | None:
        """The place, of `count`, that input `i` says; `default` where it is left out, None if it is not known."""
        if default is not None and (len(node.input) <= i or not node.input[i]):
            at = default
        else:
            value = self.value(node.input[i])
            if value is None or value.size != 1:
                return None
            at = int(value.item())
            at += (count if node.op_type != "SequenceInsert" else count - 1) if at < 0 else 0
        if not 0 <= at < count:
            raise ModelError(f"node {self.name!r} ({node.op_type}): there is no position {at} among {count}")
        return at


_Rule = Callable[[_Writer, onnx.NodeProto, dict], bool]
_RULES: dict[str, _Rule] = {
    "ConcatFromSequence": _Writer._concat,
    "Identity": _Writer._same,
    "OptionalGetElement": _Writer._same,
    "SequenceAt": _Writer._at,
    "SequenceConstruct": _Writer._construct,
    "SequenceEmpty": _Writer._empty,
    "SequenceErase": _Writer._erase,
    "SequenceInsert": _Writer._insert,
    "SequenceLength": _Writer._length,
    "SplitToSequence": _Writer._split,
}


def _is_of_sequences(node: onnx.NodeProto) -> bool:
    return node.domain in DEFAULT and node.op_type in _RULES and "Sequence" in node.op_type
