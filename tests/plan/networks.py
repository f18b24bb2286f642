"""Planning problems that imitate real networks: layer and tensor tables with FP32 sizes in NHWC, batch 1.

Weights are packed in blocks of 32 output channels of (K + 1) × 32 × 4 bytes (K = kernel × kernel ×
input channels, and the bias); depthwise weights are one block. Times assume 200 GFLOP/s, and
20 GB/s for what only moves data.
"""

from __future__ import annotations

import math

from flexcomp.plan import PAGE, Buffer, Layer, Problem, Storage, Weights

FLOPS = 200e9
MEMORY = 20e9
DISK = Storage(bandwidth=1.1e9, overhead_s=30e-6)
PHONE = Storage(bandwidth=718e6, overhead_s=30e-6)


def up(nbytes: int, unit: int = 64) -> int:
    return -(-nbytes // unit) * unit


class Network:
    """Collects layers; a tensor is an index, its shape (side, channels)."""

    def __init__(self, side: int, channels: int) -> None:
        self.layers: list[Layer] = []
        self.shape = [(side, channels)]
        self.writer = [0]
        self.last = [0]
        self.offset = 0

    def _layer(
        self,
        name: str,
        inputs: tuple[int, ...],
        shape: tuple[int, int],
        weights: tuple[int, int] | None,
        flops: float,
    ) -> int:
        index = len(self.layers)
        packed = None
        if weights:
            packed = Weights(self.offset, *weights)
            self.offset = up(self.offset + packed.nbytes, PAGE)
        moved = 4 * (math.prod((shape[0], *shape)) + sum(self.shape[i][0] ** 2 * self.shape[i][1] for i in inputs))
        self.layers.append(Layer(f"{name}{index}", 0, packed, max(flops / FLOPS, moved / MEMORY)))
        for i in inputs:
            self.last[i] = index + 1
        self.shape.append(shape)
        self.writer.append(index)
        self.last.append(index + 1)
        return len(self.shape) - 1

    def conv(
        self, x: int, channels: int, kernel: int, stride: int = 1, add: int | None = None, pad: bool = True
    ) -> int:
        side, depth = self.shape[x]
        out = -(-side // stride) if pad else (side - kernel) // stride + 1
        k = kernel * kernel * depth
        inputs = (x,) if add is None else (x, add)
        return self._layer(
            "conv",
            inputs,
            (out, channels),
            (-(-channels // 32), (k + 1) * 32 * 4),
            2 * out * out * channels * k,
        )

    def depthwise(self, x: int, stride: int = 1) -> int:
        side, depth = self.shape[x]
        out = -(-side // stride)
        return self._layer("depthwise", (x,), (out, depth), (1, up(10 * depth * 4)), 18 * out * out * depth)

    def pool(self, x: int, out: int) -> int:
        return self._layer("pool", (x,), (out, self.shape[x][1]), None, 0)

    def concat(self, *xs: int) -> int:
        return self._layer("concat", xs, (self.shape[xs[0]][0], sum(self.shape[x][1] for x in xs)), None, 0)

    def dense(self, x: int, channels: int) -> int:
        side, depth = self.shape[x]
        k = side * side * depth
        return self._layer("dense", (x,), (1, channels), (-(-channels // 32), (k + 1) * 32 * 4), 2 * channels * k)

    def problem(self, storage: Storage = DISK) -> Problem:
        self.last[-1] = len(self.layers)
        sizes = [up(side * side * channels * 4) for side, channels in self.shape]
        buffers = tuple(Buffer(f"t{i}", size, self.writer[i], self.last[i]) for i, size in enumerate(sizes))
        return Problem(tuple(self.layers), buffers, storage)


def vgg19(storage: Storage = DISK) -> Problem:
    net = Network(224, 3)
    x = 0
    for channels, count in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(count):
            x = net.conv(x, channels, 3)
        x = net.pool(x, net.shape[x][0] // 2)
    for channels in (4096, 4096, 1000):
        x = net.dense(x, channels)
    return net.problem(storage)


def resnet(depths: tuple[int, int, int, int], storage: Storage = DISK) -> Problem:
    net = Network(224, 3)
    x = net.pool(net.conv(0, 64, 7, 2), 56)
    for stage, depth in enumerate(depths):
        width = 64 << stage
        for block in range(depth):
            stride = 2 if stage and not block else 1
            y = net.conv(net.conv(x, width, 1), width, 3, stride)
            skip = x if block else net.conv(x, 4 * width, 1, stride)
            x = net.conv(y, 4 * width, 1, add=skip)
    net.dense(net.pool(x, 1), 1000)
    return net.problem(storage)


def resnet50(storage: Storage = DISK) -> Problem:
    return resnet((3, 4, 6, 3), storage)


def resnet152(storage: Storage = DISK) -> Problem:
    return resnet((3, 8, 36, 3), storage)


def mobilenet_v2(storage: Storage = DISK) -> Problem:
    net = Network(224, 3)
    x = net.conv(0, 32, 3, 2)
    stages = ((16, 1, 1), (24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1))
    for channels, count, stride in stages:
        expand = 1 if channels == 16 else 6
        for block in range(count):
            y = net.conv(x, expand * net.shape[x][1], 1) if expand > 1 else x
            y = net.depthwise(y, 1 if block else stride)
            x = net.conv(y, channels, 1, add=x if block else None)
    x = net.conv(x, 1280, 1)
    net.dense(net.pool(x, 1), 1000)
    return net.problem(storage)


def squeezenet(storage: Storage = DISK) -> Problem:
    net = Network(224, 3)
    x = net.conv(0, 64, 3, 2, pad=False)
    for squeeze, pooled in ((16, 55), (16, 0), (32, 27), (32, 0), (48, 13), (48, 0), (64, 0), (64, 0)):
        expand = 4 * squeeze
        if pooled:
            x = net.pool(x, pooled)
        s = net.conv(x, squeeze, 1)
        x = net.concat(net.conv(s, expand, 1), net.conv(s, expand, 3))
    net.pool(net.conv(x, 1000, 1), 1)
    return net.problem(storage)
