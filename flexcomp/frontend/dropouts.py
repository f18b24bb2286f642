"""Dropout as it is in inference.

Simplification takes every Dropout for its data, in training, too, and the mask for data as well: it must meet none.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from flexcomp.errors import UnsupportedModelError
from flexcomp.frontend.domains import DEFAULT
from flexcomp.frontend.quantised.writer import Writer
from flexcomp.frontend.schemas import place_of

_MASKS_ARE_BOOL = 10  # opset


def write_dropouts(model: onnx.ModelProto) -> None:
    """Give Dropout's readers its data, and a mask that keeps everything.

    Raises UnsupportedModelError that names a Dropout in training: its result is random, unless nothing is to be dropped.
    """
    if any(_is_dropout(node) for node in model.graph.node):
        _Dropouts(model).rewrite()


def _is_dropout(node: onnx.NodeProto) -> bool:
    return node.op_type == "Dropout" and node.domain in DEFAULT


class _Dropouts(Writer):
    def rewrite(self) -> None:
        for node in self.graph.node:
            if _is_dropout(node):
                self._write(node)
            else:
                self.nodes.append(node)
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in self.nodes]
        del self.graph.node[:]
        self.graph.node.extend(nodes)

    def _write(self, node: onnx.NodeProto) -> None:
        given = dict(enumerate(node.input))
        if given.get(2) and self._drops(given[2], given.get(1, "")):
            raise UnsupportedModelError(
                f"{place_of(node)}: in training mode its result is random; export the network for inference"
            )
        self.name = node.name or node.output[0]
        result, mask = [*node.output, ""][:2]
        if result:
            self.nodes.append(helper.make_node("Identity", [node.input[0]], [result], self.name))
        if mask:
            self.nodes.append(helper.make_node("Expand", self._ones(node.input[0]), [mask], f"{self.name}/mask"))

    def _drops(self, training: str, ratio: str) -> bool:
        """Whether it may be in training, and drop anything."""
        mode, part = self.value(training), self.value(ratio) if ratio else np.float32(0.5)
        return (mode is None or bool(mode.any())) and (part is None or bool(np.any(part != 0)))

    def _ones(self, data: str) -> list[str]:
        """Inputs of an Expand to a mask for `data`."""
        element, _ = self.types.get(data, (onnx.TensorProto.FLOAT, ()))
        one = np.array(1, bool if self.opset >= _MASKS_ARE_BOOL else helper.tensor_dtype_to_np_dtype(element))
        return [self.constant(one), self.emit("Shape", [data])]
