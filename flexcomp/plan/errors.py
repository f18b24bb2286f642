"""The two ways in which planning fails: the budget is too small, or a plan is wrong (our fault)."""

from __future__ import annotations

from .problem import Minimum


class PlanError(Exception):
    """No plan, or a plan that the checker refuses."""


class InfeasibleError(PlanError):
    """The budget is too small; names the smallest feasible budget and its cause."""

    def __init__(self, strategy: str, asked: int, minimum: Minimum, reason: str = ""):
        self.strategy = strategy
        self.asked = asked  # bytes
        self.minimum = minimum  # of the best strategy; another strategy may need more
        self.reason = reason  # the object this strategy could not place, if the budget is not below the minimum
        why = f": {reason}" if reason else ""
        super().__init__(f"budget of {asked:,} B is too small for strategy {strategy!r}{why}; {minimum}")


class Unplaceable(PlanError):
    """A strategy found no place for something; `plan` raises an InfeasibleError instead."""
