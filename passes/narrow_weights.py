"""Say in which element type every layer's weights are kept."""

from __future__ import annotations

import tvm
from tvm.ir.transform import module_pass

from .attributes import DTYPE, WEIGHTS
from .choose_kernels import annotate


@module_pass(opt_level=0)
class NarrowWeights:
    """Mark every layer function that has weights with their element type.

    flexcomp.layer = "conv2d"   →   flexcomp.layer = "conv2d", flexcomp.dtype = "float16"

    Kernels that take weights as they are have them in that type and widen them in registers; those that take transformed
    weights have float32 ones, made of the same rounded values.
    """

    def __init__(self, dtype: str = "float32") -> None:
        self.dtype = dtype

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        if self.dtype == "float32":
            return mod
        return annotate(mod, lambda func: {DTYPE: self.dtype} if len(func.attrs[WEIGHTS]) else {})
