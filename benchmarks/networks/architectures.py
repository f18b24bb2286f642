"""Networks of the literature, written as their reference implementations export them.

Each function takes a seed and returns a model with output "output". The input is "x", a picture [1, 3, 224, 224];
that of language models is "input_ids", int64 [1, tokens].
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import onnx

from benchmarks.networks.graph import CLASSES, Graph
from flexcomp.demo import zoo

VOCABULARY = 50257  # of GPT-2


def residual_gain(blocks: int) -> float:
    """Scale of a residual branch's end: `blocks` additions multiply the variance by e at most.

    Larger branches make deep random networks chaotic: rounding errors grow from block to block, and two
    correct implementations disagree.
    """
    return 1.0 / math.sqrt(blocks)


def resnet(
    name: str, depths: tuple[int, int, int, int], seed: int = 0, expansion: int = 4, widened: int = 1, groups: int = 1
) -> onnx.ModelProto:
    """ResNet v1.5: the stride is in the 3×3 convolution (He et al. 2016).

    Blocks are bottlenecks, `widened` inside in ResNeXt (Xie et al. 2017), or two convolutions of 3×3 with an `expansion` of 1.
    """
    g = Graph(name, seed)
    branch_gain = residual_gain(sum(depths))

    def block(x: str, width: int, stride: int) -> str:
        if expansion == 1:
            y = g.unit(g.rectified(x, width, 3, stride), width, 3, gain=branch_gain)
        else:
            y = g.rectified(g.rectified(x, widened * width), widened * width, 3, stride, groups=groups)
            y = g.unit(y, expansion * width, gain=branch_gain)
        if stride > 1 or g.channels[x] != expansion * width:
            x = g.unit(x, expansion * width, 1, stride)
        return g.relu(g.op("Add", y, x))

    x = g.max_pool(g.rectified(g.input("x", (1, 3, 224, 224)), 64, 7, 2), 3, 2, 1)
    for stage, depth in enumerate(depths):
        for number in range(depth):
            x = block(x, 64 << stage, 2 if stage and not number else 1)
    return g.classify(x)


def mobilenet_v2(seed: int = 0) -> onnx.ModelProto:
    """MobileNetV2 (Sandler et al. 2018)."""
    g = Graph("mobilenet_v2", seed)
    return g.classify(mobilenet_v2_features(g, g.input("x", (1, 3, 224, 224)))[0])


def mobilenet_v2_features(g: Graph, x: str) -> tuple[str, str]:
    """The convolutions of MobileNetV2: their result, and the expanded input of the last one of stride 2."""
    finer = ""

    def unit(x: str, channels: int, kernel: int = 1, stride: int = 1, groups: int = 1, gain: float = 1.0) -> str:
        return g.relu6(g.batch_norm(g.conv(x, channels, kernel, stride, groups=groups, bias=False, gain=gain)))

    def inverted_residual(x: str, channels: int, stride: int, expansion: int) -> str:
        nonlocal finer
        hidden = g.channels[x] * expansion
        y = unit(x, hidden) if expansion > 1 else x
        finer = y if stride > 1 else finer
        y = unit(y, hidden, 3, stride, groups=hidden, gain=math.sqrt(2.0))
        adds = stride == 1 and g.channels[x] == channels
        y = g.batch_norm(g.conv(y, channels, 1, bias=False), residual_gain(10) if adds else 1.0)
        return g.op("Add", x, y) if adds else y

    x = unit(x, 32, 3, 2)
    settings = (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)
    for expansion, channels, repeats, stride in settings:
        for i in range(repeats):
            x = inverted_residual(x, channels, stride if i == 0 else 1, expansion)
    return unit(x, 1280), finer


def squeezenet(seed: int = 0) -> onnx.ModelProto:
    """SqueezeNet 1.1 (Iandola et al. 2016)."""
    g = Graph("squeezenet1_1", seed)

    def fire(x: str, squeeze: int, expand: int) -> str:
        x = g.relu(g.conv(x, squeeze, 1))
        parts = [g.relu(g.conv(x, expand, kernel)) for kernel in (1, 3)]
        return g.concat(*parts)

    x = g.relu(g.conv(g.input("x", (1, 3, 224, 224)), 64, 3, 2, padding=0))
    for group in (((16, 64),) * 2, ((32, 128),) * 2, ((48, 192),) * 2 + ((64, 256),) * 2):
        x = g.max_pool(x, 3, 2, ceil=True)
        for squeeze, expand in group:
            x = fire(x, squeeze, expand)
    return g.model(g.global_pool(g.relu(g.conv(x, CLASSES, 1))), (1, CLASSES))


def vgg19(seed: int = 0, image: int = 224) -> onnx.ModelProto:
    """VGG-19 without batch norm (Simonyan & Zisserman 2015), for pictures `image` pixels wide, a multiple of 32."""
    g = Graph("vgg19", seed)
    x = g.input("x", (1, 3, image, image))
    for channels, repeats in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(repeats):
            x = g.relu(g.conv(x, channels, 3))
        x = g.max_pool(x, 2, 2)
    x = g.op("Flatten", x, axis=1, channels=512 * (image // 32) ** 2)
    for _ in range(2):
        x = g.relu(g.dense(x, 4096, gain=math.sqrt(2.0)))
    return g.model(g.dense(x, CLASSES), (1, CLASSES))


def vit_b16(seed: int = 0, image: int = 224) -> onnx.ModelProto:
    """ViT-B/16 (Dosovitskiy et al. 2021), attention and GELU in elementary operators.

    `image`: width of the picture in pixels, a multiple of 16.
    """
    g = Graph("vit_b16", seed)
    width, heads, layers, tokens = 768, 12, 12, (image // 16) ** 2 + 1

    def norm(x: str) -> str:
        return g.layer_norm(x, 1e-6)

    patches = g.conv(g.input("x", (1, 3, image, image)), width, 16, 16, padding=0, gain=1.0)
    x = g.op("Transpose", g.reshape(patches, 1, width, tokens - 1), perm=[0, 2, 1], channels=width)
    x = g.op("Concat", g.normal((1, 1, width), 1.0), x, axis=1, channels=width)
    x = g.op("Add", x, g.normal((1, tokens, width), 0.2), channels=width)
    for _ in range(layers):
        x = g.op("Add", x, g.attention(norm(x), tokens, heads, gain=2.0))
        x = g.op("Add", x, g.linear(g.gelu(g.linear(norm(x), 4 * width)), width))
    first = g.op("Gather", norm(x), g.weight(np.int64(0)), axis=1, channels=width)
    return g.model(g.dense(first, CLASSES), (1, CLASSES))


def gpt2(seed: int = 0, tokens: int = 64) -> onnx.ModelProto:
    """GPT-2 small with its language-model head, for a prompt of fixed length (Radford et al. 2019).

    As exported from PyTorch: linear layers are Gemm between two Reshapes, the causal mask a Where, GELU its tanh
    form in elementary operators, and the head reads the embedding table through a Transpose.
    """
    g = Graph("gpt2", seed)
    width, heads, layers = 768, 12, 12
    head_width = width // heads
    branch_gain = residual_gain(2 * layers)

    def affine(x: str, channels: int, gain: float = 1.0) -> str:
        """The Conv1D of GPT-2: weights [inputs, outputs]."""
        fan_in = g.channels[x]
        rows = g.reshape(x, -1, fan_in, channels=fan_in)
        weights = g.filters((fan_in, channels), (0,), gain)
        product = g.op("Gemm", rows, weights, g.normal((channels,), 0.05), channels=channels)
        return g.reshape(product, 1, tokens, channels, channels=channels)

    def gelu(x: str) -> str:
        cubic = g.op("Mul", g.op("Pow", x, g.number(3.0)), g.number(0.044715))
        inner = g.op("Mul", g.op("Add", x, cubic), g.number(math.sqrt(2.0 / math.pi)))
        return g.op("Mul", g.op("Mul", x, g.number(0.5)), g.op("Add", g.op("Tanh", inner), g.number(1.0)))

    def split_heads(x: str, order: list[int]) -> str:
        return g.op("Transpose", g.reshape(x, 1, tokens, heads, head_width), perm=order)

    def attention(x: str, mask: str) -> str:
        query, key, value = g.split(affine(x, 3 * width, gain=1.5), 3, axis=2)
        scores = g.op("MatMul", split_heads(query, [0, 2, 1, 3]), split_heads(key, [0, 2, 3, 1]))
        scores = g.op("Div", scores, g.number(math.sqrt(head_width)))
        masked = g.op("Where", mask, scores, g.number(np.finfo(np.float32).min))
        mixed = g.op("MatMul", g.op("Softmax", masked, axis=-1), split_heads(value, [0, 2, 1, 3]))
        joined = g.reshape(g.op("Transpose", mixed, perm=[0, 2, 1, 3]), 1, tokens, width, channels=width)
        return affine(joined, width, branch_gain)

    def mlp(x: str) -> str:
        return affine(gelu(affine(x, 4 * width)), width, branch_gain)

    ids = g.input("input_ids", (1, tokens), onnx.TensorProto.INT64)
    table = g.normal((VOCABULARY, width), 0.1)
    positions = g.weight(np.arange(tokens, dtype=np.int64)[None])
    x = g.op("Gather", table, ids, axis=0, channels=width)
    x = g.op("Add", x, g.op("Gather", g.normal((1024, width), 0.05), positions, axis=0))
    mask = g.weight(np.tril(np.ones((tokens, tokens), dtype=bool))[None, None])
    for _ in range(layers):
        x = g.op("Add", attention(g.layer_norm(x), mask), x)
        x = g.op("Add", x, mlp(g.layer_norm(x)))
    logits = g.op("MatMul", g.layer_norm(x), g.op("Transpose", table, perm=[1, 0]), channels=VOCABULARY)
    return g.model(logits, (1, tokens, VOCABULARY))


def example_input(model: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    """A seeded input: a picture, or the ids of tokens."""
    (port,) = model.graph.input
    if port.type.tensor_type.elem_type != onnx.TensorProto.INT64:
        return zoo.example_input(model, seed)
    shape = [d.dim_value for d in port.type.tensor_type.shape.dim]
    tables = {node.input[0] for node in model.graph.node if node.op_type == "Gather" and node.input[1] == port.name}
    rows = min(weight.dims[0] for weight in model.graph.initializer if weight.name in tables)
    return {port.name: np.random.default_rng(seed).integers(0, rows, shape, dtype=np.int64)}


ARCHITECTURES = {
    "resnet50_v15": partial(resnet, "resnet", (3, 4, 6, 3)), "resnet152": partial(resnet, "resnet", (3, 8, 36, 3)),
    "mobilenet_v2": mobilenet_v2, "squeezenet1_1": squeezenet, "vgg19_torch": vgg19, "vit_b16": vit_b16, "gpt2": gpt2,
}
