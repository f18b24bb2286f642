"""The two ways in which planning fails: the budget is too small, or a plan is wrong (our fault)."""

from __future__ import annotations

from .problem import Minimum


class PlanError(Exception):
    """No plan, or a plan that the checker refuses."""


class InfeasibleError(PlanError):
    """The budget is too small; says what the smallest feasible budget is and what sets it."""

    def __init__(self, strategy: str, asked: int, minimum: Minimum, reason: str = ""):
        self.strategy = strategy
        self.asked = asked  # bytes
        self.minimum = minimum  # of the best strategy; another strategy may need more
        self.reason = reason  # what this strategy could not place, if that is not the minimum itself
        why = f": {reason}" if reason else ""
        super().__init__(f"budget of {asked:,} B is too small for strategy {strategy!r}{why}; {minimum}")


class Unplaceable(PlanError):
    """A strategy found no place for something; `plan` turns it into an InfeasibleError."""
