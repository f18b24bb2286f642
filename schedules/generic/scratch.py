"""Intermediate tensors of a kernel as arguments, so that the planner places them.

root block: alloc_buffer(T)        →        func(inputs…, outputs…, T)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm_ffi
from tvm import s_tir, tirx


@dataclass(frozen=True)
class Scratch:
    """A tensor that a kernel needs while it runs."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * tvm_ffi.dtype(self.dtype).itemsize

    @classmethod
    def of(cls, buffer: tirx.Buffer) -> Scratch:
        """The scratch that replaces an allocated buffer."""
        return cls(tuple(int(extent) for extent in buffer.shape), str(buffer.dtype))


def lift(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, tuple[Scratch, ...]]:
    """Turn the buffers that the root block allocates in global scope into trailing parameters.

    A function without blocks is returned unchanged. Buffers of other scopes stay: these are registers.
    """
    realize = func.body
    if not isinstance(realize, s_tir.SBlockRealize):
        return func, ()
    root = realize.block
    lifted = [buffer for buffer in root.alloc_buffers if buffer.scope() in ("", "global")]
    if not lifted:
        return func, ()
    kept = [buffer for buffer in root.alloc_buffers if buffer.scope() not in ("", "global")]
    block = s_tir.SBlock(
        root.iter_vars,
        root.reads,
        root.writes,
        root.name_hint,
        root.body,
        root.init,
        kept,
        root.match_buffers,
        root.annotations,
    )
    body = s_tir.SBlockRealize(realize.iter_values, realize.predicate, block)
    result = tirx.PrimFunc([*func.params, *lifted], body, func.ret_type, func.attrs)
    return result, tuple(Scratch.of(buffer) for buffer in lifted)
