"""The summary after a build: a few lines, and the next commands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from flexcomp.program import Program, Rung
from flexcomp.report.facts import describe, notes
from flexcomp.runtime import MINIMUM, Budget, resolve, set_by
from flexcomp.units import Units, enough, human_bytes

PARTS = (0.1, 0.25)  # of everything resident


def closing_lines(programs: Sequence[Program], library: Path, budget: Budget, here: bool = True) -> list[str]:
    """Files and sizes, the smallest budget, predicted latency in four budgets, and the next commands.

    Of several shapes, `programs`, budgets and latency are those of the first one, the largest. Amounts are in the units of
    `budget`, whose plan is one of those shown.
    `here`: whether the library is for this machine.
    """
    program, units = programs[0], budget.units
    files = [f"{path} ({human_bytes(path.stat().st_size, units)})" for path in (library, library.with_suffix(".weights"))]
    smallest, largest = program.rungs[0].budget, program.rungs[-1].budget
    rows = _rows(program, budget)
    width = max(len(enough(rung.budget, units)) for _, rung in rows)
    name = shlex.quote(f"./{library}" if str(library).startswith("-") else str(library))
    by = set_by(program.metadata.get(MINIMUM, ""), units, with_needs=False)
    if library.suffix == ".o":
        following = [f"next: cc program.c {name} $(pkg-config --cflags --libs flexcomp-static)"]
    elif len(programs) > 1:
        others = f"{len(programs) - 1} shapes, which are" if len(programs) > 2 else "shape, which is"
        following = [f"next: flexcomp inspect {name}  for the other {others} smaller"]
    else:
        command = f"run {name} --budget {_typed(program, budget)}" if here else f"package {name} -o for-device.tar.gz"
        following = [f"next: flexcomp {command}", f"      flexcomp inspect {name}  for layers, kernels and all budgets"]
    count = f"{len(program.rungs)} plans" if len(program.rungs) > 1 else "1 plan"
    return [
        f"wrote {files[0]} and {files[1]}",
        f"the smallest budget is {enough(smallest, units)}{by}",
        *notes(describe(program)),
        f"everything resident takes {enough(largest, units)}; {count} in all, of which predicted",
        *(f"  {rung.predicted_ms:9.2f} ms in {enough(rung.budget, units):>{width}}, {name}" for name, rung in rows),
        *following,
    ]


def _rows(program: Program, budget: Budget) -> list[tuple[str, Rung]]:
    """Up to four plans of the ladder with their names, ascending; each once."""
    smallest, largest = program.rungs[0].budget, program.rungs[-1].budget
    wanted = {"the smallest": smallest, "everything resident": largest}
    default = program.default_budget
    if budget.nbytes is not None or budget.fraction is not None:
        wanted["as asked"] = max(smallest, min(resolve(budget, 0, default, largest), largest))
    elif not budget.smallest and not budget.largest:
        wanted["the default"] = default
    for part in PARTS:
        if len(wanted) < 4:
            wanted[f"{part:.0%} of it".replace("%", " %")] = max(smallest, int(part * largest))
    found: dict[int, str] = {}
    for name, nbytes in wanted.items():
        index = max(i for i, rung in enumerate(program.rungs) if rung.budget <= nbytes)
        found.setdefault(index, name)
    return [(name, program.rungs[index]) for index, name in sorted(found.items())]


def _typed(program: Program, budget: Budget) -> str:
    """The budget to try, as typed."""
    fraction = budget.fraction or PARTS[0]
    nbytes = fraction * program.rungs[-1].budget if budget.nbytes is None else budget.nbytes
    if budget.smallest or nbytes < program.rungs[0].budget:
        return "min"
    if budget.nbytes is None:
        return f"{100 * fraction:g}%"
    return str(budget.nbytes) if budget.units is Units.BYTES else enough(budget.nbytes, budget.units).replace(" ", "")
