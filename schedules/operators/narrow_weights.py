"""Kernels of any origin that read weights of fewer bits: each load is widened.

x[i, k] * w[k, j]   →   x[i, k] * float32(w[k, j])                 float16, bfloat16
                        x[i, k] * (float32(w[k, j]) * scales[k])   int8: a scale for each index of the first axis
"""

from __future__ import annotations

from collections.abc import Mapping

import tvm_ffi
from tvm import ir, tirx

from ..tiles.panel import is_scaled


def widening(kernel: tirx.PrimFunc, inputs: int, kinds: Mapping[int, str]) -> tirx.PrimFunc | None:
    """The kernel (inputs…, scales…, others…) whose float32 inputs at these positions have narrow types.

    None if the kernel reads one otherwise than by loads.
    """
    params, scales = list(kernel.params), {}
    narrow: dict[ir.Var, tirx.Buffer] = {}
    for position, kind in kinds.items():
        param = kernel.params[position]
        params[position] = narrow[param] = tirx.decl_buffer(param.shape, kind, name=param.name)
        if is_scaled(kind):
            scales[param] = tirx.decl_buffer((param.shape[0],), "float32", name=f"{param.name}_scales")

    def load(node: ir.TensorLoad) -> ir.Expr:
        if node.source not in narrow:
            return node
        wide = tirx.Cast("float32", tirx.BufferLoad(narrow[node.source], node.indices))
        return wide * tirx.BufferLoad(scales[node.source], [node.indices[0]]) if node.source in scales else wide

    def region(node: ir.TensorRegion) -> ir.Expr:
        return tirx.BufferRegion(narrow[node.source], node.region) if node.source in narrow else node

    body = tvm_ffi.structural_map(kernel.body, [(ir.TensorLoad, load), (ir.TensorRegion, region)])
    left: list[ir.Var] = []
    tvm_ffi.structural_walk(body, [(ir.Var, lambda var: left.append(var) if var in narrow else None)])
    if left:
        return None
    return tirx.PrimFunc([*params[:inputs], *scales.values(), *params[inputs:]], body, kernel.ret_type, kernel.attrs)


__all__ = ["widening"]
