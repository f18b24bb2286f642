"""Loops and branches whose course is known are written out; others are refused by name."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import flexcomp
from flexcomp.errors import UnsupportedModelError
from flexcomp.frontend.allowance import MOST_NODES, Allowance
from flexcomp.frontend.control_flow import write_out


def info(name: str, shape=None, element=TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)


def network(node: onnx.NodeProto, inputs, outputs, weights=None, opset=17) -> onnx.ModelProto:
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in (weights or {}).items()]
    graph = helper.make_graph([node], "network", inputs, outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def check(model: onnx.ModelProto, folder, **inputs: np.ndarray) -> None:
    """Fail unless flexcomp answers what ONNX Runtime does."""
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)
    flexcomp.build(model, threads=1).export_library(folder / "network.so")
    with flexcomp.load(folder / "network.so") as session:
        found = session.run(inputs)
    for got, want in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def scan(**attributes) -> onnx.NodeProto:
    """h ← 2 h + x, and h itself, for each x."""
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["h", "two"], ["t"]),
            helper.make_node("Add", ["t", "x"], ["sum"]),
            helper.make_node("Identity", ["sum"], ["each"]),
        ],
        "body", [info("h", (3,)), info("x", (3,))], [info("sum", (3,)), info("each", (3,))],
        [numpy_helper.from_array(np.float32([2]), "two")],
    )  # fmt: skip
    return helper.make_node(
        "Scan", ["h0", "xs"], ["last", "all"], name="scan", num_scan_inputs=1, body=body, **attributes
    )


@pytest.mark.parametrize(
    ("attributes", "shape", "opset"),
    [
        ({}, (4, 3), 17),
        ({}, (4, 3), 11),
        ({"scan_input_directions": [1]}, (4, 3), 17),
        ({"scan_output_directions": [1]}, (4, 3), 17),
        ({"scan_input_axes": [1], "scan_output_axes": [1]}, (3, 5), 17),
    ],
)
def test_scan(attributes, shape, opset, tmp_path):
    inputs, outputs = [info("h0", (3,)), info("xs", shape)], [info("last", (3,)), info("all", (None, None))]
    model = network(scan(**attributes), inputs, outputs, opset=opset)
    rng = np.random.default_rng(0)
    check(model, tmp_path, h0=rng.standard_normal(3).astype("f4"), xs=rng.standard_normal(shape).astype("f4"))


@pytest.mark.parametrize("directions", [[0], [1]])
def test_a_scan_over_batches_as_opset_8_has_it(directions, tmp_path):
    node = scan(directions=directions)
    node.input.insert(0, "")
    outputs = [info("last", (2, 3)), info("all", (2, 4, 3))]
    model = network(node, [info("h0", (2, 3)), info("xs", (2, 4, 3))], outputs, opset=8)
    rng = np.random.default_rng(1)
    check(model, tmp_path, h0=rng.standard_normal((2, 3)).astype("f4"), xs=rng.standard_normal((2, 4, 3)).astype("f4"))


def test_lengths_of_a_scan_of_opset_8_are_refused_by_name():
    node = scan()
    node.input.insert(0, "lengths")
    inputs = [info("lengths", (2,), TensorProto.INT64), info("h0", (2, 3)), info("xs", (2, 4, 3))]
    model = network(node, inputs, [info("last", (2, 3)), info("all", (2, 4, 3))], opset=8)
    with pytest.raises(UnsupportedModelError, match=r"node 'scan' \(Scan\): it cannot be known"):
        flexcomp.build(model, threads=1)


def test_a_scan_that_would_become_too_large_is_refused_with_its_numbers():
    steps = MOST_NODES // 3 + 1
    model = network(scan(), [info("h0", (3,)), info("xs", (steps, 3))], [info("last", (3,)), info("all", (steps, 3))])
    with pytest.raises(UnsupportedModelError, match=rf"node 'scan' \(Scan\): {steps} iterations of 3 operators"):
        flexcomp.build(model, threads=1)


def loop(*, breaks: bool) -> onnx.NodeProto:
    """v ← v + x · i, where x belongs to the graph around the loop."""
    body = helper.make_graph(
        [
            helper.make_node("Cast", ["i"], ["number"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["x", "number"], ["t"]),
            helper.make_node("Add", ["v", "t"], ["w"]),
            helper.make_node("ReduceMax", ["w"], ["most"], keepdims=0),
            helper.make_node("Less", ["most", "limit"], ["small"]),
            helper.make_node("Identity", ["small" if breaks else "going"], ["on"]),
        ],
        "body",
        [info("i", (), TensorProto.INT64), info("going", (), TensorProto.BOOL), info("v", (3,))],
        [info("on", (), TensorProto.BOOL), info("w", (3,)), info("t", (3,))],
        [numpy_helper.from_array(np.float32(100), "limit")],
    )
    return helper.make_node("Loop", ["count", "start", "x"], ["last", "all"], name="loop", body=body)


def test_loop_with_a_constant_count_and_a_tensor_from_around_it(tmp_path):
    weights = {"count": np.int64(4), "start": np.bool_(True)}
    model = network(loop(breaks=False), [info("x", (3,))], [info("last", (3,)), info("all", (4, 3))], weights)
    check(model, tmp_path, x=np.float32([1, -2, 3]))


def test_a_loop_that_can_break_is_refused_by_name():
    weights = {"count": np.int64(4), "start": np.bool_(True)}
    model = network(loop(breaks=True), [info("x", (3,))], [info("last", (3,)), info("all", (4, 3))], weights)
    with pytest.raises(UnsupportedModelError, match=r"node 'loop' \(Loop\): how often it runs depends"):
        flexcomp.build(model, threads=1)


@pytest.mark.parametrize("condition", [True, False])
def test_if_with_a_constant_condition(condition, tmp_path):
    branches = {
        branch: helper.make_graph([helper.make_node(kind, ["x"], ["r"])], branch, [], [info("r", (2, 3))])
        for branch, kind in (("then_branch", "Relu"), ("else_branch", "Neg"))
    }
    node = helper.make_node("If", ["condition"], ["y"], name="if", **branches)
    model = network(node, [info("x", (2, 3))], [info("y", (2, 3))], {"condition": np.bool_(condition)})
    check(model, tmp_path, x=np.float32([[1, -2, 3], [-4, 5, -6]]))


def scaled(rows: int = 2) -> onnx.ModelProto:
    """y = Relu(x) · sr / 8000 if sr = 16000, else Neg(x): a branch with an If of its own, on another input."""
    inner = {
        way: helper.make_graph([helper.make_node(kind, ["relu"], ["r"])], way, [], [info("r", (rows, 3))])
        for way, kind in (("then_branch", "Identity"), ("else_branch", "Exp"))
    }
    first = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["relu"]), helper.make_node("If", ["plain"], ["inner"], **inner),
            helper.make_node("Mul", ["inner", "two"], ["scaled"]),
        ],
        "first", [], [info("scaled", (rows, 3))], [numpy_helper.from_array(np.float32(2), "two")],
    )  # fmt: skip
    second = helper.make_graph([helper.make_node("Neg", ["x"], ["negative"])], "second", [], [info("negative", (rows, 3))])
    nodes = [
        helper.make_node("Equal", ["sr", "rate"], ["is_rate"]),
        helper.make_node("If", ["is_rate"], ["y"], name="if", then_branch=first, else_branch=second),
    ]
    inputs = [info("x", (2, 3)), info("sr", (), TensorProto.INT64), info("plain", (1,), TensorProto.BOOL)]
    model = network(nodes[1], inputs, [info("y", (2, 3))], {"rate": np.int64(16000)})
    model.graph.node.insert(0, nodes[0])
    return model


def test_both_branches_run_where_inputs_choose(tmp_path):
    model, x = scaled(), np.float32([[1, -2, 3], [-4, 5, -6]])
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    with flexcomp.build(model, threads=1).session() as session:
        for sr, plain in ((16000, True), (16000, False), (8000, True)):
            given = {"x": x, "sr": np.array(sr), "plain": np.array([plain])}
            np.testing.assert_allclose(session.run(given)["y"], reference.run(None, given)[0], rtol=1e-5)


def rows_of_a_table() -> onnx.ModelProto:
    """Row i of a table where c, in an If of its own the one after next where d; x where not c."""

    def branch(nodes: list, result: str) -> onnx.GraphProto:
        return helper.make_graph(nodes, result, [], [info(result, (1, 3))])

    one = branch([helper.make_node("Gather", ["table", "i"], ["a"], name="one")], "a")
    after = [helper.make_node("Add", ["i", "two"], ["j"]), helper.make_node("Gather", ["table", "j"], ["b"], name="after")]
    inner = helper.make_node("If", ["d"], ["row"], name="inner", then_branch=branch(after, "b"), else_branch=one)
    rest = branch([helper.make_node("Identity", ["x"], ["e"])], "e")
    node = helper.make_node("If", ["c"], ["y"], name="if", then_branch=branch([inner], "row"), else_branch=rest)
    inputs = [info("x", (1, 3)), info("i", (1,), TensorProto.INT64), *(info(name, (), TensorProto.BOOL) for name in "cd")]
    weights = {"table": np.arange(15, dtype="f4").reshape(5, 3), "two": np.int64([2])}
    return network(node, inputs, [info("y", (1, 3))], weights)


def test_indices_of_a_branch_that_is_not_chosen_may_be_anything():
    model, x = rows_of_a_table(), np.float32([[1, -2, 3]])
    reference = onnxruntime.InferenceSession(model.SerializeToString())

    def given(i: int, c: bool, d: bool) -> dict[str, np.ndarray]:
        return {"x": x, "i": np.int64([i]), "c": np.array(c), "d": np.array(d)}

    with flexcomp.build(model, threads=1).session() as session:
        for case in ((2, True, True), (2, True, False), (4, True, False), (9, False, True), (9, False, False), (-6, True, True)):
            wanted = reference.run(None, given(*case))[0]
            np.testing.assert_array_equal(session.run(given(*case))["y"], wanted)
        with pytest.raises(flexcomp.InputError, match=r"row/then/after' \(Gather\): index 6 at position 0"):
            session.run(given(4, True, True))
        with pytest.raises(flexcomp.InputError, match=r"row/else/one' \(Gather\): index 9"):
            session.run(given(9, True, False))


@pytest.mark.parametrize("sr", [16000, 8000])
def test_a_value_given_at_build_chooses_the_branch(sr):
    """Inputs that only the other branch reads stay inputs: callers may give them."""
    model, x = scaled(), np.float32([[1, -2, 3], [-4, 5, -6]])
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    given = {"x": x, "plain": np.array([False])}
    wanted = reference.run(None, {**given, "sr": np.array(sr)})[0]
    artifact = flexcomp.build(model, threads=1, input_values={"sr": sr})
    assert ("relu" in str([layer.op for layer in artifact.program.layers])) == (sr == 16000)
    with artifact.session() as session:
        assert [port.name for port in session.inputs] == ["x", "plain"]
        np.testing.assert_allclose(session.run(given)["y"], wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"rate": 8000}, r"input_values names 'rate', but the model's inputs are 'x', 'sr', 'plain'"),
        ({"sr": 0.5}, r"input_values\['sr'\] is 0.5, and the input holds int64"),
        ({"sr": [16000]}, r"input_values\['sr'\] has the shape \(1,\), and the input has \(\)"),
        ({"sr": "16k"}, r"input_values\['sr'\] must be a number"),
        ([16000], r"input_values must be a dict"),
    ],
)
def test_values_that_inputs_cannot_have_are_refused(values, said):
    with pytest.raises(flexcomp.InputError, match=said):
        flexcomp.build(scaled(), threads=1, input_values=values)


def test_a_loop_whose_count_is_a_length(tmp_path):
    """One iteration for each row, whatever the rows are in a shape."""
    nodes = [
        helper.make_node("Shape", ["x"], ["all"], start=0, end=1), helper.make_node("Squeeze", ["all"], ["count"]),
    ]  # fmt: skip
    body = helper.make_graph(
        [helper.make_node("Gather", ["x", "i"], ["row"]), helper.make_node("Add", ["v", "row"], ["w"]),
         helper.make_node("Identity", ["going"], ["on"])],
        "body", [info("i", (), TensorProto.INT64), info("going", (), TensorProto.BOOL), info("v", (3,))],
        [info("on", (), TensorProto.BOOL), info("w", (3,))],
    )  # fmt: skip
    node = helper.make_node("Loop", ["count", "", "zero"], ["y"], name="loop", body=body)
    model = network(node, [info("x", ("n", 3))], [info("y", (3,))], {"zero": np.zeros(3, "f4")})
    for one in reversed(nodes):
        model.graph.node.insert(0, one)
    artifact = flexcomp.build(model, threads=1, input_shapes={"x": ("n", 3)}, shapes={"n": [2, 5]})
    with artifact.session() as session:
        for n in (5, 2):
            x = np.random.default_rng(n).standard_normal((n, 3)).astype("f4")
            np.testing.assert_allclose(session.run(x)["y"], x.sum(0), rtol=1e-5, atol=1e-6)


def test_if_on_an_input_is_left_as_it_is():
    branch = helper.make_graph([helper.make_node("Relu", ["x"], ["r"])], "branch", [], [info("r", (2,))])
    node = helper.make_node("If", ["condition"], ["y"], then_branch=branch, else_branch=branch)
    model = network(node, [info("condition", (), TensorProto.BOOL), info("x", (2,))], [info("y", (2,))])
    assert not write_out(model, Allowance()) and [n.op_type for n in model.graph.node] == ["If"]


def counting(limit: int) -> onnx.NodeProto:
    """v ← v + x until a counter, which begins at 0, reaches `limit`; only the counter's condition ends it."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["v", "x"], ["w"]),
            helper.make_node("Add", ["n", "one"], ["next"]),
            helper.make_node("Less", ["next", "limit"], ["on"]),
            helper.make_node("Neg", ["w"], ["t"]),
        ],
        "body",
        [info("i", (), TensorProto.INT64), info("going", (), TensorProto.BOOL)]
        + [info("n", (), TensorProto.INT64), info("v", (3,))],
        [info("on", (), TensorProto.BOOL), info("next", (), TensorProto.INT64), info("w", (3,)), info("t", (3,))],
        [numpy_helper.from_array(np.int64(limit), "limit"), numpy_helper.from_array(np.int64(1), "one")],
    )  # fmt: skip
    return helper.make_node("Loop", ["", "start", "zero", "x"], ["count", "last", "all"], name="loop", body=body)


def counting_network(limit: int) -> onnx.ModelProto:
    outputs = [info("count", (), TensorProto.INT64), info("last", (3,)), info("all", (limit, 3))]
    return network(counting(limit), [info("x", (3,))], outputs, {"start": np.bool_(True), "zero": np.int64(0)})


def test_a_loop_whose_condition_follows_from_constants(tmp_path):
    check(counting_network(4), tmp_path, x=np.float32([1, -2, 3]))


def test_a_loop_without_a_count_that_would_become_too_large_is_refused():
    with pytest.raises(UnsupportedModelError, match=rf"node 'loop' \(Loop\): {MOST_NODES // 4 + 1} iterations of 4 operators"):
        flexcomp.build(counting_network(MOST_NODES), threads=1)


@pytest.mark.parametrize(("count", "start"), [(0, True), (4, False)])
def test_a_loop_that_never_runs(count, start, tmp_path):
    weights = {"count": np.int64(count), "start": np.bool_(start)}
    model = network(loop(breaks=True), [info("x", (3,))], [info("last", (3,)), info("all", (0, 3))], weights)
    check(model, tmp_path, x=np.float32([1, -2, 3]))


def nested_ifs(depth: int) -> onnx.ModelProto:
    """Branches in branches, all of which call their results by the same name."""
    inner = helper.make_graph([helper.make_node("Neg", ["x"], ["r"])], "inner", [], [info("r", (2,))])
    other = helper.make_graph([helper.make_node("Abs", ["x"], ["r"])], "other", [], [info("r", (2,))])
    for _ in range(depth):
        node = helper.make_node("If", ["condition"], ["r"], then_branch=inner, else_branch=other)
        inner = helper.make_graph([node], "inner", [], [info("r", (2,))])
    node = helper.make_node("If", ["condition"], ["y"], then_branch=inner, else_branch=other)
    return network(node, [info("x", (2,))], [info("y", (2,))], {"condition": np.bool_(True)})


def test_names_of_nested_branches_grow_by_the_level():
    """Names that an inner graph defines itself are its own: those of 30 levels would be a GiB."""
    model, allowance = nested_ifs(30), Allowance()
    while write_out(model, allowance):
        assert model.ByteSize() < 1 << 16
    assert next(n.op_type for n in model.graph.node) == "Neg"


def nested_loops(outer: int, inner: int) -> onnx.ModelProto:
    step = helper.make_node("Add", ["u", "table"], ["u2"])
    wide = numpy_helper.from_array(np.ones(3, "f4"), "table")
    states = [info("j", (), TensorProto.INT64), info("d", (), TensorProto.BOOL), info("u", (3,))]
    keeps = helper.make_node("Identity", ["d"], ["d2"])
    body = helper.make_graph([keeps, step], "body", states, [info("d2", (), TensorProto.BOOL), info("u2", (3,))], [wide])
    loop = helper.make_node("Loop", ["inner", "start", "w"], ["w2"], name="inner", body=body)
    states = [info("i", (), TensorProto.INT64), info("c", (), TensorProto.BOOL), info("w", (3,))]
    keeps = helper.make_node("Identity", ["c"], ["c2"])
    body = helper.make_graph([keeps, loop], "around", states, [info("c2", (), TensorProto.BOOL), info("w2", (3,))])
    node = helper.make_node("Loop", ["outer", "start", "x"], ["y"], name="outer", body=body)
    counts = {"outer": np.int64(outer), "inner": np.int64(inner), "start": np.bool_(True)}
    return network(node, [info("x", (3,))], [info("y", (3,))], counts)


def test_loops_in_loops_are_written_out_within_one_allowance(tmp_path):
    check(nested_loops(3, 4), tmp_path, x=np.float32([1, -2, 3]))
    with pytest.raises(UnsupportedModelError, match=r"node 'y/\d+/inner' \(Loop\): 80 iterations of 2 operators, with all that"):
        flexcomp.build(nested_loops(80, 80), threads=1)


def test_constants_of_a_loop_are_there_once():
    model = nested_loops(1, 50)
    while write_out(model, Allowance()):
        pass
    assert sum(name.name.endswith("table") for name in model.graph.initializer) == 1
