"""One weight that several layers read is stored, loaded and kept once."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm_ffi
from onnx import TensorProto, helper, numpy_helper

import flexcomp
from flexcomp import runtime_ext
from flexcomp.device import guessed_profile, resolve_target
from flexcomp.program.program_bytes import PROGRAM_KIND
from flexcomp.program.weights_file import write_weights
from tests import uncompiled
from tests.by_hand import as_loads, encode_program, loads_of
from tests.conformance.verdict import UNOPTIMISED

READERS, WIDTH = 5, 128
RNG = np.random.default_rng(0)
MATRIX = (RNG.standard_normal((WIDTH, WIDTH)) / 11).astype("f4")
node = helper.make_node


def value(name: str, *shape: int, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, outputs, weights) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "shared", inputs, outputs, [numpy_helper.from_array(np.asarray(v), k) for k, v in weights.items()]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def layer(reader: int, weight: str) -> list[onnx.NodeProto]:
    return [node("MatMul", [f"h{reader}", weight], [f"m{reader}"]), node("Tanh", [f"m{reader}"], [f"h{reader + 1}"])]


def chain(weight_of=lambda reader: "w", **weights) -> onnx.ModelProto:
    """Layers one after the other, each with a weight."""
    nodes = []
    for reader in range(READERS):
        nodes += layer(reader, weight_of(reader))
    return model(nodes, [value("h0", 4, WIDTH)], [value(f"h{READERS}", 4, WIDTH)], weights or {"w": MATRIX})


def transposed() -> onnx.ModelProto:
    """Each layer transposes the weight for itself."""
    nodes = []
    for reader in range(READERS):
        nodes += [node("Transpose", ["w"], [f"t{reader}"]), *layer(reader, f"t{reader}")]
    return model(nodes, [value("h0", 4, WIDTH)], [value(f"h{READERS}", 4, WIDTH)], {"w": MATRIX})


def quantised() -> onnx.ModelProto:
    """Each layer dequantises it, with its channels' scales."""
    nodes, scales = [], ((1 + RNG.random(WIDTH)) / 1200).astype("f4")
    for reader in range(READERS):
        nodes += [node("DequantizeLinear", ["w", "s", "z"], [f"d{reader}"], axis=1), *layer(reader, f"d{reader}")]
    weights = {"w": RNG.integers(-127, 127, (WIDTH, WIDTH), "i1"), "s": scales, "z": np.zeros(WIDTH, "i1")}
    return model(nodes, [value("h0", 4, WIDTH)], [value(f"h{READERS}", 4, WIDTH)], weights)


def loop(inner: bool) -> onnx.ModelProto:
    """A loop of a fixed length, with the weight in its body or around it."""
    body = helper.make_graph(
        [node("MatMul", ["a", "w"], ["m"]), node("Tanh", ["m"], ["b"]), node("Identity", ["go"], ["on"])],
        "body", [value("i", kind=TensorProto.INT64), value("go", kind=TensorProto.BOOL), value("a", 4, WIDTH)],
        [value("on", kind=TensorProto.BOOL), value("b", 4, WIDTH)], [numpy_helper.from_array(MATRIX, "w")] if inner else [],
    )  # fmt: skip
    weights = {"n": np.int64(READERS)} | ({} if inner else {"w": MATRIX})
    return model([node("Loop", ["n", "", "x"], ["y"], body=body)], [value("x", 4, WIDTH)], [value("y", 4, WIDTH)], weights)


def heads() -> onnx.ModelProto:
    """A head over the levels of a pyramid, with batch norm behind its convolution."""
    sizes, nodes = (14, 13, 3), []
    for s in sizes:
        nodes += [node("Conv", [f"x{s}", "w", "b"], [f"c{s}"], pads=[1] * 4)]
        nodes += [node("BatchNormalization", [f"c{s}", "g", "d", "m", "v"], [f"n{s}"]), node("Relu", [f"n{s}"], [f"y{s}"])]
    weights = {"w": (RNG.standard_normal((64, 64, 3, 3)) / 24).astype("f4")}
    weights |= {k: (RNG.random(64) + 0.5).astype("f4") for k in "bgdmv"}
    return model(nodes, [value(f"x{s}", 1, 64, s, s) for s in sizes], [value(f"y{s}", 1, 64, s, s) for s in sizes], weights)


def levels(*kinds: str) -> onnx.ModelProto:
    """A head over the levels of a pyramid, each of which has a bias, a batch norm or a scale of its own, and nothing, or both."""
    nodes, weights = [], {"w": (RNG.standard_normal((64, 64, 3, 3)) / 24).astype("f4")}
    for i, kind in enumerate(kinds):
        last = f"c{i}"
        weights |= {f"{k}{i}": (RNG.random(64) + 0.5).astype("f4") for k in "bgdmv"} | {f"s{i}": np.float32(0.5 + i)}
        nodes += [node("Conv", [f"x{i}", "w", f"b{i}"] if "bias" in kind else [f"x{i}", "w"], [last], pads=[1] * 4)]
        if "norm" in kind:
            nodes += [node("BatchNormalization", [last, *(f"{k}{i}" for k in "gdmv")], [f"n{i}"])]
            last = f"n{i}"
        if "scale" in kind:
            nodes += [node("Mul", [last, f"s{i}"], [f"z{i}"])]
            last = f"z{i}"
        nodes += [node("Relu", [last], [f"y{i}"])]
    used = {name for n in nodes for name in n.input}
    sizes = {i: 14 - i for i in range(len(kinds))}
    ports = [[value(f"{port}{i}", 1, 64, s, s) for i, s in sizes.items()] for port in "xy"]
    return model(nodes, *ports, {name: array for name, array in weights.items() if name in used})


def towers() -> onnx.ModelProto:
    """Two convolutions with weights of their own, over three images in turn."""
    sizes, nodes = (28, 27, 26), []
    for s in sizes:
        nodes += [node("Conv", [f"x{s}", "w"], [f"a{s}"], pads=[1] * 4), node("Relu", [f"a{s}"], [f"b{s}"])]
        nodes += [node("Conv", [f"b{s}", "v"], [f"y{s}"], pads=[1] * 4)]
    weights = {name: (RNG.standard_normal((64, 64, 3, 3)) / 24).astype("f4") for name in "wv"}
    return model(nodes, [value(f"x{s}", 1, 64, s, s) for s in sizes], [value(f"y{s}", 1, 64, s, s) for s in sizes], weights)


def tied(numbers: int, by_columns: bool = False) -> onnx.ModelProto:
    """Rows of a table, and products with the table, whose last block overlaps the one before it.

    The file has the table, or its transpose, as ONNX Runtime GenAI's builder writes it.
    """
    rows = 4101
    table, columns = ("t", "w") if by_columns else ("w", "t")
    nodes = [node("Transpose", ["w"], ["t"]), node("Gather", [table, "ids"], ["e"])]
    nodes += [node("MatMul", ["e", "v"], ["m"]), node("Tanh", ["m"], ["h"]), node("MatMul", ["h", columns], ["y"])]
    shapes = {"w": (64, rows) if by_columns else (rows, 64), "v": (64, 64)}
    weights = {name: (RNG.standard_normal(shape) / 8).astype("f4") for name, shape in shapes.items()}
    outputs = [value("e", 1, numbers, 64), value("y", 1, numbers, rows)]
    return model(nodes, [value("ids", 1, numbers, kind=TensorProto.INT64)], outputs, weights)


MODELS = {
    "chain": chain,
    "equal initialisers": lambda: chain("w{}".format, **{f"w{i}": MATRIX for i in range(READERS)}),
    "transposed": transposed,
    "quantised": quantised,
    "loop, weight around it": lambda: loop(False),
    "loop, weight in its body": lambda: loop(True),
    "heads": heads,
    "towers": towers,
    "tied": lambda: tied(3),
    "tied, 17 rows": lambda: tied(17),
    "tied, by columns": lambda: tied(3, by_columns=True),
    "a bias for each level": lambda: levels("bias", "bias", ""),
    "a batch norm for each level": lambda: levels("bias norm", "norm", "norm scale"),
}
SLOW = replace(guessed_profile(resolve_target("llvm -mcpu=x86-64-v3")), storage_bytes_per_s=2e7)


@pytest.fixture(scope="module", params=MODELS)
def network(request) -> tuple[onnx.ModelProto, flexcomp.Artifact]:
    made = MODELS[request.param]()
    return made, flexcomp.build(made, UNOPTIMISED, threads=1, probe=False, profile=SLOW if request.param == "towers" else None)


def distinct_nbytes(made: onnx.ModelProto) -> int:
    """Bytes of the different initialisers of a model and of the graphs in it."""
    graphs = [made.graph, *(a.g for n in made.graph.node for a in n.attribute if a.HasField("g"))]
    return sum(map(len, {numpy_helper.to_array(tensor).tobytes() for graph in graphs for tensor in graph.initializer}))


def drawn(tensor) -> np.ndarray:
    """Numbers, or indices of rows, of which one is the last."""
    extents = [d.dim_value for d in tensor.shape.dim]
    if tensor.elem_type == TensorProto.INT64:
        return np.where(np.arange(extents[-1]) == 1, 4100, RNG.integers(0, 4101, extents))
    return RNG.standard_normal(extents).astype("f4")


def test_it_lies_in_the_file_once(network):
    made, artifact = network
    assert artifact.program.weights_nbytes <= 1.05 * distinct_nbytes(made) + 4096


def test_outputs_are_right_in_every_budget(network, tmp_path):
    made, artifact = network
    feeds = {i.name: drawn(i.type.tensor_type) for i in made.graph.input}
    wanted = onnxruntime.InferenceSession(made.SerializeToString()).run(None, feeds)
    artifact.export_library(tmp_path / "n.so")
    with flexcomp.load(tmp_path / "n.so") as session:
        for rung in artifact.program.rungs:
            session.set_budget(rung.budget)
            for _ in range(2):
                found = session.run(feeds)
                for port, expected in zip(made.graph.output, wanted, strict=True):
                    np.testing.assert_allclose(found[port.name], expected, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("network", ["towers"], indirect=True)
def test_stored_weights_are_kept_once_though_they_are_prepared_for_every_reader(network):
    program = network[1].program
    several = False
    for rung in program.rungs:
        kept = [load for load in loads_of(program, rung) if load.kept]
        once = {(load.target, load.source): load.nbytes for load in kept}
        several |= len(once) < len(kept)
        places = [(load.target, load.nbytes) for load in kept]
        others = sum(program.place_of(one)[1] for one in rung.tapes.filled if one.brought not in places)
        assert program.pinned_nbytes(rung) == sum(once.values()) + others
    assert several


def test_it_is_kept_once(network):
    """With everything resident, and wherever there is room for it besides what the smallest plan needs."""
    made, artifact = network
    program, rungs = artifact.program, artifact.program.rungs
    places: dict[object, set[int]] = {}
    for step in rungs[-1].steps:
        if step.weights_at >= 0:
            places.setdefault(program.layers[step.layer].weights, set()).add(step.weights_at)
    assert all(len(at) == 1 for at in places.values())
    assert len(rungs[-1].tapes.filled) < len(rungs[-1].steps)
    if not any(weights.preparation for weights in places):  # in one form
        most = 1.05 * distinct_nbytes(made) + 4 * 4096
        assert program.pinned_nbytes(rungs[-1]) <= most
        assert all(not program.streamed_nbytes(rung) for rung in rungs if rung.budget >= rungs[0].budget + most)


def test_the_runtime_refuses_what_other_layers_do_not_have(network, tmp_path):
    """A step may use what a load brought for another layer only if the weights are the same: same bytes, prepared alike."""
    program = as_loads(network[1].program)
    digest = write_weights(tmp_path / "n.weights", network[1].weights, data_nbytes=program.weights_nbytes)
    runtime_ext.register()
    create = tvm_ffi.get_global_func(PROGRAM_KIND + ".create")
    create(encode_program(program, digest))
    readers: dict[object, list[int]] = {}  # layers with the same weights, of those with everything resident
    for step in program.rungs[-1].steps:
        if program.layers[step.layer].weights:
            readers.setdefault(program.layers[step.layer].weights, []).append(step.layer)
    for weights, layers in readers.items():
        changes = [{"offset": weights.offset + 64 if weights.offset < 64 else weights.offset - 64}]
        changes += [{"preparation": replace(weights.preparation, kernel="other")}] if weights.preparation else []
        for change in changes if len(layers) > 1 else ():
            other = replace(program.layers[layers[-1]], weights=replace(weights, **change))
            broken = (*program.layers[: layers[-1]], other, *program.layers[layers[-1] + 1 :])
            with pytest.raises(RuntimeError, match=r"brings its weights|reads less than|lie outside the file"):
                create(encode_program(replace(program, layers=broken), digest))
    assert any(len(layers) > 1 for layers in readers.values())


def test_it_is_read_once_while_its_readers_follow_each_other():
    """Where nothing may stay, and there is room for it, a weight is still loaded once for readers in a row."""
    made = chain()
    artifact = uncompiled.artifact(made, threads=1, probe=False, kernels="smallest", strategy="without_pinning")
    rung = artifact.program.rungs[-1]
    assert artifact.program.streamed_nbytes(rung) <= 1.05 * MATRIX.nbytes + 4096
    assert not artifact.program.pinned_nbytes(rung)


def test_its_readers_have_one_type():
    """Whatever error is allowed: a type that one reader might have alone would be a second form."""
    artifact = flexcomp.build(chain(), threads=1, probe=False, kernels="smallest", weights="auto", max_error=0.02)
    assert len({layer.weights for layer in artifact.program.layers}) == 1


def test_weights_that_differ_in_a_bit_are_two():
    other = MATRIX.copy()
    other[7, 9] = -other[7, 9]
    made = chain(lambda reader: "wv"[reader % 2], w=MATRIX, v=other)
    artifact = uncompiled.artifact(made, threads=1, probe=False, kernels="smallest")
    assert 2 * MATRIX.nbytes <= artifact.program.weights_nbytes <= 2.1 * MATRIX.nbytes


def test_second_forms_are_shared_too():
    sizes = (28, 14)
    nodes = [node("Conv", [f"x{s}", "w"], [f"y{s}"], pads=[1] * 4) for s in sizes]
    weights = {"w": (RNG.standard_normal((64, 64, 3, 3)) / 24).astype("f4")}
    made = model(nodes, [value(f"x{s}", 1, 64, s, s) for s in sizes], [value(f"y{s}", 1, 64, s, s) for s in sizes], weights)
    artifact = uncompiled.artifact(made, "llvm -mcpu=x86-64-v3", threads=1, probe=False, store="prepared")
    names = [name for name, *_ in artifact.weights]
    weights = [layer.weights for layer in artifact.program.layers if layer.weights]
    assert len(names) == len({(one.offset, one.nbytes) for one in weights}) < len(weights)


@pytest.mark.parametrize(("weights", "share"), [("int8", 0.29), ("int4", 0.17)])
def test_a_table_by_columns_lies_in_the_file_once_in_fewer_bits(weights, share):
    made = tied(3, by_columns=True)
    artifact = uncompiled.artifact(made, threads=1, probe=False, weights=weights)
    assert artifact.program.weights_nbytes <= share * distinct_nbytes(made)
