"""The memory that a layer's weights come from, in the work of kernels: what computing does not hide of reading them.

A kernel passes over its weights once, or several times for parts of its output. In each pass the first register tile that meets a
block waits for the block, and the others find it in a core's own cache. So a pass hides most of its reading where that tile
computes for longer. Where memory is slow, all tiles ask for the next block's weights (`asking.py`) and count as one.
"""

from __future__ import annotations

from dataclasses import dataclass

# Of the norm that is the time of two that overlap: 1 if one followed the other, infinite if the longer one hid the other. Kernels
# whose weights take 0.4 to 0.9 times as long as their products: Winograd's, Strassen's and direct ones at 7×7 and 14×14 pixels,
# and dense layers of 64 rows.
_NORM = {False: 3, True: 2}  # by whether memory is slow


@dataclass(frozen=True)
class Memory:
    """A machine's memory as the threads of a layer see it; by default one thread of a core with AVX-512 at 3 GHz."""

    far: float = 3.6  # operations that all threads could do while a byte is read from memory
    near: float = 1.8  # the same of the last-level cache
    second_nbytes: int = 1 << 20  # of the cache that a core has for itself
    last_nbytes: int = 16 << 20  # weights up to here are still cached when the next pass wants them
    is_slow: bool = False  # for a core that is alone: kernels ask for weights while others are multiplied

    @classmethod
    def decoded(cls, text: str) -> Memory:
        """The inverse of `str`."""
        far, near, second, last, *slow = text.split()
        return cls(float(far), float(near), int(second), int(last), slow == ["slow"])

    def __str__(self) -> str:
        return f"{self.far!r} {self.near!r} {self.second_nbytes} {self.last_nbytes}{' slow' if self.is_slow else ''}"

    def again(self, nbytes: int) -> float:
        """Operations that could be done while weights are read that were read before."""
        if nbytes <= self.second_nbytes:
            return 0.0
        return (self.near if nbytes <= self.last_nbytes else self.far) * nbytes

    def waiting(self, nbytes: int, passes: int, computed: float, tiles: int, late: float) -> float:
        """Operations that could be done while passes over weights wait.

        In every pass so many register `tiles` meet a block; `computed` are the operations of all passes. Of the time of reading
        from memory, the part `late` passes even where there is enough to compute: loads start that much later than they could.
        """
        first, far = computed / max(1, passes * tiles), self.far * nbytes
        from_memory = max(late * far, self._beyond(first, far))
        if nbytes > self.last_nbytes:
            return passes * from_memory
        return from_memory + (passes - 1) * self._beyond(first, self.again(nbytes))

    def _beyond(self, computing: float, reading: float) -> float:
        """How much longer both take than computing alone: where neither is much shorter, each waits for the other at times."""
        norm = _NORM[self.is_slow]
        return (computing**norm + reading**norm) ** (1 / norm) - computing


USUAL = Memory()
