"""All starts that were measured, and their statistics: medians, ratios within rounds, and distances from the bound."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

Record = dict  # the key of a start, and its measurements
KEY = ("network", "threads", "contender", "round")
START_MS = 15.0  # of a process, allowed over the bound
OURS, INT8, WARM = "flexcomp", "flexcomp int8", "flexcomp warm"


class Records:
    """Starts in a file, a line of JSON each, written at once: a run that was cut off goes on, without a line that was cut off."""

    def __init__(self, path: Path) -> None:
        self._path = path
        text = path.read_text() if path.exists() else ""
        whole, _, torn = text.rpartition("\n")
        self._found: dict[tuple, Record] = {}
        for line in whole.splitlines():
            self._keep(json.loads(line))
        if torn:
            path.write_text(whole + "\n" * bool(whole))

    def add(self, record: Record) -> None:
        """Write one more."""
        self._keep(record)
        with self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def get(self, key: tuple) -> Record | None:
        """That of (network, threads, contender, round)."""
        return self._found.get(key)

    def __contains__(self, key: tuple) -> bool:
        """Whether there is one of (network, threads, contender, round)."""
        return key in self._found

    def __iter__(self) -> Iterator[Record]:
        return iter(self._found.values())

    def of(self, **wanted: object) -> list[Record]:
        """Those with these entries, in the order of their rounds."""
        found = [record for record in self if all(record.get(key) == value for key, value in wanted.items())]
        return sorted(found, key=lambda record: record["round"])

    def _keep(self, record: Record) -> None:
        self._found[tuple(record[key] for key in KEY)] = record


@dataclass(frozen=True)
class Times:
    """A contender over all rounds, in milliseconds."""

    first: tuple[float, ...]
    second: float
    third: float
    steady: float
    error: float  # the largest
    right: bool

    @property
    def median(self) -> float:
        """Of the first inferences."""
        return statistics.median(self.first)


@dataclass(frozen=True)
class Network:
    """All that was measured of one network with so many threads."""

    name: str
    threads: int
    times: dict[str, Times]  # by contender; those that failed have none
    failures: dict[str, str]
    facts: dict[str, Record]  # of artifacts, by contender
    bounds_ms: dict[str, tuple[float, ...]]  # by contender, for each round
    rounds: dict[str, dict[int, float]]  # first inferences by contender and round

    @property
    def over_warm(self) -> float | None:
        """The steady inference behind a cold start over that after a warm one."""
        return self.times[OURS].steady / self.times[WARM].steady if {OURS, WARM} <= self.times.keys() else None

    @property
    def best_peer(self) -> str | None:
        """The one that is right and starts first."""
        peers = {name: times.median for name, times in self.times.items() if not name.startswith(OURS) and times.right}
        return min(peers, key=peers.__getitem__, default=None)

    def of_best(self, contender: str = OURS) -> float | None:
        """A contender's first inference as a part of the best peer's: the median over rounds."""
        return self.ratio(contender, self.best_peer)

    def ratio(self, contender: str, other: str | None) -> float | None:
        """The median over the rounds that both have."""
        mine, theirs = self.rounds.get(contender, {}), self.rounds.get(other or "", {})
        return statistics.median(mine[i] / theirs[i] for i in both) if (both := mine.keys() & theirs.keys()) else None

    def over_bound(self, contender: str = OURS) -> float | None:
        """Its first inference over the bound of the same round, the median of all."""
        if contender not in self.bounds_ms:
            return None
        pairs = zip(self.times[contender].first, self.bounds_ms[contender], strict=True)
        return statistics.median(first / bound for first, bound in pairs)


def summarise(records: Records) -> list[Network]:
    """A network for each number of threads, in the order in which they were measured."""
    keys = dict.fromkeys((one["network"], one["threads"]) for one in records.of())
    return [_network(name, threads, records.of(network=name, threads=threads)) for name, threads in keys]


def _network(name: str, threads: int, found: Sequence[Record]) -> Network:
    failures = {one["contender"]: one["failure"] for one in found if "failure" in one}
    by_contender: dict[str, list[Record]] = {}
    for record in found:
        if record["contender"] not in failures:
            by_contender.setdefault(record["contender"], []).append(record)
    by_contender = _without_slower_forms(by_contender)
    facts = {contender: rounds[0] for contender, rounds in by_contender.items() if "raw_nbytes" in rounds[0]}
    computing: dict[int, float] = {}  # the fastest of ours, by round: the machine has slower minutes
    for record in (record for rounds in by_contender.values() for record in rounds if "bandwidth" in record):
        known = computing.get(record["round"], inf)
        computing[record["round"]] = min(known, record["steady_ms"], record.get("computing_ms", inf))
    return Network(
        name,
        threads,
        {contender: _times(rounds) for contender, rounds in by_contender.items()},
        failures,
        facts,
        {
            contender: tuple(_bound_ms(facts[contender], record, computing[record["round"]]) for record in rounds)
            for contender, rounds in by_contender.items()
            if contender in facts
        },
        {contender: {record["round"]: record["first_ms"] for record in rounds} for contender, rounds in by_contender.items()},
    )


def _without_slower_forms(found: dict[str, list[Record]]) -> dict[str, list[Record]]:
    """Engines with their cache or without, as after the first round: in the faster way."""
    kept: dict[str, str] = {}
    for name in sorted(found, key=lambda name: found[name][0]["first_ms"]):
        kept.setdefault(name.removesuffix(" cached"), name)
    return {name: rounds for name, rounds in found.items() if name in kept.values()}


def _times(rounds: Sequence[Record]) -> Times:
    def median(key: str) -> float:
        return statistics.median(record[key] for record in rounds)

    return Times(
        tuple(record["first_ms"] for record in rounds),
        *(median(f"{key}_ms") for key in ("second", "third", "steady")),
        error=max(record["error"] for record in rounds),
        right=all(record["right"] for record in rounds),
    )


def _bound_ms(fact: Record, record: Record, computing_ms: float) -> float:
    """The longer of reading and computing, and the start of a process. Read are the weights in one form."""
    stored = min(fact["raw_nbytes"], fact["weights_nbytes"])
    return max(1e3 * stored / record["bandwidth"], computing_ms) + START_MS
