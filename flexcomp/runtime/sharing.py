"""Shares of several models under one budget: which rung of its ladder each of them gets (`runtime_ext/pool/shares.h`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flexcomp import runtime_ext
from flexcomp.deprecated import OldAttribute, seconds
from flexcomp.errors import BudgetError, InputError
from flexcomp.renamed import renamed
from flexcomp.units import Units, enough, human_bytes

from .library import translated

SHARING = ("exact", "swapnet")  # rules
_MOST_BYTES = 2**63  # the runtime's largest count
_SHARES = "flexcomp.pool.1.shares"  # of the runtime; the number is that of its JSON


@dataclass(frozen=True)
class ShareRung:
    """A model's memory and time on one rung."""

    working_bytes: int  # hold nothing between two inferences: models that take turns have them in common
    kept_bytes: int  # the model's own
    predicted_ms: float  # of one inference

    predicted_s = OldAttribute("predicted_ms", seconds)

    @property
    def nbytes(self) -> int:
        """Bytes of the model alone."""
        return self.working_bytes + self.kept_bytes


@dataclass(frozen=True)
class Shares:
    """A rung for each of several models."""

    rungs: tuple[int, ...]  # in the order of the models, indices into their ladders
    nbytes: int  # of all together; at most the budget
    least_bytes: int  # the smallest budget that there are shares for
    weighted_ms: float  # sum of weight · milliseconds
    partial_choices: int  # examined, as a measure of the work

    cost = OldAttribute("weighted_ms", seconds)


def ladder_of(info: Mapping) -> tuple[ShareRung, ...]:
    """The ladder of the library that says `info` of itself (`flexcomp.runtime.read_info`)."""
    return tuple(
        ShareRung(rung["working_bytes"], rung["arena_bytes"] - rung["working_bytes"], rung["predicted_ms"])
        for rung in info.get("lane_ladder", info["ladder"])  # of several shapes
    )


@renamed(strategy="sharing")
def shares(
    ladders: Sequence[Sequence[ShareRung]],
    weights: Sequence[float],
    budget: int,
    *,
    lanes: Sequence[int] | None = None,
    sharing: str = "exact",
    units: Units = Units.BINARY,
) -> Shares:
    """Choose a rung for each model, so that all of them fit in `budget` bytes together.

    `weights` are the costs of a second of each model: its rate times its urgency. `lanes` numbers each model's lane, below
    the number of models; models of one lane take turns, and the lane needs the most working bytes of any of them. Without
    it all are in one. `"exact"` finds the least sum of weight · predicted milliseconds, and of equal ones that of fewest bytes.
    `"swapnet"` gives every model bytes of its own, working ones too, by the rule of SwapNet (section 6.2.2, equation 1), with the
    weight as its urgency; lanes do not matter to it.

    Raises BudgetError for a budget that is too small, with the smallest that is not, in `units`, and InputError for
    weights, sizes or times that are negative or no numbers.
    """
    found = _ask(ladders, weights, budget, lanes, sharing)
    if not found.rungs:
        apart = " with a share for each" if sharing == "swapnet" else ""
        raise BudgetError(
            f"a budget of {human_bytes(budget, units)} is too small for {len(ladders)} model{'s' * (len(ladders) > 1)}: "
            f"the smallest feasible budget{apart} is {enough(found.least_bytes, units)}"
        )
    return found


@renamed(strategy="sharing")
def least_bytes(
    ladders: Sequence[Sequence[ShareRung]], *, lanes: Sequence[int] | None = None, sharing: str = "exact"
) -> int:
    """The smallest budget, in bytes, that `shares` finds anything for; with `"swapnet"`, where all weights are equal."""
    return _ask(ladders, [1.0] * len(ladders), 0, lanes, sharing).least_bytes


def _ask(
    ladders: Sequence[Sequence[ShareRung]],
    weights: Sequence[float],
    budget: int,
    lanes: Sequence[int] | None,
    sharing: str,
) -> Shares:
    lanes = [0] * len(ladders) if lanes is None else lanes
    if not len(ladders) == len(weights) == len(lanes):
        raise InputError(f"{len(ladders)} ladders, {len(weights)} weights and {len(lanes)} lanes: give one each of every model")
    if not 0 <= budget < _MOST_BYTES:
        raise BudgetError(f"a budget is less than 2^63 bytes and not negative, not {budget}")
    models = [
        {
            "weight": float(weight),
            "lane": lane,
            "rungs": [(rung.working_bytes, rung.kept_bytes, float(rung.predicted_ms)) for rung in ladder],
        }
        for ladder, weight, lane in zip(ladders, weights, lanes, strict=True)
    ]
    try:
        request = json.dumps({"budget_bytes": budget, "strategy": sharing, "models": models}, allow_nan=False)
    except ValueError:
        raise InputError("weights and times must be finite numbers") from None
    with translated():
        answer = json.loads(runtime_ext.function(_SHARES)(request))
    return Shares(tuple(answer["rungs"]), answer["bytes"], answer["least_bytes"], answer["cost"], answer["points"])
