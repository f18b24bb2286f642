"""How fast each kernel of a compiled network is, compared with the machine's peak."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flexcomp.device import resolve_target
from flexcomp.errors import ExecutionError
from flexcomp.program import Layer, ValueArg, WeightArg
from flexcomp.schedules import registry
from flexcomp.schedules.family import COMPUTING, OTHER

from .rates import Rates, call_seconds, measure_rates, pool
from .replay import Replay

_WARM_UP = 2


def groups() -> dict[str, str | None]:
    """Groups of families, and their limits; kernels that save products are counted as those of the direct method."""
    named = {one.group or one.name: one.bound_by for one in registry.FAMILIES if one.group != OTHER}
    return {**named, "attention": COMPUTING, OTHER: None}


@dataclass(frozen=True)
class LayerTime:
    """A layer and its time."""

    layer: Layer
    seconds: float

    @property
    def group(self) -> str:
        word = self.layer.implementation.partition(" ")[0]
        known = registry.family(word)
        return (known.group or known.name) if known else word if word in groups() else OTHER

    @property
    def nbytes(self) -> int:
        """Bytes of all its operands and results."""
        return sum(arg.type.nbytes for arg in self.layer.args if isinstance(arg, ValueArg | WeightArg))


def kernel_report(
    library: str | Path, budget: str | int | float | None = None, *, threads: int = 1, repeat: int = 20
) -> dict:
    """Time every kernel of `library` in the plan for `budget`, and measure the machine's rates.

    Raises the errors of loading a library, and ExecutionError if a kernel fails.
    """
    replay = Replay(library, budget)
    target = resolve_target(replay.program.target)
    with pool(threads):
        rates = measure_rates(target, threads)
        overhead = call_seconds(target)
        try:
            rounds = [replay.run() for _ in range(_WARM_UP + repeat)][_WARM_UP:]
        except RuntimeError as error:
            raise ExecutionError(str(error)) from error
    layers = replay.program.layers
    calls = {index: sum(step.layer == index for step in replay.rung.steps) for index in rounds[0]}
    times = [
        LayerTime(layers[index], max(statistics.median(r[index] for r in rounds) - calls[index] * overhead, 1e-9))
        for index in rounds[0]
    ]
    return {
        "model": replay.program.model,
        "target": replay.program.target,
        "threads": threads,
        "budget_bytes": replay.rung.budget,
        "call_overhead_us": overhead * 1e6,
        **summarise(times, rates),
    }


def summarise(times: list[LayerTime], rates: Rates) -> dict:
    """Rates of layers and groups. Shares of groups are weighted by time."""
    total = math.fsum(time.seconds for time in times)
    by_group: dict[str, list[LayerTime]] = {name: [] for name in groups()}
    for time in times:
        by_group[time.group].append(time)
    return {
        "peak_gflops": rates.flops_per_s / 1e9,
        "read_gb_per_s": rates.read_bytes_per_s / 1e9,
        "kernels_ms": total * 1e3,
        "layers": [_layer_facts(time, total, rates) for time in times],
        "groups": [_group_facts(name, members, total, rates) for name, members in by_group.items() if members],
    }


def _layer_facts(time: LayerTime, total: float, rates: Rates) -> dict:
    return {
        "name": time.layer.name,
        "description": time.layer.description,
        "kernel": time.layer.implementation,
        "group": time.group,
        "bound_by": groups()[time.group],
        "time_ms": time.seconds * 1e3,
        **_rates(time.seconds, time.layer.flops, time.nbytes, total, rates),
    }


def _group_facts(name: str, members: list[LayerTime], total: float, rates: Rates) -> dict:
    seconds = math.fsum(time.seconds for time in members)
    flops, nbytes = sum(time.layer.flops for time in members), sum(time.nbytes for time in members)
    return {
        "group": name,
        "layers": len(members),
        "time_ms": seconds * 1e3,
        "bound_by": groups()[name],
        **_rates(seconds, flops, nbytes, total, rates),
    }


def _rates(seconds: float, flops: int, nbytes: int, total: float, rates: Rates) -> Mapping[str, float]:
    return {
        "time_share": seconds / total,
        "gflops": flops / seconds / 1e9,
        "peak_share": flops / seconds / rates.flops_per_s,
        "gb_per_s": nbytes / seconds / 1e9,
        "read_share": nbytes / seconds / rates.read_bytes_per_s,
    }
