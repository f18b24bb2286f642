"""Relax operators through LegalizeOps, FuseOps and FuseTIR: scheduled and unscheduled functions agree."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax import op, transform
from tvm.relax.op import image, nn

from flexcomp.schedules.generic import audit
from flexcomp.schedules.generic import schedule as generic
from flexcomp.schedules.generic.parse import parse
from tests.schedules.kernels import library as build

TVM_TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
FLOAT = "float32"


class Machine:
    """The attributes of a target that the scheduler reads."""

    def __init__(self, lanes=8, cores=2):
        self.vector_width, self.vector_registers, self.num_cores = lanes, 16 if lanes < 16 else 32, cores


def constant(value):
    return relax.const(value, FLOAT)


def gelu(x):
    half = op.multiply(x, constant(0.5))
    return op.multiply(half, op.add(op.erf(op.multiply(x, constant(0.7071067811865476))), constant(1.0)))


def channel_shuffle(x):
    return op.reshape(op.permute_dims(op.reshape(x, (1, 7, 7, 4, 17)), [0, 1, 2, 4, 3]), (1, 7, 7, 68))


def silu_chain(x):
    """Every step reads its argument twice: copying expressions would double them eight times."""
    for _ in range(8):
        x = op.multiply(x, op.sigmoid(x))
    return x


# name: (expression, shapes of the arguments; a pair gives another element type, and integers lie in [0, 4))
CASES = {
    "add_broadcast": (op.add, (1, 197, 96), (1, 1, 96)),
    "add_channels_first": (op.add, (1, 13, 9, 9), (1, 13, 1, 1)),
    "add_short": (op.add, (7,), (7,)),
    "add_parallel": (op.add, (520_000,), (520_000,)),
    "add_rows_parallel": (op.add, (3, 100_003), (100_003,)),
    "gelu": (gelu, (1, 19, 300)),
    "silu": (nn.silu, (3, 71)),
    "silu_chain": (silu_chain, (3, 71)),
    "square": (lambda x: op.power(x, constant(2.0)), (3, 70)),
    "softplus": (lambda x: op.log(op.add(op.exp(x), constant(1.0))), (3, 70)),
    "leaky": (lambda x: nn.leakyrelu(x, 0.1), (1, 3, 7, 7)),
    "prelu": (lambda x, slope: nn.prelu(x, slope, axis=1), (1, 3, 7, 7), (3,)),
    "where": (lambda x, y: op.where(op.greater(x, y), x, y), (3, 70), (3, 70)),
    "less": (op.less, (3, 70), (3, 70)),
    "cast_to_int": (lambda x: op.astype(x, "int64"), (3, 70)),
    "cast_from_int": (lambda x: op.astype(x, FLOAT), ((3, 70), "uint8")),
    "softmax_last": (lambda x: nn.softmax(x, axis=-1), (1, 3, 19, 197)),
    "softmax_middle": (lambda x: nn.softmax(x, axis=1), (1, 19, 33, 7)),
    "log_softmax": (lambda x: nn.log_softmax(x, axis=-1), (17, 40)),
    "layer_norm": (lambda x, s, b: nn.layer_norm(x, s, b, axes=[-1]), (1, 19, 96), (96,), (96,)),
    "rms_norm": (lambda x, s: nn.rms_norm(x, s, axes=[-1]), (1, 6, 67), (67,)),
    "instance_norm": (
        lambda x, s, b: nn.instance_norm(x, s, b, channel_axis=1, axes=[2, 3]),
        *((1, 5, 9, 9), (5,), (5,)),
    ),
    "group_norm": (
        lambda x, s, b: nn.group_norm(x, s, b, num_groups=2, channel_axis=1, axes=[2, 3]),
        *((1, 6, 9, 9), (6,), (6,)),
    ),
    "transpose_rows": (lambda x: op.permute_dims(x, [0, 2, 1, 3]), (1, 19, 12, 64)),
    "transpose_inner": (lambda x: op.permute_dims(x, [0, 2, 3, 1]), (1, 19, 3, 64)),
    "transpose_odd": (lambda x, y: nn.relu(op.add(op.permute_dims(x, [0, 3, 1, 2]), y)), (1, 9, 7, 65), (1, 65, 9, 7)),
    "transpose_few_channels": (lambda x: op.permute_dims(x, [0, 2, 3, 1]), (1, 3, 33, 40)),
    "heads": (lambda x: op.permute_dims(op.reshape(x, (1, 20, 12, 16)), [0, 2, 1, 3]), (1, 20, 192)),
    "channel_shuffle": (channel_shuffle, (1, 7, 7, 68)),
    "concat_last": (lambda x, y, z: nn.relu(op.concat([x, y, z], 3)), (1, 5, 5, 63), (1, 5, 5, 5), (1, 5, 5, 130)),
    "concat_first": (lambda x, y: op.concat([x, y], 1), (1, 9, 11, 11), (1, 4, 11, 11)),
    "pad_inner": (lambda x: nn.pad(x, [0, 0, 1, 2, 3, 1, 0, 0]), (1, 13, 15, 33)),
    "pad_last": (lambda x: nn.pad(x, [0, 0, 0, 0, 1, 1, 2, 2]), (1, 3, 33, 35)),
    "slice_strided": (lambda x: op.strided_slice(x, axes=[1, 2], begin=[1, 0], end=[9, 60], strides=[2, 3]), (1, 10, 64)),
    "split": (lambda x: op.split(x, 3, axis=-1), (1, 20, 192)),
    "flip": (lambda x: op.flip(x, axis=1), (2, 3, 17)),
    "tile": (lambda x: op.tile(x, (1, 2, 3)), (2, 3, 17)),
    "repeat": (lambda x: op.repeat(x, 2, axis=1), (2, 3, 17)),
    "triangle": (op.triu, (17, 17)),
    "take": (lambda x, i: op.take(x, i, axis=0), (100, 64), ((1, 9), "int64")),
    "gather_nd": (op.gather_nd, (10, 64), ((9, 2), "int64")),
    "scatter": (lambda x, i, u: op.scatter_elements(x, i, u, axis=0), (17, 4), ((3, 4), "int64"), (3, 4)),
    "resize_linear": (lambda x: image.resize2d(x, size=(40, 44), layout="NHWC", method="linear"), (1, 20, 22, 17)),
    "resize_nearest": (
        lambda x: image.resize2d(x, size=(40, 44), layout="NCHW", method="nearest_neighbor"),
        (1, 5, 20, 22),
    ),
    "mean_spatial": (lambda x: op.mean(x, axis=[1, 2], keepdims=True), (1, 14, 14, 70)),
    "mean_last": (lambda x: op.mean(x, axis=[2, 3]), (1, 6, 13, 11)),
    "max": (lambda x: op.max(x, axis=[1]), (5, 33, 7)),
    "product": (lambda x: op.prod(x, axis=[1]), (17, 40)),
    "sum_all": (op.sum, (5, 33, 7)),
    "sum_one": (lambda x: op.sum(x, axis=[1]), (5, 1)),
    "deviation": (lambda x: op.std(x, axis=[1]), (17, 40)),
    "argmax": (lambda x: op.argmax(x, axis=1), (1, 21, 9, 9)),
    "matmul": (op.matmul, (1, 19, 70), (70, 25)),
    "matmul_transposed": (lambda x, y: op.matmul(x, op.permute_dims(y, [0, 2, 1])), (3, 19, 30), (3, 21, 30)),
    "einsum": (lambda x, y: op.einsum((x, y), "ij,kj->ik"), (17, 40), (18, 40)),
    "conv1d": (lambda x, w: nn.conv1d(x, w, padding=1), (1, 8, 90), (16, 8, 3)),
    "conv2d": (lambda x, w: nn.relu(nn.conv2d(x, w, padding=(1, 1))), (1, 4, 11, 11), (6, 4, 3, 3)),
    "conv3d": (lambda x, w: nn.relu(nn.conv3d(x, w, padding=[1, 1, 1])), (1, 4, 5, 6, 7), (6, 4, 3, 3, 3)),
    "conv_transposed": (
        lambda x, w: nn.conv2d_transpose(x, w, strides=(2, 2), padding=(1, 1)),
        *((1, 8, 7, 7), (8, 6, 4, 4)),
    ),
    "max_pool": (lambda x: nn.max_pool2d(x, pool_size=(3, 3), strides=(2, 2), padding=(1, 1)), (1, 6, 13, 13)),
    "adaptive_pool": (lambda x: nn.adaptive_avg_pool2d(x, output_size=(3, 3)), (1, 6, 10, 11)),
    "scalar": (op.add, (), ()),
}  # fmt: skip


def legalised(expression, *arguments) -> list[tirx.PrimFunc]:
    builder = relax.BlockBuilder()
    types = [a if len(a) == 2 and isinstance(a[1], str) else (a, FLOAT) for a in arguments]
    variables = [relax.Var(f"x{i}", relax.TensorType(shape, dtype)) for i, (shape, dtype) in enumerate(types)]
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(expression(*variables)))
        builder.emit_func_output(result)
    passes = [
        transform.Normalize(),
        transform.LegalizeOps(),
        transform.AnnotateTIROpPattern(),
        transform.FuseOps(),
        transform.FuseTIR(),
    ]
    with TVM_TARGET:
        module = tvm.transform.Sequential(passes)(builder.get())
    return [function for function in module.functions.values() if isinstance(function, tirx.PrimFunc)]


def random_array(rng, buffer):
    shape, dtype = [int(extent) for extent in buffer.shape], str(buffer.dtype)
    if dtype.startswith("float"):
        return rng.normal(size=shape).astype(dtype)
    return rng.integers(0, 2 if dtype == "bool" else 4, size=shape).astype(dtype)


@pytest.fixture(scope="module")
def originals():
    """Functions by name, and their library without any schedule."""
    functions = {f"{name}_{i}": function for name, case in CASES.items() for i, function in enumerate(legalised(*case))}
    return functions, build(functions, references=True)


@pytest.mark.parametrize(("lanes", "cores"), [(8, 2), (4, 1), (16, 3)])
def test_scheduled_functions_agree(originals, lanes, cores):
    functions, library = originals
    scheduled = {name: generic.schedule(function, Machine(lanes, cores)) for name, function in functions.items()}
    kernels = build({name: kernel.func for name, kernel in scheduled.items()})
    rng = np.random.default_rng(0)
    for name, function in functions.items():
        arguments = [random_array(rng, parameter) for parameter in function.params]
        expected = [tvm.runtime.tensor(a) for a in arguments]
        actual = [tvm.runtime.tensor(a) for a in arguments]
        scratch = [tvm.runtime.tensor(np.full(s.shape, 7, s.dtype)) for s in scheduled[name].scratch]
        library[name](*expected)
        kernels[name](*actual, *scratch)
        for a, e in zip(actual, expected, strict=True):
            np.testing.assert_allclose(a.numpy(), e.numpy(), rtol=2e-5, atol=2e-5, err_msg=name)


def scheduled_case(name, lanes=8, cores=2):
    (function,) = legalised(*CASES[name])
    return generic.schedule(function, Machine(lanes, cores))


@pytest.mark.parametrize("name", ["gelu", "silu_chain", "concat_last", "heads", "transpose_odd", "mean_spatial"])
def test_no_intermediate_tensor_remains(name):
    assert scheduled_case(name).scratch == ()


def test_row_statistics_are_the_only_scratch():
    assert sum(s.nbytes for s in scheduled_case("softmax_last").scratch) == 2 * 4 * 3 * 19


def test_conditions_of_a_concatenation_are_resolved():
    script = scheduled_case("concat_last").func.script()
    assert "if_then_else" not in script and "vectorized" in script


def test_reshapes_need_no_division():
    for name in ("heads", "channel_shuffle"):
        script = scheduled_case(name, cores=1).func.script()
        assert "//" not in script and "%" not in script


def test_shared_expressions_are_bound_once():
    assert len(scheduled_case("silu_chain").func.script()) < 40_000


def test_work_is_shared_only_if_it_is_worth_it():
    assert "T.parallel" in scheduled_case("add_parallel").func.script()
    assert "T.parallel" not in scheduled_case("add_parallel", cores=1).func.script()
    assert "T.parallel" not in scheduled_case("add_short").func.script()


@pytest.mark.parametrize(("steps", "at_once"), [(1, True), (60, False)])
def test_only_sums_of_short_terms_are_computed_several_at_once(steps, at_once):
    x, index = tvm.te.placeholder((100,), name="x"), tvm.te.placeholder((64, 3), "int32", name="index")
    tap = tvm.te.reduce_axis((0, 3), "tap")

    def value(i):
        term = x[index[i, tap]]
        for _ in range(steps):
            term = tvm.te.sqrt(term + 1)
        return tvm.te.sum(term, axis=tap)

    function = tvm.te.create_prim_func([x, index, tvm.te.compute((64,), value)])
    assert ("registers = T.alloc_buffer((8,))" in generic.schedule(function, Machine()).func.script()) == at_once


def test_every_kernel_passes_the_audit():
    for name in ("softmax_middle", "conv2d", "argmax", "transpose_inner"):
        audit.check(scheduled_case(name).func, TVM_TARGET)
        assert audit.hidden_bytes(scheduled_case(name).func, TVM_TARGET) == 0


def test_input_is_not_changed():
    (function,) = legalised(*CASES["softmax_last"])
    before = tvm_ffi.structural_hash(function)
    generic.schedule(function, Machine())
    assert tvm_ffi.structural_hash(function) == before


def test_schedules_are_deterministic():
    first, second = (scheduled_case("softmax_middle").func for _ in range(2))
    assert tvm_ffi.structural_equal(first, second)


def test_packed_calls_are_refused():
    a = tvm.te.placeholder((8,), name="a")
    out = tvm.te.extern(
        (8,), [a], lambda i, o: tirx.call_packed("tvm.contrib.sort.sort", i[0], o[0]), name="sorted", dtype=FLOAT
    )
    function = tvm.te.create_prim_func([a, out])
    with pytest.raises(generic.UnsupportedKernelError, match=r"the kernel calls tvm\.contrib\.sort\.sort, which only"):
        generic.schedule(function, Machine())


def test_parse_rejects_other_forms():
    (function,) = legalised(*CASES["argmax"])
    assert parse(function) is None
