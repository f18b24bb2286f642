"""Loop nests of the generic scheduler: one stage becomes parallel, tiled, vectorised TIR.

Elementwise stages
    1. Partition: where conditions compare an axis with a constant (concatenation, padding, slices), the axis is
       cut there, and every box of the iteration space loses its conditions.
    2. Collapse: adjacent axes that all accesses walk as one become one.
    3. The axis along which the store is contiguous is covered by vectors (`rows.cover`). If a load is
       contiguous along another axis, squares of vectors are transposed in registers.
Reductions
    A. The store's contiguous axis is contiguous in the loads too: tiles of rows × vectors are accumulated in
       registers over all reduce loops.
    B. Otherwise, if a reduce axis is contiguous: lanes accumulate along this axis and are combined at the end.
    C. Otherwise: a scalar accumulator.
    Tiles that do not divide an axis end with one that overlaps its predecessor and stores the same again.

Schedule primitives are not used: these refuse two nests that write parts of one buffer, and split tails into
predicates.
"""

from __future__ import annotations

from tvm import tirx

from .axes import split
from .elementwise import emit_elementwise
from .nest import Machine, nest_of
from .reduction import emit_reduction
from .stages import Stage

__all__ = ["Machine", "emit"]


def emit(stage: Stage, flat: dict[tirx.Buffer, tirx.Buffer], machine: Machine) -> tirx.Stmt:
    """The loops of one stage; `flat` gives the one-dimensional view of every buffer."""
    nest = split(nest_of(stage, flat))
    return emit_reduction(nest, machine) if nest.reduction else emit_elementwise(nest, machine)
