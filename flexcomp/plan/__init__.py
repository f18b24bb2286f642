"""The planner: where every byte lies and when it is loaded, for one budget or a ladder of them.

Knows no TVM and no files. `problem.py` defines input and output.
"""

from .bound import latency_bound
from .check import check, verify
from .errors import InfeasibleError, PlanError
from .ladder import Choice, ladder, ladder_of, resident_budget, usual
from .mixture import Mixture
from .parts.layout import fits
from .parts.minimum import layer_bounds, minimum_budget
from .parts.slicing import finest_segment, slice_layers
from .problem import (
    ALIGN,
    HUGE_PAGE,
    PAGE,
    SLICE_S,
    Buffer,
    Layer,
    Minimum,
    Plan,
    Problem,
    Segment,
    Step,
    Storage,
    Stored,
    Value,
    Weights,
    extent,
    stored_blocks,
)
from .reuse import reuse_distances
from .search.best import resident_plan
from .simulate import Timeline, simulate
from .spacing import rounded_up
from .strategies import STRATEGIES, plan

__all__ = [
    "ALIGN",
    "HUGE_PAGE",
    "PAGE",
    "SLICE_S",
    "STRATEGIES",
    "Choice",
    "Value",
    "InfeasibleError",
    "Layer",
    "Minimum",
    "Mixture",
    "Plan",
    "PlanError",
    "Problem",
    "Segment",
    "Step",
    "Storage",
    "Stored",
    "Buffer",
    "Timeline",
    "Weights",
    "check",
    "extent",
    "finest_segment",
    "fits",
    "ladder",
    "ladder_of",
    "latency_bound",
    "layer_bounds",
    "minimum_budget",
    "plan",
    "resident_budget",
    "resident_plan",
    "reuse_distances",
    "rounded_up",
    "simulate",
    "slice_layers",
    "stored_blocks",
    "usual",
    "verify",
]
