"""What is known of a model for several numbers of past rows, and what of it depends on that number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flexcomp.frontend.fold import Known


class Dependence:
    """Of what is known with several numbers of past rows, the largest first."""

    def __init__(self, known: Sequence[Known]) -> None:
        self.known = known

    def type_of(self, name: str) -> int:
        """A tensor's element type."""
        return self.known[0].types[name][0]

    def shapes(self, name: str) -> list[tuple[int, ...]] | None:
        """A tensor's shapes, unless some is not known."""
        found = [known.types.get(name) for known in self.known]
        return None if None in found else [shape for _, shape in found]

    def growing(self, name: str) -> list[int]:
        """The axes of a tensor whose extents depend on the number of past rows."""
        shapes = self.shapes(name)
        if shapes is None or len({len(shape) for shape in shapes}) > 1:
            return []
        return [axis for axis, extents in enumerate(zip(*shapes, strict=True)) if len(set(extents)) > 1]

    def values(self, name: str) -> list[np.ndarray] | None:
        """A tensor's values, unless some are not known."""
        found = [known.values.get(name) for known in self.known]
        return None if any(value is None for value in found) else found

    def depends(self, name: str) -> bool:
        """Whether known values depend on the number of past rows, those for few of them not being where those for many begin."""
        values = self.values(name)
        if values is None:
            return False
        whole, *others = values
        return any(one.ndim != whole.ndim or not _begins(whole, one) for one in others)


def _begins(whole: np.ndarray, part: np.ndarray) -> bool:
    """Whether `part` is where `whole` begins."""
    if any(few > most for few, most in zip(part.shape, whole.shape, strict=True)):
        return False
    beginning = whole[tuple(slice(0, extent) for extent in part.shape)]
    return np.array_equal(beginning, part, equal_nan=whole.dtype.kind == "f")
