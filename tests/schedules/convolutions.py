"""Convolutions to test kernels with: shapes and epilogues."""

import numpy as np

from flexcomp.schedules.tiles.spec import ConvSpec

RELU = ("relu", ("acc",))
RESIDUAL = ("relu", ("add", ("acc",), ("tensor", 0)))
PRELU = ("prelu", ("acc",), ("channel", 0))
SILU = ("silu", ("acc",))
CLIP = ("clip", ("acc",), ("const", -0.5), ("const", 0.5))
EPILOGUES = {
    ("acc",): lambda y, t, c: y,
    RELU: lambda y, t, c: np.maximum(y, 0),
    RESIDUAL: lambda y, t, c: np.maximum(y + t, 0),
    PRELU: lambda y, t, c: np.where(y > 0, y, c * y),
    SILU: lambda y, t, c: y / (1 + np.exp(-y)),
    CLIP: lambda y, t, c: np.clip(y, -0.5, 0.5),
}


def random_spec(rng: np.random.Generator, kind: str) -> ConvSpec:
    pick = lambda *values: int(rng.choice(values))  # noqa: E731
    epilogue = list(EPILOGUES)[rng.integers(len(EPILOGUES))]
    if kind == "dense":
        return ConvSpec(1, 1, pick(1, 2, 5, 17, 33), pick(3, 20, 64, 257), pick(1, 5, 10, 33, 64, 100), epilogue=epilogue)
    if kind == "depthwise":
        channels = pick(1, 3, 8, 20, 33, 48)
        inputs, outputs, groups = channels, channels, channels
    elif kind == "grouped":
        size, groups = pick(2, 4), pick(2, 3, 5, 7, 8, 16)
        inputs = outputs = size * groups
    else:
        groups = pick(1, 1, 1, 2, 3)
        inputs, outputs = groups * pick(1, 2, 3, 5, 16, 24), groups * pick(1, 3, 8, 12, 20, 40)
    return ConvSpec(
        batch=pick(1, 1, 2), height=pick(5, 8, 13, 19), width=pick(5, 7, 14, 23), in_channels=inputs,
        out_channels=outputs, kernel=(pick(1, 2, 3, 5), pick(1, 3, 4, 5)), stride=(pick(1, 1, 2), pick(1, 2, 3)),
        padding=tuple(pick(0, 1, 2, 4) for _ in range(4)), dilation=(pick(1, 1, 2), 1), groups=groups, epilogue=epilogue,
    )  # fmt: skip


def specs(kind: str, count: int) -> list[ConvSpec]:
    rng = np.random.default_rng(sum(map(ord, kind)))
    drawn = (random_spec(rng, kind) for _ in range(10 * count))
    return [spec for spec in drawn if spec.out_height > 0 and spec.out_width > 0][:count]
