"""Small networks under the file names that the guides use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.networks.graph import Graph
from tests import padded, shaped
from tests.exporters.genai import Form, decoder
from tests.generation import model_folder


def write(folder: Path) -> None:
    """Write every model that a guide names into `folder`."""
    (folder / "flexcomp-demo").mkdir()
    onnx.save(_pictures("data_0", 224), folder / "flexcomp-demo" / "squeezenet.onnx")
    for name in ("resnet50", "detector", "classifier"):
        onnx.save(_pictures("x", 32), folder / f"{name}.onnx")
    dynamic = _pictures("x", 32)
    dynamic.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    dynamic.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(dynamic, folder / "dynamic.onnx")
    onnx.save(shaped.encoder(most=128), folder / "encoder.onnx")
    onnx.save(padded.masked_encoder(), folder / "masked_encoder.onnx")
    onnx.save(shaped.pictures(), folder / "detector_of_any_size.onnx")
    onnx.save(decoder(Form(), None), folder / "decoder.onnx")
    (folder / "decoder").symlink_to(model_folder.write_model(folder / "hub", Form(capacity=256)))
    onnx.save(_recurrent(), folder / "recurrent.onnx")
    onnx.save(_sensor(), folder / "sensor.onnx")


def _pictures(name: str, extent: int) -> onnx.ModelProto:
    """Eleven convolutions and a dense layer, for pictures of `extent` × `extent` pixels: 400 kB of weights in even parts."""
    g = Graph("pictures", seed=1)
    x = g.relu(g.conv(g.input(name, (1, 3, extent, extent)), 16, 3, stride=2))
    x = g.max_pool(x, extent // 16, extent // 16)
    for _ in range(10):
        x = g.relu(g.conv(x, 32, 3))
    x = g.op("Flatten", g.op("GlobalAveragePool", x, channels=32), axis=1, channels=32)
    model = g.model(g.dense(x, 64), (1, 64))
    (head,) = (node for node in model.graph.node if node.op_type == "Gemm")
    head.name = "/head/dense"
    return model


def _sensor() -> onnx.ModelProto:
    """An operator that nobody has, and a dense layer."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (4, columns)) for name, columns in (("x", 64), ("y", 32))]
    nodes = [
        helper.make_node("LeakyIntegrator", ["x"], ["sums"], "integrate", domain="com.example", decay=0.5),
        helper.make_node("MatMul", ["sums", "w"], ["y"], "dense"),
    ]
    weights = numpy_helper.from_array(np.full((64, 32), 0.25, "float32"), "w")
    graph = helper.make_graph(nodes, "sensor", ports[:1], ports[1:], [weights])
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("com.example", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def _recurrent() -> onnx.ModelProto:
    """h_out = tanh(x + h_in), y = h_out + h_out; all are (1, 16), x one sample of a series."""
    x, h, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 16)) for name in ("x", "h_in", "y"))
    state = helper.make_tensor_value_info("h_out", TensorProto.FLOAT, (1, 16))
    nodes = [
        helper.make_node("Add", ["x", "h_in"], ["s"]),
        helper.make_node("Tanh", ["s"], ["h_out"]),
        helper.make_node("Add", ["h_out", "h_out"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "recurrent", [x, h], [y, state])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
