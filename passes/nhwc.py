"""Compute images with the channels last.

One walk forwards decides for each operator its layouts of input and output (`nhwc_rules.py`); `both_layouts.py` keeps the
versions of values.
"""

from __future__ import annotations

import tvm
from tvm import ir, relax

from .both_layouts import BothLayouts, to_last
from .ir import operator, shape, static_tensor
from .module_pass import module_pass
from .nhwc_rules import RULES


@module_pass(opt_level=0)
class ToNHWC:
    """Turn 2-D convolutions, and operators between them, to NHWC, with OHWI kernels.

    main(x, w):                          main(x, w):
      y = conv2d(x, w)                     wt = permute_dims(w, [0, 2, 3, 1])
      z = relu(y)                  →       xt = permute_dims(x, [0, 2, 3, 1])
      return z                             yt = conv2d(xt, wt, NHWC, OHWI)
                                           zt = relu(yt)
                                           return permute_dims(zt, [0, 3, 1, 2])

    Inputs and results of main keep their layout. An operator that is not known here gets its operands
    in their original layout, so every module can be converted.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        return _ToNHWC(mod).rewrite()


class _ToNHWC(BothLayouts):
    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr | None:
        rule = None if var in self.weights or not static_tensor(var) else RULES.get(operator(value))
        converted = rule(self, value) if rule else None
        if converted is None:
            return self.in_main_layout(value)
        last = self.emit(converted, var.name)
        extents = shape(var)
        assert shape(last) == tuple(extents[axis] for axis in to_last(len(extents))), f"{operator(value)}: {shape(last)}"
        self.last[var] = last
        return None
