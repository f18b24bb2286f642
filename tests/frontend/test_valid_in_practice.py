"""Models as exporters and tools write them, whatever the checker says; and versions of ONNX that nobody can know."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx.utils
import pytest
from onnx import TensorProto, helper

import flexcomp
from flexcomp.frontend import load_model

TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}


def value(name, shape, dtype="float32"):
    return helper.make_tensor_value_info(name, TYPES[dtype], shape)


def of(nodes, inputs, outputs, opset=17):
    graph = helper.make_graph(nodes, "net", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def results(model, folder, *arrays):
    flexcomp.build(model, kernels="smallest").export_library(folder / "net.so")
    with flexcomp.load(folder / "net.so", budget="min") as session:
        return session.run(*arrays)


def without_type():
    info = onnx.ValueInfoProto()
    info.name = "y"
    return info


def without_shape():
    info = without_type()
    info.type.tensor_type.elem_type = TensorProto.FLOAT
    return info


@pytest.mark.parametrize("output", [without_type(), without_shape()])
def test_an_output_without_type_or_shape(tmp_path, output):
    model = of([helper.make_node("Relu", ["x"], ["y"])], [value("x", (2, 3))], [output])
    x = np.random.default_rng(0).standard_normal((2, 3), "f4")
    np.testing.assert_array_equal(results(model, tmp_path, x)["y"], np.maximum(x, 0))


def test_what_extract_model_writes(tmp_path):
    """A model is cut at a tensor that its file gives a type, but no shape."""
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Sigmoid", ["a"], ["y"])]
    model = of(nodes, [value("x", (2, 3))], [value("y", (2, 3))])
    model.graph.value_info.append(without_shape())
    model.graph.value_info[0].name = "a"
    onnx.save(model, tmp_path / "whole.onnx")
    onnx.utils.extract_model(str(tmp_path / "whole.onnx"), str(tmp_path / "cut.onnx"), ["x"], ["a"], False, False)
    x = np.random.default_rng(0).standard_normal((2, 3), "f4")
    np.testing.assert_array_equal(results(tmp_path / "cut.onnx", tmp_path, x)["a"], np.maximum(x, 0))


def test_the_way_out_of_an_unknown_operator(tmp_path):
    """The message names the tensor at which extract_model cuts, and what is cut there can be built."""
    nodes = [helper.make_node("Relu", ["x"], ["before"], name="first"), helper.make_node("Cast", ["before"], ["i"], to=6)]
    counting = {"mode": "TF", "min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0}
    counting |= {"ngram_counts": [0], "ngram_indexes": [0], "pool_int64s": [1]}
    nodes.append(helper.make_node("TfIdfVectorizer", ["i"], ["y"], name="odd", **counting))
    model = of(nodes, [value("x", (2, 3))], [value("y", (2, 1))])
    onnx.save(model, tmp_path / "whole.onnx")
    with pytest.raises(flexcomp.UnsupportedModelError) as caught:
        load_model(tmp_path / "whole.onnx")
    assert "TfIdfVectorizer (node 'odd')" in str(caught.value)
    tensor = re.search(r"names of tensors: '(\w+)'", str(caught.value))[1]
    onnx.utils.extract_model(str(tmp_path / "whole.onnx"), str(tmp_path / "cut.onnx"), ["x"], [tensor])
    x = np.asarray([[1, -2, 3], [0, 5, -6]], "f4")
    np.testing.assert_array_equal(results(tmp_path / "cut.onnx", tmp_path, x)[tensor], np.maximum(x, 0))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(3,), (1, 4, 5), ()])
def test_a_pass_through(tmp_path, dtype, shape):
    model = of([helper.make_node("Identity", ["x"], ["y"])], [value("x", shape, dtype)], [value("y", shape, dtype)])
    x = np.asarray(np.random.default_rng(0).standard_normal(shape) * 3).astype(dtype)
    y = results(model, tmp_path, x)["y"]
    assert y.dtype == x.dtype and y.shape == x.shape
    np.testing.assert_array_equal(y, x)


def test_pass_throughs_of_several_kinds(tmp_path):
    """No node at all; one input as two outputs; a view."""
    x = np.random.default_rng(0).standard_normal((2, 3), "f4")
    np.testing.assert_array_equal(results(of([], [value("x", (2, 3))], [value("x", (2, 3))]), tmp_path, x)["x"], x)
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Flatten", ["x"], ["z"], axis=0)]
    found = results(of(nodes, [value("x", (2, 3))], [value("y", (2, 3)), value("z", (1, 6))]), tmp_path, x)
    np.testing.assert_array_equal(found["y"], x)
    np.testing.assert_array_equal(found["z"], x.reshape(1, 6))


def relu(**changes):
    model = of([helper.make_node("Relu", ["x"], ["y"])], [value("x", (1, 4))], [value("y", (1, 4))])
    for name, number in changes.items():
        if name == "opset":
            model.opset_import[0].version = number
        elif number is None:
            model.ClearField(name)
        else:
            setattr(model, name, number)
    return model


@pytest.mark.parametrize("version", [99, onnx.defs.onnx_opset_version() + 1, 0, -1])
def test_an_opset_that_nobody_knows(version):
    message = f"opset {version}: the newest that onnx .* knows is {onnx.defs.onnx_opset_version()}; export it for opset"
    with pytest.raises(flexcomp.ModelError, match=message):
        load_model(relu(opset=version))


@pytest.mark.parametrize(("version", "said"), [(None, "no ir_version"), (99, "ir_version 99"), (-5, "ir_version -5")])
def test_a_version_of_the_format_that_nobody_knows(version, said):
    with pytest.raises(flexcomp.ModelError, match=f"says {said}: onnx .* knows 1 to {int(onnx.IR_VERSION)}"):
        load_model(relu(ir_version=version))


def test_two_opsets_at_once():
    model = relu()
    model.opset_import.append(helper.make_opsetid("", 13))
    with pytest.raises(flexcomp.ModelError, match="several opsets at once, 13, 17"):
        load_model(model)


def test_no_outputs():
    with pytest.raises(flexcomp.ModelError, match="has no outputs"):
        load_model(of([helper.make_node("Relu", ["x"], ["y"])], [value("x", (1, 4))], []))


def test_old_opsets_are_simplified(caplog):
    """Shapes computed in a model of opset 6 are folded as in any other: nothing is said about onnxslim."""
    nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Reshape", ["w", "s"], ["v"])]
    nodes.append(helper.make_node("Mul", ["x", "v"], ["y"]))
    model = of(nodes, [value("x", (2, 3))], [value("y", (2, 3))], opset=6)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(6, "f4"), "w"))
    imported = load_model(model)
    assert not caplog.records
    assert "shape_of" not in imported.mod.script()
