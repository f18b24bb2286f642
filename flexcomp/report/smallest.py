"""Where the smallest budget comes from: the step that needs most at once, and all that lies in the arena then."""

from __future__ import annotations

from collections.abc import Sequence

from flexcomp.program import Program, nodes
from flexcomp.report.marks import neediest
from flexcomp.report.memory_map import Box, boxes


def smallest_facts(program: Program) -> dict:
    """The neediest step of the smallest plan; sizes in bytes, occupants in the order of their addresses."""
    rung = program.rungs[0]
    found = boxes(program, rung)
    most = neediest(program, rung, found)
    index = rung.steps[most.step].layer
    alive = sorted((box for box in found if box.start <= most.step < box.end), key=lambda box: (box.address, box.kind))
    return {
        "step": most.step,
        "layer": program.layers[index].name,
        "node": nodes.read(program)[index],
        "needed_bytes": most.nbytes,
        "parts": most.parts,  # of the needed bytes, by kind
        "alive": [
            {"kind": box.kind, "name": box.name, "address": box.address, "bytes": box.nbytes, "over": _under(box, alive)}
            for box in alive
        ],
    }


def _under(box: Box, alive: Sequence[Box]) -> str | None:
    """The name of the occupant in whose place this one is written; null if there is none."""
    end = box.address + box.nbytes
    earlier = (one for one in alive if one.start < box.start and one.address < end and box.address < one.address + one.nbytes)
    return next((one.name for one in earlier), None)
