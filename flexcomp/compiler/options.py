"""Options of a build: users give them to `build` as keywords, everything after it takes these objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from flexcomp import plan
from flexcomp.arguments import checked_flag, checked_name, checked_path
from flexcomp.device import DeviceProfile, checked_threads, load_profile
from flexcomp.errors import InputError
from flexcomp.frontend import CustomOperator, checked_operators, checked_values
from flexcomp.runtime import Budget

from .auto_weights import checked_max_error
from .calibration import Given, read_inputs
from .known import ARITHMETICS, DEFAULT_ARITHMETIC, DEFAULT_MAX_ERROR, DEFAULT_STORE, HALVES, KERNELS, RUINED, STORES
from .padding import checked_pad
from .shapes import DeclaredShape, declared_shapes
from .state import checked_state
from .state_types import checked_state_types


@dataclass(frozen=True)
class Request:
    """A budget, and the planner and the storage that an artifact is planned with."""

    budget: Budget
    strategy: str = "best"
    storage: plan.Storage | None = None  # None: the device profile's

    def __post_init__(self) -> None:
        checked_name(self.strategy, plan.STRATEGIES, "strategy")


@dataclass(frozen=True)
class Model:
    """What the model's file leaves open."""

    input_shapes: Mapping[str, Sequence[int | str]] | None = None
    shapes: Mapping[str, Sequence[int]] | Sequence[Mapping[str, int]] | None = None  # of names in input_shapes
    params: Mapping[str, object] | Sequence[object] | None = None
    state: Mapping[str, str] | None = None  # inputs by output
    state_type: str | Mapping[str, str] | None = None  # by patterns of inputs, once checked
    custom_operators: Sequence[CustomOperator] | None = None  # a tuple, once checked
    pad: Mapping[str, int | float] | None = None  # by input
    input_values: Mapping[str, Any] | None = None  # arrays by input, once checked
    declared: tuple[DeclaredShape, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "custom_operators", checked_operators(self.custom_operators))
        object.__setattr__(self, "state", checked_state(self.state))
        object.__setattr__(self, "state_type", checked_state_types(self.state_type))
        object.__setattr__(self, "input_values", checked_values(self.input_values))
        object.__setattr__(self, "declared", declared_shapes(self.input_shapes, self.shapes))
        object.__setattr__(self, "pad", checked_pad(self.pad, self.input_shapes, self.shapes))


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Element types of weights and of what multiplies them, and the forms of weights in the file."""

    types: str | Mapping[str, str] | None = None
    arithmetic: str = DEFAULT_ARITHMETIC
    max_error: float | None = None  # where types are chosen, as a part of the largest output
    calibration: Given = None  # sets of inputs, once checked
    store: str = DEFAULT_STORE

    def __post_init__(self) -> None:
        checked_name(self.arithmetic, ARITHMETICS, "arithmetic")
        if not self.measured and (self.max_error is not None or self.calibration is not None):
            raise InputError(
                'max_error and calibration are for weights="auto" and for arithmetic in 16 bits or "int8": they choose types'
            )
        if self.arithmetic in (*HALVES, "auto"):
            self._require_half()
        if self.measured:
            most = DEFAULT_MAX_ERROR if self.max_error is None else checked_max_error(self.max_error)
            if self.max_error is None and self.arithmetic in HALVES:
                most = RUINED
            object.__setattr__(self, "max_error", most)
        object.__setattr__(self, "calibration", read_inputs(self.calibration))
        checked_name(self.store, STORES, "store")

    @property
    def measured(self) -> bool:
        """Whether types are chosen by their errors."""
        given = self.max_error is not None or self.calibration is not None
        return "auto" in (self.types, self.arithmetic) or (self.arithmetic in (*HALVES, "int8") and given)

    @property
    def unlimited(self) -> bool:
        """Whether layers compute in float16 whatever the range of their values: nobody named layers, nor gave inputs."""
        return self.arithmetic == "float16" and not self.measured and not isinstance(self.types, Mapping)

    def _require_half(self) -> None:
        """InputError for types that are not multiplied in 16 bits."""
        given = self.max_error is not None or self.calibration is not None
        if self.types is not None and (self.arithmetic == "auto" or given):
            by = "" if self.arithmetic == "auto" else " with max_error or calibration"
            raise InputError(f"arithmetic={self.arithmetic!r}{by} chooses the types of weights, too: leave weights out")
        if isinstance(self.types, str) and self.types != self.arithmetic:
            half = self.arithmetic
            raise InputError(
                f"arithmetic={half!r} multiplies weights of {half}, not {self.types!r}: leave weights out, or give types by "
                f"patterns, such as weights={{'*': {half!r}, '/head/*': 'float32'}}, of which float32 ones are computed in "
                "float32"
            )


@dataclass(frozen=True)
class Machine:
    """The machine that plans are made for, as far as the target does not say."""

    threads: int | None = None
    profile: DeviceProfile | str | Path | None = None  # a DeviceProfile, once checked
    probe: bool | str | Path | None = False
    tuning: str | Path | None = None  # a database

    def __post_init__(self) -> None:
        checked_threads(self.threads)
        if self.profile is not None and not isinstance(self.profile, DeviceProfile):
            object.__setattr__(self, "profile", load_profile(checked_path(self.profile, "profile")))
        if self.tuning is not None:
            object.__setattr__(self, "tuning", checked_path(self.tuning, "tuning"))


@dataclass(frozen=True)
class Gpu:
    """Arithmetic of GPUs."""

    tf32: bool = False

    def __post_init__(self) -> None:
        checked_flag(self.tf32, "tf32")


@dataclass(frozen=True)
class Options:
    """All options of a build but target, budget and strategy; raises InputError for wrong ones."""

    model: Model = field(default_factory=Model)
    weights: Weights = field(default_factory=Weights)
    machine: Machine = field(default_factory=Machine)
    gpu: Gpu = field(default_factory=Gpu)
    kernels: str = "auto"
    cache: bool = True

    def __post_init__(self) -> None:
        checked_name(self.kernels, KERNELS, "kernels")
        arithmetic = self.weights.arithmetic
        if arithmetic != "float32" and self.machine.tuning is not None:
            raise InputError(
                f"arithmetic={arithmetic!r} has no tuning databases, which are of kernels in float32: leave tuning out"
            )


def options_of(**keywords: Any) -> Options:
    """The objects for keywords of `build`, of which some may be missing."""
    if "weights" in keywords:
        keywords["types"] = keywords.pop("weights")
    parts: dict[str, Any] = {}
    for name, kind in {"model": Model, "weights": Weights, "machine": Machine, "gpu": Gpu}.items():
        parts[name] = kind(**{one.name: keywords.pop(one.name) for one in fields(kind) if one.name in keywords})
    return Options(**parts, **keywords)
