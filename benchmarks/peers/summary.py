"""Statistics of several engines in turns: medians, ratios in one round, right outputs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from benchmarks.peers.machine import Conditions

TOLERANCE = 1e-3  # of the error, as a part of the largest absolute output of the reference
OURS = "flexcomp"


@dataclass(frozen=True)
class Run:
    """One process of an engine."""

    latency_ms: Sequence[float]
    cold_ms: float
    memory_bytes: int  # peak over idle
    error: float  # against the reference, as a part of its largest absolute output
    version: str = ""
    conditions: Conditions = field(default_factory=Conditions)

    @property
    def median_ms(self) -> float:
        return statistics.median(self.latency_ms)


@dataclass(frozen=True)
class Standing:
    """An engine over all rounds."""

    status: str  # "ok", "wrong", or "failed"
    reason: str = ""  # of a failure
    version: str = ""
    latency_ms: float | None = None  # median over all inferences
    quartiles_ms: tuple[float, float] | None = None  # and their spread
    memory_bytes: int | None = None  # largest
    cold_ms: float | None = None  # median
    error: float | None = None  # largest
    runs: tuple[dict, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """All engines on one network with one number of threads."""

    standings: dict[str, Standing]
    best_peer: str | None  # the fastest peer whose outputs are right
    ratio: float | None  # ours / best peer: median over rounds
    ratios: tuple[float, ...]  # of the rounds


def standing(runs: Sequence[Run], reason: str = "", tolerance: float = TOLERANCE) -> Standing:
    """Sum up the runs of one engine; `reason` is that of its failure, if any."""
    if reason or not runs:
        return Standing("failed", reason or "it was not run")
    latencies = [value for run in runs for value in run.latency_ms]
    low, _, high = statistics.quantiles(latencies, n=4, method="inclusive") if len(latencies) > 1 else latencies * 3
    errors = [run.error for run in runs]
    return Standing(
        status="ok" if all(error <= tolerance for error in errors) else "wrong",  # NaN is wrong
        version=runs[0].version,
        latency_ms=statistics.median(latencies),
        quartiles_ms=(low, high),
        memory_bytes=max(run.memory_bytes for run in runs),
        cold_ms=statistics.median(run.cold_ms for run in runs),
        error=max(errors),
        runs=tuple(asdict(run) for run in runs),
    )


def judge(
    rounds: Mapping[str, Sequence[Run]], failures: Mapping[str, str], ours: str = OURS, tolerance: float = TOLERANCE,
) -> Verdict:
    """Compare `ours` with the best of the others. `rounds` holds for each engine one run of every round."""
    names = dict.fromkeys([*rounds, *failures])
    standings = {name: standing(rounds.get(name, ()), failures.get(name, ""), tolerance) for name in names}
    right = {name: found.latency_ms for name, found in standings.items() if found.status == "ok"}
    peers = {name: latency for name, latency in right.items() if name != ours}
    best = min(peers, key=lambda name: peers[name], default=None)
    if best is None or ours not in right:
        return Verdict(standings, best, None, ())
    ratios = tuple(a.median_ms / b.median_ms for a, b in zip(rounds[ours], rounds[best], strict=True))
    return Verdict(standings, best, statistics.median(ratios), ratios)


def conditions(verdict: Verdict) -> str:
    """One line: the time that the host took, and the ratios of the rounds."""
    seen = [Conditions(**run["conditions"]) for found in verdict.standings.values() for run in found.runs]
    said = [f"the host took up to {max(found.steal for found in seen):.1%}"] if seen else []
    said += ["rounds " + " ".join(f"{ratio:.2f}" for ratio in verdict.ratios)] if verdict.ratios else []
    return "; ".join(said)


def ranking(verdict: Verdict) -> list[str]:
    """Engines from the fastest to the slowest; those that are wrong, then those that failed, at the end."""
    order = {"ok": 0, "wrong": 1, "failed": 2}
    found = verdict.standings
    return sorted(found, key=lambda name: (order[found[name].status], found[name].latency_ms or 0.0, name))
