"""Cut tables of embeddings into blocks of rows, so that a step needs not hold all of them."""

from __future__ import annotations

import math

import tvm
from tvm import ir, relax
from tvm.relax import op

from ..schedules import machines
from ..schedules.operators import embedding
from ..schedules.operators.embedding import EmbeddingSpec
from ..schedules.registry import Machine
from ..schedules.tiles.blocks import blocks_of
from .attributes import FETCH, VALUES_OF, kernel_attributes
from .ir import dtype, operator, shape, static_tensor, values_of
from .module_pass import module_pass
from .panels import OfBlocks, on_weights, rounded_to_blocks
from .rebuild import MainRewriter
from .weights import KeptWeight, WeightType, weight_vars

# Smaller tables are not worth cutting.
_LEAST_NBYTES = 1 << 20


@module_pass(opt_level=0)
class SliceEmbeddings:
    """Look rows of large tables up with a kernel that takes any blocks of the table.

    y = take(w, ids, axis=0)   →   p = reshape(concat(w, zeros))              float32[blocks, rows, width]
                                   y = call_tir(embedding_0, (ids, p, 0, blocks))

    The table is float32 and depends on weights only, the ids do not. A step of some blocks fills in the rows of y that
    lie in these. `weight_type` says in which element type rows are kept.
    """

    def __init__(self, unit: Machine, weight_type: WeightType = lambda names, weight: "float32") -> None:
        self.unit, self.weight_type = unit, weight_type

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        return _Slicer(mod, self.unit, self.weight_type).rewrite()


class _Slicer(MainRewriter):
    def __init__(self, mod: tvm.IRModule, unit: Machine, weight_type: WeightType) -> None:
        super().__init__(mod)
        self.unit, self.weight_type = unit, weight_type
        self.from_weights, self.old = weight_vars(self.main), values_of(self.main)
        self.kernels: dict[EmbeddingSpec, ir.GlobalVar] = {}

    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr:
        return self._lookup(var, value) if self._is_lookup(value) else self.substitute(value)

    def _is_lookup(self, value: ir.Expr) -> bool:
        if operator(value) != "take" or not all(
            isinstance(arg, relax.Var) and static_tensor(arg) for arg in value.args
        ):
            return False
        table, ids = value.args
        # Mode "wrap" counts numbers outside the table from its other end.
        if value.attrs.axis is None or int(value.attrs.axis) % len(shape(table)) or str(value.attrs.mode) == "wrap":
            return False
        large = dtype(table) == "float32" and 4 * math.prod(shape(table)) >= _LEAST_NBYTES
        countable = dtype(ids) in ("int32", "int64") and math.prod(shape(ids)) > 0
        return large and countable and table in self.from_weights and ids not in self.from_weights

    def _lookup(self, var: relax.Var, call: relax.Call) -> ir.Expr:
        table, ids = call.args
        rows, *rest = shape(table)
        weight = KeptWeight(self.main, self.old, table, 0, may_be_in_blocks=True)
        kept = self.weight_type([var.name], weight)
        values_of, kept = kept.startswith(VALUES_OF), kept.removeprefix(VALUES_OF)
        spec = EmbeddingSpec(shape(ids) or (1,), dtype(ids), rows, math.prod(rest), "float32" if values_of else kept)
        columns = spec.panel[-1]
        if blocks_of(spec.kept):
            panel = self._in_blocks(weight.in_blocks(), table, spec)
        else:
            panel = self._rows(table, spec)
            if values_of and not (blocks_of(kept) and weight.in_blocks()):
                panel = on_weights(self.emit, f"round.{kept}", "float32", (rows, columns), panel)
            if spec.dtype != "float32":
                panel = on_weights(self.emit, f"rows.{spec.kept}", spec.dtype, (rows, columns), panel)
        missing = spec.blocks * spec.block_rows - rows
        if missing:
            panel = self.emit(op.concat([panel, self.emit(op.zeros((missing, columns), spec.dtype))], 0))
        panel = self.emit(self.reshape(panel, spec.panel))
        numbers = self.emit(self.reshape(self.substitute(ids), spec.ids))
        args = [numbers, panel, relax.prim_value(0), relax.prim_value(spec.blocks)]
        found = relax.call_tir(self._kernel(spec), args, relax.TensorType((*spec.ids, spec.width), "float32"))
        return self.reshape(self.emit(found), shape(ids) + tuple(rest))

    def _rows(self, table: relax.Var, spec: EmbeddingSpec) -> relax.Var:
        return self.emit(self.reshape(self.substitute(table), (spec.rows, spec.width)))

    def _in_blocks(self, parts: OfBlocks | None, table: relax.Var, spec: EmbeddingSpec) -> relax.Var:
        """Rows of a table that the model has in blocks, or that is rounded to blocks."""
        if parts is None:
            parts = rounded_to_blocks(self.emit, self._rows(table, spec), spec.kept)
            given = [parts.integers, parts.scales]
        else:
            given = [self.substitute(one) for one in (parts.integers, parts.scales, parts.zeros) if one is not None]
        return on_weights(self.emit, f"rows_of_blocks.{spec.kept}", spec.dtype, (spec.rows, spec.columns), *given)

    def _kernel(self, spec: EmbeddingSpec) -> ir.GlobalVar:
        if spec not in self.kernels:
            name = f"embedding_{len(self.kernels)}"
            described = kernel_attributes("take", "embedding", str(spec), 0, spec.blocks)
            func = machines.operator(spec, embedding.kernel, self.unit).with_attrs({**described, FETCH: spec.encode()})
            self.kernels[spec] = self.builder.add_func(func.with_attr("global_symbol", name), name)
        return self.kernels[spec]
