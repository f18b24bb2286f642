"""Kernels that compute in float32, on tensors of float16 or bfloat16: each load is widened, each store narrowed.

y[i] = x[i] * s[i]   →   y[i] = float16(float32(x[i]) * s[i])          x and y narrow
"""

from __future__ import annotations

from collections.abc import Collection

import tvm_ffi
from tvm import ir, tirx

_FLOAT = "float32"


def with_half_storage(kernel: tirx.PrimFunc, positions: Collection[int], half: str) -> tirx.PrimFunc | None:
    """The kernel whose float32 parameters at these positions are of type `half`, and so are its views of them.

    None if the kernel needs their addresses, or uses them otherwise than by loads and stores.
    """
    params = list(kernel.params)
    narrow: dict[ir.Var, tirx.Buffer] = {}
    for position in positions:
        param = params[position]
        assert str(param.dtype) == _FLOAT, f"parameter {position} is {param.dtype}"
        params[position] = narrow[param] = tirx.decl_buffer(param.shape, half, name=param.name)
    views: list[tirx.stmt.DeclBuffer] = []
    calls: list[ir.Call] = []
    tvm_ffi.structural_walk(kernel.body, [(tirx.stmt.DeclBuffer, views.append), (ir.Call, calls.append)])
    if any(isinstance(call.op, ir.Op) and call.op.name == "tirx.address_of" for call in calls):
        return None
    memory = dict(narrow)
    for view in views:
        if _memory_of(view) in memory:
            narrow[view.buffer] = tirx.decl_buffer(view.buffer.shape, half, name=view.buffer.name)

    def declared(node: tirx.stmt.DeclBuffer) -> tirx.Stmt:
        if node.buffer not in narrow:
            return node
        return tirx.stmt.DeclBuffer(narrow[node.buffer], data=tirx.buffer.buffer_data(memory[_memory_of(node)]))

    def load(node: ir.TensorLoad) -> ir.Expr:
        if node.source not in narrow:
            return node
        return tirx.Cast(node.ty.dtype, tirx.BufferLoad(narrow[node.source], node.indices))

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        if node.buffer not in narrow:
            return node
        lanes = node.value.ty.dtype.lanes
        value = tirx.Cast(half if lanes == 1 else f"{half}x{lanes}", node.value)
        return tirx.BufferStore(narrow[node.buffer], value, node.indices)

    handlers = [(tirx.stmt.DeclBuffer, declared), (ir.TensorLoad, load), (tirx.BufferStore, store)]
    body = tvm_ffi.structural_map(kernel.body, handlers)
    left: list[ir.Var] = []
    tvm_ffi.structural_walk(body, (ir.Var, lambda var: left.append(var) if var in narrow else None))
    return None if left else tirx.PrimFunc(params, body, kernel.ret_type, kernel.attrs)


def _memory_of(view: tirx.stmt.DeclBuffer) -> ir.Expr | None:
    """The buffer that a view looks at."""
    return view.data.args[0] if isinstance(view.data, ir.Call) else None
