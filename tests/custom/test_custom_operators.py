"""Operators of the user's: built, run at every budget, here and for aarch64; what is wrong with one is said with its node."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tvm import te
from tvm.relax import op
from tvm.script import tirx as T

import flexcomp
from flexcomp import CKernel, CustomOperator, Tensor
from flexcomp.packaging.package import package
from tests.cli import calls

from .operators import DOMAIN, OPERATORS, SCAN, expected, model, network, same, scaled_kernel

X = np.random.default_rng(1).standard_normal((4, 6)).astype("f4")
EMULATOR, SYSROOT = "qemu-aarch64", Path("/usr/aarch64-linux-gnu")


@pytest.fixture(scope="module")
def artifact():
    return flexcomp.build(network(), threads=2, custom_operators=OPERATORS)


@pytest.mark.parametrize("budget", ["min", "all"])
@pytest.mark.parametrize("threads", [1, 2])
def test_computes_with_kernels_in_tvmscript_and_c(artifact, budget, threads):
    with artifact.session(budget, threads) as session:
        found = session.run({"x": X})
    for name, want in expected(X).items():
        np.testing.assert_allclose(found[name], want, rtol=1e-6, atol=1e-6)


def test_kernels_are_layers_with_the_names_of_their_nodes(artifact):
    listed = artifact.summary()
    for words in ("first", "second", "third", "scan in C, 2 tasks", "scaled.2"):
        assert words in listed
    scans = [layer for layer in artifact.program.layers if layer.implementation == "C"]
    assert len(scans) == 2 and all(layer.scratch_nbytes for layer in scans)
    assert [layer.flops for layer in artifact.program.layers[:3]] == [48, 48, 48]


def test_another_kernel_has_another_symbol():
    """Libraries and caches go by symbols."""
    def scan(node, source=SCAN, options=()):
        defined = ("-DROWS=1", "-DCOLUMNS=4", "-DDECAY=1.0f", *options)
        return node.call(CKernel(source, "scan", scratch=(1,), options=defined), node.inputs)

    nodes = [helper.make_node("Scan1D", ["x"], ["z"], domain=DOMAIN)]
    symbols = set()
    for change in ({}, {"source": SCAN + "\n"}, {"options": ("-O1",)}, {}):
        operator = CustomOperator("Scan1D", same, lambda node, change=change: scan(node, **change), DOMAIN)
        built = flexcomp.build(model(nodes, {"x": (1, 4)}), custom_operators=[operator])
        symbols.update(built.kernels)
    assert len(symbols) == 3


def mixed(node):
    """x · w, of TVMScript that reads w as a table, and the sums of w."""
    (rows, depth), (_, columns) = node.shape, node.tensor(1).shape

    @T.prim_func
    def product(x: T.Buffer((rows, depth), "float32"), w: T.Buffer((depth, columns), "float32"),
                y: T.Buffer((rows, columns), "float32"), s: T.Buffer((columns,), "float32")):  # fmt: skip
        for j in T.serial(columns):
            s[j] = 0.0
            for k in T.serial(depth):
                s[j] = s[j] + w[k, j]
        for i, j in T.grid(rows, columns):
            y[i, j] = 0.0
            for k in T.serial(depth):
                y[i, j] = y[i, j] + x[i, k] * w[k, j]

    return node.call(product, node.inputs, narrow=[1])


MIXED = CustomOperator("Mixed", lambda i, a: [Tensor((4, 8)), Tensor((8,))], mixed, DOMAIN)


def mixed_network(w):
    return model([helper.make_node("Mixed", ["x", "w"], ["z", "s"], "mine", domain=DOMAIN)], {"x": (4, 6)}, {"w": w}, ("z", "s"))


@pytest.mark.parametrize(
    ("kept", "error"), [("float32", 1e-6), ("float16", 1e-3), ("bfloat16", 1e-2), ("int8", 1e-2)], ids=lambda value: str(value)
)
def test_reads_weights_of_fewer_bits(kept, error):
    w = np.random.default_rng(2).standard_normal((6, 8)).astype("f4")
    artifact = flexcomp.build(mixed_network(w), weights={"mine": kept}, custom_operators=[MIXED], threads=1)
    assert artifact.weights[0][1].dtype.itemsize == {"float32": 4, "int8": 1}.get(kept, 2)
    with artifact.session("min") as session:
        found = session.run({"x": X})
    for name, want in (("z", X @ w), ("s", w.sum(axis=0))):
        assert (0 if kept == "float32" else error / 100) <= abs(found[name] - want).max() / abs(want).max() <= error


def product(node):
    """x · w, of a tensor expression."""
    x, w = (te.placeholder(node.tensor(i).shape, name=name) for i, name in enumerate("xw"))
    k = te.reduce_axis((0, 6), "k")
    y = te.compute((4, 8), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), name="y")
    return node.call(te.create_prim_func([x, w, y]), node.inputs, narrow=[1])


def test_weights_that_have_fewer_bits_anyway_are_kept_in_them():
    w = np.random.default_rng(2).standard_normal((6, 8)).astype("f2").astype("f4")
    nodes = [helper.make_node("Product", ["x", "w"], ["z"], domain=DOMAIN)]
    operator = CustomOperator("Product", lambda inputs, attributes: Tensor((4, 8)), product, DOMAIN)
    artifact = flexcomp.build(model(nodes, {"x": (4, 6)}, {"w": w}), custom_operators=[operator], threads=1)
    assert artifact.weights[0][1].dtype == np.float16
    with artifact.session() as session:
        np.testing.assert_allclose(session.run({"x": X})["z"], X @ w, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not shutil.which(EMULATOR) or not shutil.which("aarch64-linux-gnu-g++"), reason="needs a cross compiler")
@pytest.mark.parametrize("kept", ["float32", "float16", "int8"])
def test_computes_the_same_on_aarch64(kept, tmp_path):
    """In the smallest budget, under an emulator: kernels in C and TVMScript, and weights that TVMScript widens."""
    w = np.random.default_rng(2).standard_normal((6, 8)).astype("f4")
    proto, want = (network(), expected(X)) if kept == "float32" else (mixed_network(w), {"z": X @ w, "s": w.sum(axis=0)})
    operators, library, device = [*OPERATORS, MIXED], tmp_path / "custom.so", tmp_path / "device"
    artifact = flexcomp.build(proto, target="llvm -mtriple=aarch64", weights=kept, custom_operators=operators)
    artifact.export_library(library)
    package(library, device)
    np.save(tmp_path / "x.npy", X)
    command = [EMULATOR, "-L", SYSROOT, "-E", f"LD_LIBRARY_PATH={device}:{SYSROOT}/lib", device / "flexcomp-run", library]
    arguments = ["--budget", "min", "--input", f"x={tmp_path / 'x.npy'}", "--output-dir", tmp_path / "out"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["arena_bytes"] > 0
    for name, values in want.items():
        error = {"float32": 1e-6, "float16": 1e-3, "int8": 1e-2}[kept]
        np.testing.assert_allclose(np.load(tmp_path / "out" / f"{name}.npy"), values, rtol=0, atol=error * abs(values).max())


def double(node):
    x = te.placeholder(node.shape, node.dtype, name="x")
    return node.call(te.create_prim_func([x, te.compute(node.shape, lambda *i: x(*i) * 2.0, name="y")]), node.inputs)


def test_takes_the_place_of_onnx_operators_and_of_functions_of_the_model():
    body = [helper.make_node("Neg", ["a"], ["b"])]
    function = helper.make_function(DOMAIN, "Doubled", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Doubled", ["y"], ["z"], domain=DOMAIN)]
    operators = [CustomOperator("Relu", same, double), CustomOperator("Doubled", same, double, DOMAIN)]
    proto = model(nodes, {"x": (4, 6)}, functions=[function])
    with flexcomp.build(proto, custom_operators=operators, threads=1).session() as session:
        np.testing.assert_array_equal(session.run({"x": X})["z"], 4 * X)
    with flexcomp.build(proto, custom_operators=operators[:1], threads=1).session() as session:
        np.testing.assert_array_equal(session.run({"x": X})["z"], -2 * X)


def test_a_network_of_16_bit_floats_is_computed_in_float32():
    nodes = [helper.make_node("Double", ["x"], ["y"], domain=DOMAIN), helper.make_node("Add", ["y", "w"], ["z"])]
    proto = model(nodes, {"x": (4, 6)}, {"w": np.ones(6, "f2")})
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    seen = []
    shapes = lambda inputs, attributes: seen.append(inputs[0].dtype) or inputs[0]  # noqa: E731
    with flexcomp.build(proto, custom_operators=[CustomOperator("Double", shapes, double, DOMAIN)]).session() as session:
        found = session.run({"x": X.astype("f2")})["z"]
    np.testing.assert_array_equal(found, (2 * X.astype("f2").astype("f4") + 1).astype("f2"))
    assert found.dtype == np.float16 and set(seen) == {"float32"}


def test_a_node_inside_of_loops_and_branches():
    number = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    go = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("c", "d")]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (4, 6)) for name in ("v", "w")]
    inner = helper.make_graph([helper.make_node("Double", ["v"], ["w"], domain=DOMAIN)], "branch", [], ports[1:])
    branch = helper.make_node("If", ["c"], ["w"], then_branch=inner, else_branch=inner)
    stay = helper.make_node("Identity", ["c"], ["d"])
    loop = helper.make_graph([branch, stay], "body", [number, go[0], ports[0]], [go[1], ports[1]])
    nodes = [helper.make_node("Loop", ["three", "yes", "x"], ["z"], body=loop)]
    proto = model(nodes, {"x": (4, 6)}, {"three": np.array(3), "yes": np.array(True)})
    with flexcomp.build(proto, custom_operators=[CustomOperator("Double", same, double, DOMAIN)]).session() as session:
        np.testing.assert_array_equal(session.run({"x": X})["z"], 8 * X)


def test_a_node_inside_of_a_function_of_the_model():
    body = [helper.make_node("Double", ["a"], ["b"], domain=DOMAIN)]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 2)]
    function = helper.make_function("own", "Twice", ["a"], ["b"], body, imports)
    proto = model([helper.make_node("Twice", ["x"], ["z"], domain="own")], {"x": (4, 6)}, functions=[function])
    proto.opset_import.append(helper.make_opsetid("own", 1))
    with flexcomp.build(proto, custom_operators=[CustomOperator("Double", same, double, DOMAIN)]).session() as session:
        np.testing.assert_array_equal(session.run({"x": X})["z"], 2 * X)


def in_c(body: str, before: str = "", x: str = "const float *x", **options):
    """A converter to a kernel of x [4, 6] and a scratch of 4 floats."""
    source = f"{before}\n#include <stdint.h>\nvoid f(int32_t task, int32_t tasks, {x}, float *y, float *s) {{ {body} }}"
    narrow = options.pop("narrow", ())
    return lambda node: node.call(CKernel(source, "f", **{"scratch": (4,), **options}), node.inputs, narrow=narrow)


def seen_whole():
    @T.prim_func
    def flat(x: T.Buffer((4, 6), "float32"), y: T.Buffer((4, 6), "float32")):
        v = T.decl_buffer((24,), "float32", data=x.data)
        for i, j in T.grid(4, 6):
            y[i, j] = v[i * 6 + j]

    return flat


def outside(node):
    @T.prim_func
    def beyond(x: T.Buffer((4, 6), "float32"), y: T.Buffer((4, 6), "float32")):
        for i, j in T.grid(4, 6):
            y[i + 1, j] = x[i, j]

    return node.call(beyond, node.inputs)


def with_room(floats):
    @T.prim_func
    def backwards(x: T.Buffer((4, 6), "float32"), y: T.Buffer((4, 6), "float32")):
        for i in T.parallel(4):
            row = T.alloc_buffer((floats,), "float32")
            for j in range(6):
                row[j] = x[i, j]
            for j in range(6):
                y[i, j] = row[5 - j]

    return backwards


def test_a_kernel_in_tvmscript_has_a_little_room_of_its_own():
    nodes = [helper.make_node("Double", ["x"], ["z"], domain=DOMAIN)]
    operator = CustomOperator("Double", same, lambda node: node.call(with_room(1000), node.inputs), DOMAIN)
    with flexcomp.build(model(nodes, {"x": (4, 6)}), custom_operators=[operator]).session("min") as session:
        np.testing.assert_array_equal(session.run({"x": X})["z"], X[:, ::-1])


def test_a_result_that_the_converter_does_not_return_is_room_in_the_plan():
    nodes = [helper.make_node("Double", ["x"], ["z"], domain=DOMAIN)]
    operator = CustomOperator("Double", same, lambda node: node.call(scaled_kernel(4, 6), [node.data, node.inputs[1]])[0], DOMAIN)
    nodes[0].input.append("w")
    with flexcomp.build(model(nodes, {"x": (4, 6)}, {"w": X[0]}), custom_operators=[operator]).session("min") as session:
        np.testing.assert_allclose(session.run({"x": X})["z"], X * X[0], rtol=1e-6)


def failing(*_):
    raise KeyError("k")


ALL = "for (int i = 0; i < 24; ++i)"
WRONG = [
    (failing, double, r"its shape rule fails: KeyError: 'k'"),
    (lambda inputs, attributes: Tensor((4, 7)), double, r"converter gives float32\[4, 6\] as result 0.*float32\[4, 7\]"),
    (lambda inputs, attributes: Tensor((4, 6), "float16"), double, r"its shape rule gives float16\[4, 6\]"),
    (lambda inputs, attributes: [], double, r"its shape rule gives 0 results, and the node has 1"),
    (lambda inputs, attributes: None, double, r"its shape rule fails"),
    (same, failing, r"its converter fails: KeyError: 'k'"),
    (same, lambda node: None, r"its converter gives NoneType"),
    (same, lambda node: node.call(double, node.inputs), r"gives function for a kernel"),
    (same, lambda node: op.matmul(node.data, node.data), r"its converter fails: "),
    (same, lambda node: op.shape_of(node.data), r"its converter gives .*: give tensors of static shapes"),
    (same, in_c("", tasks=0), r"f in C is none: give a name of C"),
    (same, lambda node: node.call(with_room(20_000), node.inputs), r"its kernel allocates 80,000 bytes, and a thread has"),
    (same, outside, r"its kernel writes outside of y.* by i \+ 1"),
    (same, lambda node: node.call(seen_whole(), node.inputs, narrow=[0]), r"reads input 0 not only element by element"),
    (same, in_c("", narrow=[0]), r"its kernel is in C, and reads float32"),
    (same, in_c("y[0] = "), r"is not compiled: .*error: expected expression"),
    (same, in_c(f"{ALL} y[i] = unknown(x[i]);"), r"is not compiled: .*error: .*unknown"),
    (same, in_c("", before="int g(void) { return 1; }"), r"not compiled: kernel.c:1:5: error: .*'g'.*make the function static"),
    (same, in_c("", x="const double *x"), r"is not compiled: .*error: conflicting types for 'f'"),
    (same, in_c("void other(void); other();"), r"is not linked: .*undefined reference to `other'"),
    (same, in_c(f"{ALL} y[i + 16] = x[i];"), r"writes after the end of result 0, float32\[4, 6\]"),
    (same, in_c(f"{ALL} y[i + 8000] = x[i];"), r"reads or writes after the end of result 0"),
    (same, in_c(f"{ALL} y[i - 1] = x[i];"), r"writes before the start of result 0"),
    (same, in_c("for (int i = 0; i < 23; ++i) y[i] = x[i];"), r"leaves element 23 of result 0"),
    (same, in_c(f"{ALL} ((float *)x)[i] = y[i] = 1;"), r"changes input 0"),
    (same, in_c(f"{ALL} y[i] = s[i % 4];"), r"reads what it did not write, for result 0"),
    (same, in_c("s[3] += task; y[task] = s[0] += 1;", tasks=24), r"order of its tasks, for result 0"),
    (same, in_c(f"{ALL} s[i % 5] = y[i] = x[i];"), r"writes after the end of scratch 0"),
    (same, in_c("y[1 / (task - task)] = *(volatile float *)0;"), r"ends the process by signal"),
]  # fmt: skip


@pytest.mark.parametrize(("shapes", "convert", "words"), WRONG, ids=[words for *_, words in WRONG])
def test_what_is_wrong_is_said_with_the_node(shapes, convert, words):
    nodes = [helper.make_node("Double", ["x"], ["z"], "mine", domain=DOMAIN)]
    operator = CustomOperator("Double", shapes, convert, DOMAIN)
    with pytest.raises(flexcomp.UnsupportedModelError, match=rf"^node 'mine' \(com\.example\.Double\): .*{words}"):
        flexcomp.build(model(nodes, {"x": (4, 6)}), custom_operators=[operator])


def test_operators_of_constants_alone():
    nodes = [helper.make_node("Double", ["w"], ["v"], "mine", domain=DOMAIN), helper.make_node("Add", ["x", "v"], ["z"])]
    proto = model(nodes, {"x": (4, 6)}, {"w": X})
    with flexcomp.build(proto, custom_operators=[CustomOperator("Double", same, double, DOMAIN)]).session() as session:
        np.testing.assert_array_equal(session.run({"x": X})["z"], 3 * X)
    in_c_too = CustomOperator("Double", same, in_c(f"{ALL} y[i] = 2 * x[i];"), DOMAIN)
    with pytest.raises(flexcomp.UnsupportedModelError, match=r"^node 'mine' \(com\.example\.Double\): its inputs are constants"):
        flexcomp.build(proto, custom_operators=[in_c_too])


def test_a_node_of_another_version_or_without_an_operator_is_named():
    nodes = [helper.make_node("Double", ["x"], ["z"], "mine", domain=DOMAIN)]
    old = CustomOperator("Double", same, double, DOMAIN, until=1)
    with pytest.raises(flexcomp.UnsupportedModelError, match=r"node 'mine' \(com.example.Double\).*not for version 2"):
        flexcomp.build(model(nodes, {"x": (4, 6)}), custom_operators=[old])
    with pytest.raises(flexcomp.UnsupportedModelError, match=r"com\.example\.Double \(node 'mine'\)"):
        flexcomp.build(model(nodes, {"x": (4, 6)}), custom_operators=OPERATORS)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([double], "a list of flexcomp.CustomOperator, not of function"),
        ("Scan1D", "a list of flexcomp.CustomOperator, not of str"),
        ([OPERATORS[0], OPERATORS[0]], "com.example.Scan1D twice"),
    ],
)
def test_custom_operators_are_custom_operators(given, words):
    with pytest.raises(flexcomp.InputError, match=words):
        flexcomp.build(network(), custom_operators=given)


def test_an_operator_has_a_name_and_functions():
    for name, shapes, convert, versions in (("", same, double, {}), ("A", None, double, {}), ("A", same, double, {"until": 0})):
        with pytest.raises(flexcomp.InputError):
            CustomOperator(name, shapes, convert, **versions)


def test_the_command_line_takes_a_file_of_operators(tmp_path):
    onnx.save(network(), tmp_path / "network.onnx")
    shutil.copy(Path(__file__).with_name("operators.py"), tmp_path / "my_operators.py")
    build = ("build", tmp_path / "network.onnx", "-o", tmp_path / "network.so")
    done = calls.call(*build, "--operators", tmp_path / "my_operators.py")
    assert done.returncode == 0, done.stderr
    listed = calls.call("inspect", tmp_path / "network.so").stdout
    assert "scan in C, 2 tasks" in listed and "second" in listed
    for text, words in (("x = 1", "no flexcomp.CustomOperator"), ("1 / 0", "ZeroDivisionError"), (None, "no Python file")):
        (tmp_path / "wrong.py").unlink(missing_ok=True)
        if text:
            (tmp_path / "wrong.py").write_text(text)
            os.utime(tmp_path / "wrong.py", (0, 0))  # one second and one size for two texts
        done = calls.call(*build, "--operators", tmp_path / "wrong.py")
        assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1
