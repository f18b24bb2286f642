"""Where a kernel writes if its result is a part of a larger tensor, such as a concatenation."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Place:
    """Channel c of pixel p, in row-major order, is element start + p · stride + c of a tensor of `shape`."""

    shape: tuple[int, ...]
    start: int
    stride: int

    def __str__(self) -> str:
        return f"{'×'.join(map(str, self.shape))} from {self.start}"

    def of_rows(self, count: int) -> Place:
        """The same place in `count` rows of an NHWC image."""
        one, _, *rest = self.shape
        return replace(self, shape=(one, count, *rest))
