"""Say how finely every layer's weights can be cut."""

from __future__ import annotations

import tvm
from tvm import relax

from ..schedules.registry import Machine
from .attributes import BLOCKS
from .choose_kernels import annotate, chosen
from .module_pass import module_pass


@module_pass(opt_level=0)
class SliceLayers:
    """Mark every layer function with the number of output-channel blocks into which the layer can be cut.

    flexcomp.kernel = "direct 14×32"   →   …, flexcomp.blocks = 8     for 256 output channels

    A block is the work of one register tile, a multiple of the vector width. The planner cuts each layer into
    steps of whole blocks, differently for every budget; the kernel is the same for all of them.
    """

    def __init__(self, unit: Machine) -> None:
        self.unit = unit

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        def blocks(func: relax.Function) -> dict:
            candidate = chosen(func, self.unit)
            return {BLOCKS: candidate.panel.blocks if candidate.panel else 1}

        return annotate(mod, blocks)
