"""Large weights are kept out of the ONNX model, and stay what they are."""

from __future__ import annotations

import tracemalloc

import numpy as np
import onnx
import onnxslim
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from flexcomp.deferred import Deferred, told_by
from flexcomp.errors import ModelError
from flexcomp.frontend import load_shapes, onnx_file
from flexcomp.frontend.file_bytes import FileBytes
from flexcomp.frontend.inference import infer_shapes
from flexcomp.frontend.onnx_model import OnnxModel, graph_inputs, read_onnx, simplify_onnx
from tests.operators import blocks

WIDTH = 600  # a matrix of that width is large


def model(listed: bool = False) -> onnx.ModelProto:
    """y = (x W + b) V with W and V large; V is read through two transpositions, which simplification removes."""
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((WIDTH, WIDTH)).astype("f4") for name in "WV"}
    weights["b"] = rng.standard_normal(WIDTH).astype("f4")
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["s"]),
        helper.make_node("Transpose", ["V"], ["t"], perm=[1, 0]),
        helper.make_node("Transpose", ["t"], ["u"], perm=[1, 0]),
        helper.make_node("MatMul", ["s", "u"], ["y"]),
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, WIDTH))]
    if listed:
        inputs += [helper.make_tensor_value_info(t.name, TensorProto.FLOAT, t.dims) for t in tensors]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, WIDTH))]
    graph = helper.make_graph(nodes, "network", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(network: onnx.ModelProto, x: np.ndarray, large: dict[str, np.ndarray]) -> np.ndarray:
    return ReferenceEvaluator(network).run(None, {"x": x, **large})[0]


def simplified(source) -> OnnxModel:
    return simplify_onnx(read_onnx(source), {})


def test_inference_sees_no_weights(monkeypatch):
    """Nor are these lost: in the model, in what is found, and after an error."""
    seen = []
    of_onnx = onnx.shape_inference.infer_shapes

    def spy(given, **options):
        seen.append(given.ByteSize())
        return of_onnx(given, **options)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", spy)
    given = model()
    before = given.SerializeToString()
    found = infer_shapes(given)
    assert given.SerializeToString() == before
    assert [one.raw_data for one in found.graph.initializer] == [one.raw_data for one in given.graph.initializer]
    assert {info.name for info in found.graph.value_info} == {"p", "s", "t", "u"}
    assert max(seen) < 4 * WIDTH * WIDTH
    given.graph.input[0].type.tensor_type.shape.dim[1].dim_value = WIDTH + 1
    with pytest.raises(onnx.shape_inference.InferenceError, match="MatMul"):
        infer_shapes(given, strict_mode=True)
    assert [one.raw_data for one in given.graph.initializer] == [one.raw_data for one in found.graph.initializer]


@pytest.mark.parametrize("listed", [False, True])
def test_simplification_sees_small_weights_only(monkeypatch, listed):
    seen = []
    slim = onnxslim.slim

    def spy(given, **options):
        seen.extend(int(np.prod(t.dims)) for t in given.graph.initializer)
        return slim(given, **options)

    monkeypatch.setattr(onnxslim, "slim", spy)
    x = np.random.default_rng(1).standard_normal((2, WIDTH)).astype("f4")
    expected = run(model(listed), x, {})
    simple = simplified(model(listed))
    assert seen == [WIDTH]
    assert [i.name for i in simple.proto.graph.input] == ["x", "W", "V"]
    assert [i.name for i in graph_inputs(simple.proto.graph, simple.large)] == ["x"]
    assert {name: array.shape for name, array in simple.large.items()} == {"W": (WIDTH, WIDTH), "V": (WIDTH, WIDTH)}
    assert all(node.op_type != "Transpose" for node in simple.proto.graph.node)
    np.testing.assert_allclose(run(simple.proto, x, simple.large), expected, rtol=1e-5, atol=1e-3)


def test_weights_come_back_where_simplification_fails(monkeypatch):
    def fail(_):
        raise RuntimeError("no")

    monkeypatch.setattr(onnxslim, "slim", fail)
    x = np.ones((2, WIDTH), "f4")
    simple = simplified(model())
    np.testing.assert_allclose(run(simple.proto, x, simple.large), run(model(), x, {}), rtol=1e-5, atol=1e-3)


def values(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """The same tensor, its numbers not as raw bytes."""
    return helper.make_tensor(tensor.name, tensor.data_type, tensor.dims, numpy_helper.to_array(tensor).reshape(-1))


FORMS = {
    "raw": lambda network: network,
    "numbers": lambda network: with_initialisers(network, map(values, network.graph.initializer)),
    "in 16 bits": lambda network: with_initialisers(network, map(halved, network.graph.initializer)),
}


def halved(tensor: onnx.TensorProto) -> onnx.TensorProto:
    return numpy_helper.from_array(numpy_helper.to_array(tensor).astype("f2"), tensor.name)


def with_initialisers(network: onnx.ModelProto, tensors) -> onnx.ModelProto:
    tensors = list(tensors)
    del network.graph.initializer[:]
    network.graph.initializer.extend(tensors)
    return network


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_file_and_a_model_in_memory_are_read_alike(form, external, tmp_path):
    network = FORMS[form](model())
    expected = {t.name: numpy_helper.to_array(t) for t in network.graph.initializer}
    # saving external data takes it out of the model
    onnx.save(FORMS[form](model()), tmp_path / "n.onnx", save_as_external_data=external, size_threshold=1000)
    given = network.SerializeToString()
    for source in (network, tmp_path / "n.onnx"):
        read = read_onnx(source)
        assert [t.name for t in read.proto.graph.initializer] == ["b"]
        assert {t.name: len(t.raw_data) for t in read.proto.graph.initializer}["b"] in (0, expected["b"].nbytes)
        assert list(read.large) == ["W", "V"]
        for name, array in read.large.items():
            np.testing.assert_array_equal(array, expected[name])
            assert array.dtype == expected[name].dtype
    assert network.SerializeToString() == given, "a model that is given stays as it is"


def test_what_the_parser_sees_of_a_file_has_no_large_weights(tmp_path, monkeypatch):
    network = model()
    network.doc_string, network.producer_version = "said " * 60, "1"
    onnx.save(network, tmp_path / "n.onnx")
    seen = []
    parse = onnx.load_model_from_string
    monkeypatch.setattr(onnx, "load_model_from_string", lambda text: seen.append(len(text)) or parse(text))
    read, raw = onnx_file.parse(tmp_path / "n.onnx", 1000 * 1000)
    (nbytes,) = seen
    assert nbytes < 5000
    assert {position: data.nbytes for position, data in raw.items()} == {0: 4 * WIDTH**2, 1: 4 * WIDTH**2}
    for position, data in raw.items():
        read.graph.initializer[position].raw_data = np.asarray(data).tobytes()
    assert read.SerializeToString(deterministic=True) == network.SerializeToString(deterministic=True)


def test_files_that_only_protobuf_understands_are_left_to_it(tmp_path):
    """A graph in two parts, which protobuf merges."""
    network = model()
    second = onnx.ModelProto()
    second.graph.doc_string = "the rest"
    (tmp_path / "n.onnx").write_bytes(network.SerializeToString() + second.SerializeToString())
    read, raw = onnx_file.parse(tmp_path / "n.onnx", 1000)
    network.MergeFrom(second)
    assert not raw and read == network


@pytest.mark.parametrize("part", [1, 10, 100, 100_000])
def test_a_file_that_is_cut_off_is_refused(part, tmp_path):
    raw = model().SerializeToString()
    (tmp_path / "n.onnx").write_bytes(raw[:-part])
    with pytest.raises(ModelError, match="is not an ONNX model, or it is damaged"):
        read_onnx(tmp_path / "n.onnx")


@pytest.mark.parametrize("where", ["file", "memory"])
@pytest.mark.parametrize("fault", ["short", "twice"])
def test_large_weights_that_are_wrong_are_refused(fault, where, tmp_path):
    network = model()
    weight = network.graph.initializer[0]
    if fault == "short":
        weight.raw_data = weight.raw_data[:-4]
    else:
        network.graph.initializer.append(weight)
    onnx.save(network, tmp_path / "n.onnx")
    with pytest.raises(ModelError, match="is not a valid ONNX model"):
        read_onnx(network if where == "memory" else tmp_path / "n.onnx")


def in_blocks() -> onnx.ModelProto:
    """Rows of a table, a product with the same numbers, and one with those of a type of 4 bits; all have 32 blocks in a row."""
    rng, rows = np.random.default_rng(0), 8192  # times 32 blocks: as many scales as a large weight has elements
    scales = rng.uniform(0.01, 0.03, rows * 32).astype("f4")
    weights = {"w": rng.integers(0, 256, (rows, 32, 16)).astype("u1"), "s": scales, "t": scales.reshape(rows, 32)}
    weights["table"] = weights["w"].reshape(rows, -1)
    weights["signed"] = helper.make_tensor("signed", TensorProto.INT4, (rows, 1024), weights["w"].tobytes(), raw=True)
    sizes = {"bits": 4, "block_size": 32, "domain": "com.microsoft"}
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64),
        helper.make_node("GatherBlockQuantized", ["table", "i", "t"], ["g"], quantize_axis=1, **sizes),
        helper.make_node("MatMulNBits", ["g", "w", "s"], ["m"], N=rows, K=1024, **sizes),
        helper.make_node("DequantizeLinear", ["signed", "t"], ["d"], axis=1, block_size=32),
        helper.make_node("MatMul", ["m", "d"], ["y"]),
    ]
    return blocks.graph(nodes, np.zeros(1, "f4"), weights)


@pytest.mark.parametrize("kept", ["in memory", "in the file", "apart"])
def test_large_weights_in_blocks_are_set_aside(tmp_path, monkeypatch, kept):
    """As of a decoder, which has hundreds: onnxslim, which compares each input with each tensor, sees one."""
    seen, slim = [], onnxslim.slim
    monkeypatch.setattr(onnxslim, "slim", lambda given, **options: [seen.extend(given.graph.input), slim(given, **options)][1])
    model, path = in_blocks(), tmp_path / "model.onnx"
    if kept != "in memory":
        onnx.save(in_blocks(), path, save_as_external_data=kept == "apart", location="data", size_threshold=0)
    simple = simplified(model if kept == "in memory" else path)
    assert simple.proto.ByteSize() < 1 << 16
    assert len(seen) == 2 and seen[0].name == "x"
    assert [one.name for one in simple.proto.graph.input] == ["x", *simple.large]
    assert [one.domain for one in simple.proto.opset_import] == ["", "com.microsoft"]
    readers = [node for node in simple.proto.graph.node if node.op_type == "DequantizeLinear"]
    packed = numpy_helper.to_array(next(tensor for tensor in model.graph.initializer if tensor.name == "table"))
    numbers = np.stack([packed & 15, packed >> 4], -1).reshape(8192, 1024)
    signed = np.where(numbers < 8, numbers.astype("i1"), numbers.astype("i1") - 16)
    assert len(readers) == 3
    for node in readers:
        np.testing.assert_array_equal(simple.large[node.input[0]], signed if node.output[0] == "d" else numbers)
        assert simple.large[node.input[1]].size == 8192 * 32


def test_large_integers_that_others_read_stay(tmp_path):
    """Passes over shapes and indices know them."""
    model = in_blocks()
    model.graph.node.append(helper.make_node("Cast", ["table"], ["all"], to=TensorProto.FLOAT))
    model.graph.output.append(helper.make_tensor_value_info("all", TensorProto.FLOAT, None))
    large = read_onnx(model).large
    assert "table" not in large and {"w", "s", "t", "signed"} <= {*large}


@pytest.mark.parametrize("kept", ["in the file", "apart"])
def test_shapes_hold_the_same_weights_and_importing_makes_few_of_them(tmp_path, monkeypatch, kept):
    path, shapes = tmp_path / "model.onnx", [{"x": (3,)}, {"x": (1,)}, {"x": (2,)}]
    onnx.save(in_blocks(), path, save_as_external_data=kept == "apart", location="data", size_threshold=0)
    read, reader = [], FileBytes.read
    monkeypatch.setattr(FileBytes, "read", lambda self, begin, nbytes: [read.append(nbytes), reader(self, begin, nbytes)][1])
    tracemalloc.start()
    imported = load_shapes(path, shapes)
    first, count = next(imported), len(read)
    others = list(imported)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0 < count == len(read), "what the first shape has read is known to the others"
    large = {told_by(array): array for array in first.weights if isinstance(array, Deferred)}
    assert len(large) == 3, "two tables have the same numbers, and all have the same scales"
    for other in others:
        assert {told_by(array) for array in other.weights if isinstance(array, Deferred)} == {*large}
    assert peak < sum(array.nbytes for array in large.values()) / 2, "of the bytes that all of them have"
    numbers = [np.asarray(array) for array in large.values() if array.dtype == np.uint8]
    packed = numpy_helper.to_array(in_blocks().graph.initializer[0]).reshape(8192, -1)
    assert any(np.array_equal(one, np.stack([packed & 15, packed >> 4], -1).reshape(8192, -1)) for one in numbers)


def test_rows_of_large_weights_are_those_of_the_whole(tmp_path):
    """Of all kinds: in a file or in memory, as they are, of 4 bits with a sign, and unpacked; any rows and elements."""
    model = in_blocks()
    onnx.save(in_blocks(), tmp_path / "model.onnx")
    for source in (model, tmp_path / "model.onnx"):
        large = {name: array for name, array in simplified(source).large.items() if isinstance(array, Deferred)}
        assert len(large) >= 4, "integers of three, and scales"
        for name, array in large.items():
            whole, slices, elements = np.asarray(array), array.slices(), array.elements()
            for first, end in ((0, 1), (3, 8), (array.shape[0] - 1, array.shape[0])):
                np.testing.assert_array_equal(slices(first, end), whole[first:end], err_msg=name)
            for first, end in ((0, 1), (5, 6), (1021, 3077), (array.size - 1, array.size)):
                np.testing.assert_array_equal(elements(first, end), whole.reshape(-1)[first:end], err_msg=name)
