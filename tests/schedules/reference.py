"""NumPy's answer to what kernels compute, and packing as PretransformWeights does it in the IR."""

from collections.abc import Iterator

import numpy as np

from flexcomp.schedules.tiles import narrow_panel
from flexcomp.schedules.tiles.panel import Panel
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.transform import Transform


def conv2d(spec: ConvSpec, x: np.ndarray, w: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """A convolution in NHWC with weights OHWI, in float64."""
    top, left, bottom, right = spec.padding
    padded = np.pad(x.astype("f8"), ((0, 0), (top, bottom), (left, right), (0, 0)))
    y = np.zeros((spec.batch, spec.out_height, spec.out_width, spec.out_channels))
    for row in range(spec.kernel[0]):
        for column in range(spec.kernel[1]):
            at_row, at_column = row * spec.dilation[0], column * spec.dilation[1]
            window = padded[
                :,
                at_row : at_row + (spec.out_height - 1) * spec.stride[0] + 1 : spec.stride[0],
                at_column : at_column + (spec.out_width - 1) * spec.stride[1] + 1 : spec.stride[1],
            ]
            for group in range(spec.groups):
                inputs = slice(group * spec.group_in, (group + 1) * spec.group_in)
                outputs = slice(group * spec.group_out, (group + 1) * spec.group_out)
                y[..., outputs] += window[..., inputs] @ w[outputs, row, column].T.astype("f8")
    return y + bias


def pack(
    panel: Panel,
    w: np.ndarray,
    bias: np.ndarray,
    vectors: list[np.ndarray] = (),
    transform: Transform | None = None,
    least: int = 0,
) -> np.ndarray:
    """The panel of weights OHWI; rows that nothing may read are NaN. `least` is that of inputs that are packed."""
    lanes = panel.channels()
    if transform is not None and not transform.of_blocks:
        w, transform = transform.apply(w), None
    if panel.narrow:
        if panel.together > 1 and not panel.packs:  # neighbouring channels
            w = np.pad(w, [(0, 0)] * 3 + [(0, -w.shape[3] % panel.together)])
        taps = w.reshape(len(bias), -1)[lanes].transpose(0, 2, 1)
        head = np.stack([v[lanes] for v in (bias, *vectors)], axis=1)
        if panel.together > 1:
            offset = least - panel.lowest
            return narrow_panel.pack_together(head, taps, panel.kept, panel.rows, panel.together, offset)
        return narrow_panel.pack(head, taps, panel.kept, panel.rows)
    packed = np.full(panel.shape, np.nan, "f4")
    packed[:, 0] = bias[lanes]
    blocks = w.reshape(len(bias), -1)[lanes]
    taps = transform.apply(blocks).reshape(panel.blocks, panel.taps, panel.block) if transform else blocks.transpose(0, 2, 1)
    packed[:, 1 : 1 + panel.taps] = taps
    for i, vector in enumerate(vectors):
        packed[:, 1 + panel.taps + i] = vector[lanes]
    return packed


def in_two_slices(packed: np.ndarray, cut: int, other: float) -> Iterator[tuple[int, int, np.ndarray]]:
    """(first, count, blocks): those from `cut` on, then those before it, if there are any; `other` stands behind them."""
    for first, count in ((cut, len(packed) - cut), (0, cut)):
        if count:
            given = np.full_like(packed, other)
            given[:count] = packed[first : first + count]
            yield first, count, given
