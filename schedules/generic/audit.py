"""Memory that a kernel takes from the runtime, unknown to the plan.

On CPUs, buffers in "global" scope below 1 KiB live on the stack. Larger ones, and all in other scopes (register
tiles), are requested by `TVMBackendAllocWorkspace` while the kernel runs, once per thread where they are
allocated inside a parallel loop. The runtime serves them from a fixed block per thread.
"""

from __future__ import annotations

import math

import tvm
import tvm_ffi
from tvm import tirx

from .scratch import Scratch

# Of the runtime's block per thread.
WORKSPACE_BYTES = 64 * 1024
# TVM's kMaxStackAllocaSize: constant buffers below it become stack memory.
_STACK_LIMIT_BYTES = 1024
# Every request is rounded up to the runtime's alignment.
_ALIGNMENT_BYTES = 64


def requests(func: tirx.PrimFunc, target: tvm.target.Target) -> list[Scratch]:
    """The buffers that the lowered `func` requests from the runtime."""
    name = "audited"
    module = tvm.IRModule({name: func.with_attr("global_symbol", name)})
    module = tirx.transform.BindTarget(target.with_host(target))(module)
    pipeline, _, _ = tirx.get_tir_pipeline("default")
    found: list[tirx.Buffer] = []
    for lowered in pipeline(module).functions.values():
        tvm_ffi.structural_walk(lowered.body, (tirx.AllocBuffer, lambda stmt: found.append(stmt.buffer)))
    return [
        Scratch.of(buffer)
        for buffer in found
        if buffer.scope() not in ("", "global") or Scratch.of(buffer).nbytes >= _STACK_LIMIT_BYTES
    ]


def hidden_bytes(func: tirx.PrimFunc, target: tvm.target.Target) -> int:
    """Bytes of workspace per thread that `func` requests, as if all requests were live together."""
    return sum(math.ceil(r.nbytes / _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES for r in requests(func, target))


def check(func: tirx.PrimFunc, target: tvm.target.Target) -> None:
    """Raise AssertionError if `func` requests more than the runtime's block holds: a defect of its schedule."""
    total = hidden_bytes(func, target)
    if total > WORKSPACE_BYTES:
        largest = max(requests(func, target), key=lambda request: request.nbytes)
        raise AssertionError(
            f"a kernel requests {total} bytes of workspace per thread, the runtime has {WORKSPACE_BYTES}; "
            f"the largest buffer is {largest.dtype}{list(largest.shape)}: pass it as scratch instead"
        )
