"""The results as tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.cold.networks import NNV12, TITLES
from benchmarks.cold.summary import INT8, OURS, Network, Times
from benchmarks.peers import ENGINES
from benchmarks.results import Table

_MB = 1e6
_PEERS = {name: engine.title for name, engine in ENGINES.items() if engine.is_peer}
_NOTES = {"": "", " cached": " (c)"}  # after an engine's time: with its cache


def starts(networks: Sequence[Network], threads: int) -> Table:
    """From the start of a process to the first output, next to the bound and the peers."""
    columns = ["network", "weights, MB", "bound", OURS, "over the bound", INT8, *_PEERS.values()]
    columns += ["of the best peer", "int8 of it"]
    made = _table(columns, f"Milliseconds to the first output, {_threads(threads)}; (c): with the engine's cache")
    for one in networks:
        bounds = one.bounds_ms.get(OURS)
        made.rows.append(
            [
                TITLES.get(one.name, one.name),
                one.facts[OURS]["raw_nbytes"] / _MB if OURS in one.facts else None,
                f"{statistics.median(bounds):.0f}" if bounds else None,
                _spread(one.times.get(OURS)),
                one.over_bound(),
                _spread(one.times.get(INT8)),
                *(_peer(one, name) for name in _PEERS),
                one.of_best(),
                one.of_best(INT8),
            ]
        )
    return made


def continuing(networks: Sequence[Network], threads: int) -> Table:
    """The inferences after the first."""
    columns = ["network", "first", "second", "third", "steady", "second / steady", "third / steady"]
    columns += ["steady / warm start's", "best peer", "its steady"]
    made = _table(columns, f"Milliseconds of inferences in a row, {_threads(threads)}")
    for one in networks:
        if (ours := one.times.get(OURS)) is None:
            continue
        peers = {name: times.steady for name, times in one.times.items() if not name.startswith(OURS) and times.right}
        best = min(peers, key=peers.__getitem__, default=None)
        figures = (ours.median, ours.second, ours.third, ours.steady, ours.second / ours.steady, ours.third / ours.steady)
        made.rows.append([TITLES.get(one.name, one.name), *figures, one.over_warm, best, peers.get(best)])
    return made


def storage(networks: Sequence[Network], threads: int) -> Table:
    """Sizes of files and times of builds, next to NNV12's Table 4."""
    columns = ["network", "parameters, M", "raw, MB", "file, MB", "over raw", "int8 over raw", "NNV12's", "library, MB"]
    made = _table([*columns, "plans, s", "NNV12's (Meizu 16T)", "build, s"], f"Files, for {_threads(threads)}")
    for one in networks:
        if (fact := one.facts.get(OURS)) is None:
            continue
        raw, narrow, theirs = fact["raw_nbytes"], one.facts.get(INT8), NNV12.get(TITLES.get(one.name, ""))
        made.rows.append(
            [
                TITLES.get(one.name, one.name), fact["parameters"] / 1e6, raw / _MB, fact["weights_nbytes"] / _MB,
                fact["weights_nbytes"] / raw, narrow["weights_nbytes"] / raw if narrow else None,
                1 + theirs.overhead_mb / theirs.model_mb if theirs else None, fact["library_nbytes"] / _MB, fact["plan_s"],
                theirs.plan_s if theirs else None, fact["build_s"],
            ]
        )
    return made


def _peer(one: Network, engine: str) -> str:
    for ending, note in _NOTES.items():
        if times := one.times.get(engine + ending):
            return f"{times.median:.0f}{note}" + ("" if times.right else f" wrong ({times.error:.0e})")
    return "failed" if any(name.startswith(engine) for name in one.failures) else ""


def closing(networks: Sequence[Network]) -> str:
    """The medians over all networks, and the engines whose outputs were wrong or missing."""
    lines = []
    for title, found in (
        ("first output over the bound", [one.over_bound() for one in networks]),
        ("first output of the best peer's", [one.of_best() for one in networks]),
        ("with int8", [one.of_best(INT8) for one in networks]),
    ):
        known = [value for value in found if value is not None]
        if known:
            lines.append(f"{title}: {statistics.median(known):.2f} in the median, {max(known):.2f} at worst")
    for one in networks:
        lines += [f"{one.name}, {name}: {reason}" for name, reason in one.failures.items()]
    errors = [times.error for one in networks for name, times in one.times.items() if name == OURS]
    lines += [f"outputs differ from ONNX Runtime's by at most {max(errors):.1e}"] if errors else []
    return "\n".join(lines)


def _spread(times: Times | None) -> str:
    if times is None:
        return ""
    text = f"{times.median:.0f} ({min(times.first):.0f} to {max(times.first):.0f})"
    return text if times.right else f"{text} wrong ({times.error:.0e})"


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"


def _table(columns: Sequence[str], title: str) -> Table:
    return Table(dict.fromkeys(columns, ".2f"), title)
