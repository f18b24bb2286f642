"""Small Relax networks for tests of the layer passes."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax


def network(inputs: dict[str, tuple], weights: dict[str, tuple], body: Callable) -> tvm.IRModule:
    """`body(emit, *variables)` returns the last expression; variables are inputs first, then weights."""
    builder = relax.BlockBuilder()
    params = [relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in {**inputs, **weights}.items()]
    with builder.function("main", params, attrs={"num_input": len(inputs)}):
        with builder.dataflow():
            output = builder.emit_output(body(builder.emit, *params))
        builder.emit_func_output(output)
    return builder.get()


def conv(x, w, **attrs):
    return relax.op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="OHWI", **attrs)


def calls(mod: tvm.IRModule) -> list[str]:
    """Operators and called functions of main, in order."""
    result = []
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.Call):
                callee = value.args[0] if value.op == tvm.ir.Op.get("relax.call_tir") else value.op
                result.append(callee.name if isinstance(callee, tvm.ir.Op) else callee.name_hint)
    return result
