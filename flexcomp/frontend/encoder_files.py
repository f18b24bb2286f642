"""An encoder with the part of its decoder that makes keys and values of the encoder's result, once for each text.

    encoder:           tokens → last_hidden_state
    decoder:           encoder_hidden_states → products → present.0.encoder.key, …; tokens, … → logits
    becomes            tokens → last_hidden_state → products → past_key_values.0.encoder.key, …

Of the decoder nothing else is taken: it is a network of its own, whose cross caches are inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from flexcomp.deferred import Array
from flexcomp.errors import ModelError, UnsupportedModelError
from flexcomp.frontend.cache_branch import take_cache_branch
from flexcomp.frontend.fold import read_inside

_PREFIX = "cross/"  # of names of the decoder's part
Parsed = tuple[onnx.ModelProto, dict[int, Array]]  # large raw data by positions of initialisers


@dataclass(frozen=True)
class EncoderFiles:
    """The files, in one folder, and tensors by their names on both sides."""

    encoder: Path
    decoder: Path  # without caches, or merged with one
    given: Mapping[str, str]  # inputs of the decoder → what they are in the encoder
    outputs: Mapping[str, str]  # of the decoder, or inputs among `given` → of the result
    past: Collection[str]  # inputs of the decoder that are caches

    def parse(self, parse: Callable[[Path], Parsed]) -> Parsed:
        """The joined model; `parse` reads a file. Raises ModelError, UnsupportedModelError."""
        (model, raw), (decoder, of_decoder) = parse(self.encoder), parse(self.decoder)
        take_cache_branch(decoder, self.past, reads=False)
        places = self._cut(decoder, of_decoder)
        self._require_versions(model, decoder)
        count = len(model.graph.initializer)
        model.graph.node.extend(decoder.graph.node)
        model.graph.initializer.extend(decoder.graph.initializer)
        made = [onnx.ValueInfoProto.FromString(one.SerializeToString()) for one in decoder.graph.output]
        for name in self.outputs.keys() & self.given.keys():
            own, result = self.given[name], self.outputs[name]
            model.graph.node.append(helper.make_node("Identity", [own], [result], result))
            kept = next(one for one in model.graph.output if one.name == own)
            made.append(onnx.ValueInfoProto(name=result, type=kept.type))
        del model.graph.output[:]
        model.graph.output.extend(made)
        return model, raw | {count + position: data for position, data in places.items()}

    def _cut(self, model: onnx.ModelProto, raw: Mapping[int, Array]) -> dict[int, Array]:
        """Leave what makes the outputs, all names with a prefix. Changes `model`; returns large data at their new positions."""
        graph = model.graph
        makers = {name: node for node in graph.node for name in node.output}
        wanted = [one.name for one in graph.output if one.name in self.outputs]
        if missing := self.outputs.keys() - self.given.keys() - set(wanted):
            raise ModelError(f"{self.decoder} has no output {min(missing)!r}, what its caches hold of the encoder's result")
        found, by_value = _needed(wanted, makers), _needed(wanted, makers, but="Shape")
        nodes = [node for node in graph.node if found & set(node.output)]
        self._require_given(graph, nodes, found, by_value)
        names = {name: self._renamed(name) for name in found | {name for node in nodes for name in node.output if name}}
        places = [i for i, tensor in enumerate(graph.initializer) if tensor.name in found]
        weights = [onnx.TensorProto.FromString(graph.initializer[i].SerializeToString()) for i in places]
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        ports = [onnx.ValueInfoProto.FromString(one.SerializeToString()) for one in graph.output if one.name in self.outputs]
        for node in nodes:
            node.name = _PREFIX + node.name if node.name else ""
            for names_of in (node.input, node.output):
                changed = [names.get(name, name) for name in names_of]
                del names_of[:]
                names_of.extend(changed)
        for one in (*weights, *ports):
            one.name = names[one.name]
        for field, kept in ((graph.node, nodes), (graph.initializer, weights), (graph.output, ports)):
            del field[:]
            field.extend(kept)
        return {new: raw[old] for new, old in enumerate(places) if old in raw}

    def _renamed(self, name: str) -> str:
        return self.outputs.get(name) or self.given.get(name) or _PREFIX + name

    def _require_given(
        self, graph: onnx.GraphProto, nodes: list[onnx.NodeProto], found: set[str], by_value: set[str]
    ) -> None:
        """Refuse what needs more than the encoder's result; inputs of which only extents are needed become a text's beginning."""
        for node in nodes:
            if read_inside([node]):
                raise UnsupportedModelError(
                    f"{self.decoder}: node {node.name or node.output[0]!r} ({node.op_type}) computes the encoder's keys and "
                    "values in a graph of its own: export the decoder without conditions"
                )
        weights = {tensor.name for tensor in graph.initializer}
        for port in graph.input:
            if port.name not in found or port.name in (*self.given, *weights):
                continue
            if port.name in by_value:
                raise UnsupportedModelError(
                    f"{self.decoder}: keys and values of the encoder's result depend on {port.name!r}, too: they are no caches"
                )
            kind = helper.tensor_dtype_to_np_dtype(port.type.tensor_type.elem_type)
            shape = [dim.dim_value or 1 for dim in port.type.tensor_type.shape.dim]
            graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(shape, kind), port.name))

    def _require_versions(self, encoder: onnx.ModelProto, decoder: onnx.ModelProto) -> None:
        versions, known = ({one.domain: one.version for one in model.opset_import} for model in (decoder, encoder))
        for domain, version in versions.items():
            if known.setdefault(domain, version) != version:
                raise ModelError(
                    f"{self.encoder} is of opset {known[domain]}, and {self.decoder} of {version}: export both for the same one"
                )
        del encoder.opset_import[:]
        encoder.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in known.items())
        encoder.ir_version = max(encoder.ir_version, decoder.ir_version)
        here = {(one.domain, one.name) for one in encoder.functions}
        encoder.functions.extend(one for one in decoder.functions if (one.domain, one.name) not in here)


def _needed(wanted: Collection[str], makers: Mapping[str, onnx.NodeProto], but: str = "") -> set[str]:
    """Names that tensors are computed of, those that operators `but` read being left out."""
    found, left = set(wanted), list(wanted)
    while left:
        node = makers.get(left.pop())
        new = set() if node is None or node.op_type == but else {*node.input, *read_inside([node])} - {"", *found}
        found |= new
        left += new
    return found
