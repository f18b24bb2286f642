"""Every segment is loaded just before its step: nothing is preloaded or kept. The baseline for preloading."""

from __future__ import annotations

from ..errors import Unplaceable
from ..parts.assemble import Place, assemble
from ..parts.layout import compact_layout, smallest_layout
from ..parts.pages import lowest, starts
from ..parts.pieces import pieces_of
from ..parts.slicing import slice_to_room
from ..problem import PAGE, Plan, Problem


def on_demand(problem: Problem, budget: int) -> Plan:
    """The plan for a budget in bytes, with slices as large as fit. Raises Unplaceable below the smallest layout.

    A load starts after the previous step, so loading and computing never overlap.
    """
    arena = budget // PAGE * PAGE
    layouts = [layout for layout in (compact_layout(problem), smallest_layout(problem)) if layout.nbytes <= arena]
    if not layouts:
        raise Unplaceable(f"the smallest arena is {smallest_layout(problem).nbytes:,} B")
    layout = layouts[0]
    steps = slice_to_room(problem, layout.room(arena))
    of_layer = layout.free_pages(arena)
    pieces = pieces_of(problem, steps)
    places = []
    for piece in pieces:
        possible = starts(of_layer[steps[piece.step].layer], piece.pages)
        places.append(Place(piece.step, lowest(possible)))
    scratch_at = [layout.scratch_at[step.layer] for step in steps]
    return assemble(problem, "on_demand", budget, steps, layout.buffer_at, scratch_at, pieces, places)
