"""Operators without a family, after TVM's legalisation."""

import tvm
from tvm import relax, tirx
from tvm.relax import op, transform
from tvm.relax.op import image, nn

TVM_TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
FLOAT = "float32"


def constant(value):
    return relax.const(value, FLOAT)


def gelu(x):
    half = op.multiply(x, constant(0.5))
    return op.multiply(half, op.add(op.erf(op.multiply(x, constant(0.7071067811865476))), constant(1.0)))


def channel_shuffle(x):
    return op.reshape(op.permute_dims(op.reshape(x, (1, 7, 7, 4, 17)), [0, 1, 2, 4, 3]), (1, 7, 7, 68))


def mean_mish(x):
    mean = op.mean(x, axis=[2, 3])
    return op.multiply(mean, op.tanh(op.log(op.add(op.exp(mean), constant(1.0)))))


def silu_chain(x):
    """Every step reads its argument twice: copying expressions would double them eight times."""
    for _ in range(8):
        x = op.multiply(x, op.sigmoid(x))
    return x


def sum_of_chosen(x, y):
    chosen = op.logical_and(op.less(x, y), op.greater_equal(x, relax.const(1, "int32")))
    return op.sum(op.where(chosen, op.add(x, op.astype(chosen, "int32")), y), axis=[0])


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
    "less_as_number": (lambda x, y: op.minimum(op.astype(op.less(x, y), FLOAT), y), (3, 70), (3, 70)),
    "sum_of_chosen": (sum_of_chosen, ((67,), "int32"), ((67,), "int32")),
    "cast_to_int": (lambda x: op.astype(x, "int64"), (3, 70)),
    "cast_from_int": (lambda x: op.astype(x, FLOAT), ((3, 70), "uint8")),
    "quantize": (lambda x, s: op.astype(op.clip(op.round(op.divide(x, s)), 0, 255), "uint8"), (3, 70), ()),
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
    "mean_mish": (mean_mish, (1, 19, 9, 9)),
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
