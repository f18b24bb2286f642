"""Tables of embeddings that are the weights of a dense layer, too: both read the layer's panel."""

from __future__ import annotations

from dataclasses import dataclass, replace

import tvm
from tvm import relax

from ..schedules.operators.embedding import EmbeddingSpec, Interleaved
from ..schedules.registry import Candidate, Machine
from ..schedules.tiles.blocks import apart, blocks_of
from .attributes import DTYPE, FETCH, VALUES_OF, WEIGHTS
from .choose_kernels import chosen
from .ir import bindings, operator, shape
from .layers import LayerReading, is_layer, read
from .panels import before_rounding, of_blocks
from .rebuild import permuted_axes


@dataclass(frozen=True)
class Tied:
    """The dense layer whose panel is the table of an embedding."""

    call: relax.Call
    layer: relax.Function
    reading: LayerReading
    candidate: Candidate

    def spec(self, spec: EmbeddingSpec) -> EmbeddingSpec:
        """The embedding on the layer's panel."""
        panel = self.candidate.panel
        return replace(spec, kept=panel.kept, interleaved=Interleaved.of(panel))


@dataclass(frozen=True)
class _Source:
    """Rows of a weight: a parameter or variable of main, and the type to which its float32 numbers are rounded, if any."""

    var: relax.Var
    rounded: str
    others: tuple[relax.Var, ...] = ()  # scales and zero points of integers in blocks
    columns: bool = False  # of the weight instead of rows


def tied_tables(mod: tvm.IRModule, unit: Machine) -> dict[relax.Var, Tied]:
    """By the variable of an embedding's table the dense layer that has the same weights.

    A row is a column of a block, so that a whole block is read to fetch a row.
    """
    values = {binding.var: binding.value for binding in bindings(mod["main"])}
    tables: list[tuple[relax.Var, EmbeddingSpec]] = []
    heads: dict[_Source, Tied] = {}
    for value in values.values():
        if (spec := embedding_of(mod, value)) is not None:
            tables.append((value.args[1].fields[1], spec))
        elif isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar) and is_layer(layer := mod[value.op]):
            reading = read(layer, tuple(int(i) for i in layer.attrs[WEIGHTS]))
            if reading.weight is not None and (source := _channels_of(value.args[reading.weight], layer, values)) is not None:
                heads.setdefault(source, Tied(value, layer, reading, chosen(layer, unit)))
    found = {panel: (spec, heads.get(_rows_of(panel, spec, values))) for panel, spec in tables}
    return {panel: tied for panel, (spec, tied) in found.items() if tied is not None and _fits(spec, tied)}


def embedding_of(mod: tvm.IRModule, value: tvm.ir.Expr) -> EmbeddingSpec | None:
    """The rows that a call looks up in a table; None for other calls."""
    if operator(value) != "call_tir" or FETCH not in (mod[value.args[0]].attrs or {}):
        return None
    return EmbeddingSpec.decode(str(mod[value.args[0]].attrs[FETCH]))


def _fits(spec: EmbeddingSpec, tied: Tied) -> bool:
    candidate, panel = tied.candidate, tied.candidate.panel
    if panel is None or panel.groups > 1 or panel.together > 1 or candidate.transform:
        return False
    kept = apart(panel.kept)
    return (panel.group_channels, panel.taps, kept) == (spec.rows, spec.width, spec.kept) and panel.block <= spec.rows


def _rows_of(panel: relax.Var, spec: EmbeddingSpec, values: dict) -> _Source:
    """The weight of whose rows SliceEmbeddings made a table."""
    rounded = ""
    var = values[panel].args[0] if operator(values.get(panel)) == "reshape" else panel
    if spec.blocks * spec.block_rows > spec.rows:
        var = values[var].args[0].fields[0]  # of a concatenation with rows of zeros
    while operator(value := values.get(var)) == "call_pure_packed" and of_blocks(value) is None:
        _, function, kept = str(value.args[0].global_symbol).split(".", 2)
        rounded = kept if function == "round" else rounded
        if function == "rows_of_blocks":
            if (wide := before_rounding(values.get(value.args[1]))) is not None:
                return _rows(wide, rounded, values)
            return _Source(value.args[1], rounded, tuple(value.args[2:]))
        var = value.args[1]
    return _rows(var, rounded, values)


def _rows(var: relax.Var, rounded: str, values: dict) -> _Source:
    """Rows of a variable: columns of a weight that it is the transpose of."""
    var = _unshaped(var, values)
    if _is_turned(values.get(var)):
        return _Source(_unshaped(values[var].args[0], values), rounded, columns=True)
    return _Source(var, rounded)


def _channels_of(weight: relax.Var, layer: relax.Function, values: dict) -> _Source | None:
    """The weight of whose rows or columns the channels of a dense layer are."""
    dtype = str(layer.attrs[DTYPE]) if DTYPE in layer.attrs else ""
    if len(shape(weight)) != 2:
        return None
    rounded = dtype.removeprefix(VALUES_OF) if dtype.startswith(VALUES_OF) else ""
    value = values.get(weight)
    if not _is_turned(value):
        return _Source(_unshaped(weight, values), rounded, columns=True)
    parts = of_blocks(values.get(value.args[0])) if blocks_of(dtype) else None
    if parts is not None:
        return _Source(parts.integers, "", tuple(one for one in (parts.scales, parts.zeros) if one is not None))
    return _Source(_unshaped(value.args[0], values), rounded)


def _is_turned(value: tvm.ir.Expr | None) -> bool:
    """Whether a value is the transpose of a matrix."""
    return operator(value) == "permute_dims" and permuted_axes(value) == [1, 0]


def _unshaped(var: relax.Var, values: dict) -> relax.Var:
    """The value that `var` holds in another shape."""
    while operator(value := values.get(var)) == "reshape":
        var = value.args[0]
    return var
