"""How a run went: its time, and its budget: requested, used, and the need of the next larger plan."""

from __future__ import annotations

from flexcomp.runtime import Budget
from flexcomp.units import enough, human_bytes


def budget_rows(budget: Budget, asked: int, used: int, following: int | None) -> list[tuple[str, str]]:
    """Label and amount, in the units that the budget was given in; sizes in bytes, `following` None on the largest plan."""
    units = budget.units
    words = human_bytes(asked, units)
    if budget.fraction is not None:
        words = f"{100 * budget.fraction:g} % of everything resident, {words}"
    elif budget.nbytes is None:
        words = "the smallest" if budget.smallest else "everything resident" if budget.largest else f"by default {words}"
    rows = [("budget asked", words), ("budget used", enough(used, units))]
    return rows + ([("next larger plan", enough(following, units))] if following is not None else [])


def median_row(report: dict) -> tuple[str, str]:
    """The median latency of a run, and the number of inferences."""
    count = len(report["latency_ms"])
    return "latency", f"{report['median_ms']:.2f} ms" + (f", median of {count}" if count > 1 else "")
