"""Which budgets deserve a rung: enough that no budget in between runs much slower than possible.

Plans are made for a few budgets, then between neighbours whose latencies or budgets are far apart, until neighbours are close,
nearly as fast as the fastest, or one unit of memory apart, by default a page. A budget between two rungs is no faster than the
larger rung. So a rung is left out again if the next larger one is still close to the next smaller one without it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from itertools import accumulate, pairwise

from .problem import PAGE

NEARLY = 1.02  # times the least latency: larger budgets than the smallest one with that are used only on request (`usual`)
PAYS = 1.025  # latencies that are no further apart are close
_FAR = 1.04  # budgets no further apart are close: further apart, the search may be luckier between them
_APART = 1.2  # neighbours of the budgets to begin with differ by no more than this factor
_AT_ONCE = 4  # budgets that are tried between two others before the next look, at most


def rounded_up(budget: float, unit: int) -> int:
    """The next multiple of a unit."""
    return -(-int(budget) // unit) * unit


def _whole_units(budgets: Iterable[float], smallest: int, largest: int, unit: int) -> list[int]:
    """In ascending order, inside two others."""
    return sorted({whole for budget in budgets if smallest < (whole := rounded_up(budget, unit)) < largest})


def first_budgets(smallest: int, largest: int, unit: int = PAGE) -> list[int]:
    """In ascending order, both ends included; budgets are multiples of `unit` bytes."""
    if not 0 < smallest < largest:
        return [smallest]
    ratio = largest / smallest
    steps = math.ceil(math.log(ratio) / math.log(_APART))
    between = (smallest * ratio ** (number / steps) for number in range(1, steps))
    return [smallest, *_whole_units(between, smallest, largest, unit), largest]


def further_budgets(latencies: Mapping[int, float], unit: int = PAGE) -> list[int]:
    """Budgets to plan for next, given planned budgets with their latencies in seconds; none if all are close."""
    budgets = sorted(latencies)
    best = accumulate((latencies[budget] for budget in budgets), min)  # the plan of a smaller budget serves a larger one
    least = min(latencies.values(), default=0.0)
    found: list[int] = []
    for (smaller, slow), (larger, fast) in pairwise(zip(budgets, best, strict=True)):
        if slow > PAYS * fast:
            # Where loading binds, latency falls in proportion to memory.
            count = min(_AT_ONCE, math.ceil((math.log(slow) - math.log(fast)) / math.log(PAYS)) - 1) if fast > 0 else _AT_ONCE
            parts = ((1 - (fast / slow) ** (number / (count + 1))) / (1 - fast / slow) for number in range(1, count + 1))
            between = _whole_units((smaller + part * (larger - smaller) for part in parts), smaller, larger, unit)
            found += between or _whole_units([(smaller + larger) / 2], smaller, larger, unit)
        elif larger > _FAR * smaller and slow > NEARLY * least:
            found += _whole_units([math.sqrt(smaller * larger)], smaller, larger, unit)
    return found


def far_between(rungs: Collection[int], seen: Iterable[int]) -> list[int]:
    """Budgets seen between two rungs, in ascending order, whose rungs are twice as far apart as neighbours may be."""
    pairs = [(smaller, larger) for smaller, larger in pairwise(sorted(rungs)) if larger > _FAR**2 * smaller]
    return sorted(budget for budget in seen if any(smaller < budget < larger for smaller, larger in pairs))


def worthwhile(latencies: Mapping[int, float], asked: Collection[int], unit: int = PAGE) -> list[int]:
    """The budgets, in ascending order, whose rungs are worth their bytes.

    Both ends and requested budgets always are. `latencies` never increase with the budget.
    """
    budgets = sorted(latencies)
    kept = budgets[:1]
    for budget, larger in pairwise([*budgets[1:], budgets[-1]]):
        best = latencies[budget if larger - budget == unit else larger]  # of all plans for budgets from one to the other
        if budget in asked or budget == budgets[-1] or latencies[kept[-1]] > PAYS * best:
            kept.append(budget)
    return kept
