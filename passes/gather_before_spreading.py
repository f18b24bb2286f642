"""Gather by an index as it was before it was broadcast."""

from __future__ import annotations

import math

import numpy as np
import tvm
from tvm import ir, relax
from tvm.relax import op

from .ir import dtype, operator, shape, static_tensor
from .module_pass import module_pass
from .rebuild import MainRewriter

_MOST = 2**31  # elements that an index of 32 bits reaches


@module_pass(opt_level=0)
class GatherBeforeSpreading:
    """Take elements by one index for all leading axes, where every one has the same.

    b = broadcast_to(i, (h, n, m))            i: (1, n, m)       f = i + k · [0, 1, …, n - 1]
    y = gather_elements(x, b, axis=2)         x: (h, n, k)   →   y = take(reshape(x, (h, n · k)), f, axis=1)

    Scores by positions have one index for all heads. Indices are safe already; those of constants are computed at build time.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        return _Gatherer(mod).rewrite()


class _Gatherer(MainRewriter):
    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr:
        value = self.substitute(value)
        if operator(value) != "gather_elements" or not all(map(static_tensor, value.args)):
            return value
        data, spread = value.args
        broadcast = self.producer(spread, "broadcast_to")
        if broadcast is None or not isinstance(broadcast.args[0].ty, relax.TensorType):
            return value
        axis, index = int(value.attrs.axis) % len(shape(data)), broadcast.args[0]
        extents = (1,) * (len(shape(spread)) - len(shape(index))) + shape(index)
        lead = 0
        while lead < axis and extents[lead] == 1 and shape(spread)[lead] == shape(data)[lead]:
            lead += 1
        rest = shape(data)[lead:]
        # Elsewhere an index has one place for each of the gathered elements.
        if math.prod(shape(spread)[:lead]) == 1 or extents[lead:] != shape(spread)[lead:] or math.prod(rest) >= _MOST:
            return value
        flat = self._flat(index, extents[lead:], rest, axis - lead)
        rows = self.emit(self.reshape(data, (*shape(data)[:lead], math.prod(rest))))
        return op.take(rows, flat, axis=lead, mode="clip")

    def _flat(self, index: ir.Expr, extents: tuple[int, ...], rest: tuple[int, ...], axis: int) -> relax.Var:
        """int32[extents]: which element of an array of shape `rest` an index along `axis` means."""
        strides = [math.prod(rest[place + 1 :]) for place in range(len(rest))]
        offsets = np.zeros(extents, np.int32)
        for place, stride in enumerate(strides):
            if place != axis:
                along = np.arange(extents[place], dtype=np.int32) * np.int32(stride)
                offsets = offsets + along.reshape([-1 if i == place else 1 for i in range(len(extents))])
        place = self.emit(self.reshape(index, extents))
        if dtype(place) != "int32":
            place = self.emit(op.astype(place, "int32"))
        if strides[axis] > 1:
            place = self.emit(op.multiply(place, relax.const(np.int32(strides[axis]))))
        lone = [slice(None) if i != axis else slice(0, 1) for i in range(len(extents))]
        return self.emit(op.add(place, relax.const(np.ascontiguousarray(offsets[tuple(lone)]))))
