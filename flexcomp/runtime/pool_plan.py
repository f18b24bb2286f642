"""The share of each model of a pool."""

from __future__ import annotations

from dataclasses import dataclass

from flexcomp.units import Units, human_bytes


@dataclass(frozen=True)
class PooledModel:
    """A model's share of a pool."""

    name: str
    lane: int
    urgency: float
    rate: float  # requests in a second: given, or learnt
    deadline_ms: float | None
    rung: int
    rungs: int
    working_bytes: int  # of the lane, in an inference
    kept_bytes: int  # between inferences, besides shared ones
    shared_bytes: int  # of weights that other models of the pool have, too
    predicted_ms: float
    likely_ms: float  # as its inferences have shown


@dataclass(frozen=True)
class PoolPlan:
    """The share of each model of a pool, as a table when printed."""

    budget_bytes: int
    bytes: int  # that all need together
    shared_bytes: int  # of these, weights that several models have
    least_bytes: int  # the smallest budget for these models
    most_bytes: int  # with more, nothing gets faster
    lane_bytes: tuple[int, ...]
    models: tuple[PooledModel, ...]
    units: Units = Units.BINARY  # of amounts in the table

    def __str__(self) -> str:
        head = ("model", "lane", "weight", "rung", "working", "kept", "predicted", "likely")
        columns = list(zip(head, *(_row(model, self.units) for model in self.models), strict=True))
        widths = [max(map(len, column)) for column in columns]
        names = [name.ljust(widths[0]) for name in columns[0]]
        others = [[cell.rjust(width) for cell in column] for column, width in zip(columns[1:], widths[1:], strict=True)]
        lines = ["  ".join(row) for row in zip(names, *others, strict=True)]
        lanes = " + ".join(human_bytes(nbytes, self.units) for nbytes in self.lane_bytes)
        used, budget = (human_bytes(nbytes, self.units) for nbytes in (self.bytes, self.budget_bytes))
        shared = f" and {human_bytes(self.shared_bytes, self.units)} are weights of several models" if self.shared_bytes else ""
        return "\n".join([*lines, f"{used} of {budget}, of which lanes work in {lanes}{shared}"])


@dataclass(frozen=True)
class PoolStep:
    """A budget that a watch may choose."""

    budget_bytes: int


def _row(model: PooledModel, units: Units) -> tuple[str, ...]:
    return (
        model.name,
        str(model.lane),
        f"{model.urgency * model.rate:.3g}",
        f"{model.rung + 1} of {model.rungs}",
        human_bytes(model.working_bytes, units),
        human_bytes(model.kept_bytes + model.shared_bytes, units),
        f"{model.predicted_ms:.2f} ms",
        f"{model.likely_ms:.2f} ms",
    )
