"""How the weights of a network are stored, next to its initialisers."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from benchmarks.lab.stored import distinct_nbytes, stored

MATRIX = (np.random.default_rng(0).standard_normal((256, 256)) / 16).astype("f4")


def model(shapes: list[tuple[int, int]], *, constant: bool = False):
    """One weight and readers that transpose it, or not; or a table of constants."""
    info, nodes = helper.make_tensor_value_info, []
    for reader, transposed in enumerate(shapes):
        nodes += [helper.make_node("Transpose", ["w"], [f"t{reader}"])] if transposed else []
        nodes += [helper.make_node("MatMul", [f"x{reader}", f"t{reader}" if transposed else "w"], [f"m{reader}"])]
        nodes += [helper.make_node("Tanh", [f"m{reader}"], [f"x{reader + 1}"])]
    weights = [numpy_helper.from_array(MATRIX, name) for name in ("w", "unused")]
    if constant:
        nodes.insert(0, helper.make_node("Constant", [], ["w"], value=weights.pop(0)))
    ports = [info("x0", TensorProto.FLOAT, (4, 256))], [info(f"x{len(shapes)}", TensorProto.FLOAT, (4, 256))]
    graph = helper.make_graph(nodes, "stored", *ports, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def test_equal_tensors_count_once():
    assert distinct_nbytes(model([False])) == distinct_nbytes(model([False], constant=True)) == MATRIX.nbytes


def test_one_form_is_stored_and_read_once():
    found = stored(model([False] * 3), kernels="smallest")
    assert found.once and found.initialisers == MATRIX.nbytes <= found.file <= found.read <= 1.02 * MATRIX.nbytes


def test_two_forms_are_more():
    found = stored(model([False, True]), kernels="smallest")
    assert not found.once and found.file >= 2 * MATRIX.nbytes
