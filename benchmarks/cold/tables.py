"""What was measured, as tables in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from benchmarks.cold.networks import NNV12, TITLES
from benchmarks.cold.summary import BOUND, INT8, OURS, Network, Times
from benchmarks.peers import ENGINES

_MB = 1e6
_PEERS = {name: engine.title for name, engine in ENGINES.items() if engine.is_peer}
_NOTES = {"": "", " cached": " (c)"}  # after an engine's time: with its cache


def starts(networks: Sequence[Network]) -> str:
    """From the start of a process to the first output, beside the bound and the peers."""
    rows = []
    for one in networks:
        ours = one.times.get(OURS)
        bounds = one.bounds_ms.get(OURS)
        rows.append(
            [
                TITLES.get(one.name, one.name),
                _of(one, OURS, "raw_nbytes", _MB),
                f"{statistics.median(bounds):.0f}" if bounds else "",
                _spread(ours),
                _number(one.over_bound()),
                _spread(one.times.get(INT8)),
                *(_peer(one, name) for name in _PEERS),
                _number(one.of_best()),
                _number(one.of_best(INT8)),
            ]
        )
    header = ["network", "weights, MB", "bound", OURS, "over the bound", INT8, *_PEERS.values(), "of the best peer", "int8 of it"]
    return _table(header, rows) + "\n\n" + _closing(networks)


def continuing(networks: Sequence[Network]) -> str:
    """The inferences after the first."""
    rows = []
    for one in networks:
        if (ours := one.times.get(OURS)) is None:
            continue
        peers = {name: times.steady for name, times in one.times.items() if not name.startswith(OURS) and times.right}
        best = min(peers, key=peers.__getitem__, default=None)
        figures = (ours.median, ours.second, ours.third, ours.steady)
        ratios = (ours.second / ours.steady, ours.third / ours.steady)
        rows.append(
            [
                TITLES.get(one.name, one.name),
                *(f"{figure:.1f}" for figure in figures),
                *map(_number, (*ratios, one.over_warm)),
                f"{peers[best]:.1f} ({best})" if best else "",
            ]
        )
    header = ["network", "first", "second", "third", "steady", "second / steady", "third / steady"]
    header += ["steady / warm start's", "best peer, steady"]
    return _table(header, rows)


def storage(networks: Sequence[Network]) -> str:
    """Files and how long they take to be made, beside NNV12's Table 4."""
    rows = []
    for one in networks:
        if (fact := one.facts.get(OURS)) is None:
            continue
        raw, narrow, theirs = fact["raw_nbytes"], one.facts.get(INT8), NNV12.get(TITLES.get(one.name, ""))
        rows.append(
            [
                TITLES.get(one.name, one.name),
                f"{fact['parameters'] / 1e6:.2f}",
                f"{raw / _MB:.1f}",
                f"{fact['weights_nbytes'] / _MB:.1f}",
                _number(fact["weights_nbytes"] / raw),
                _number(narrow["weights_nbytes"] / raw if narrow else None),
                _number(1 + theirs.overhead_mb / theirs.model_mb if theirs else None),
                f"{fact['library_nbytes'] / _MB:.1f}",
                f"{fact['plan_s']:.1f}",
                f"{theirs.plan_s:.1f}" if theirs else "",
                f"{fact['build_s']:.1f}",
            ]
        )
    header = ["network", "parameters, M", "raw, MB", "file, MB", "over raw", "int8 over raw", "NNV12's", "library, MB"]
    return _table([*header, "plans, s", "NNV12's (Meizu 16T)", "build, s"], rows)


def loads(by_load: dict[float, Sequence[Network]]) -> str:
    """First inferences while a companion takes a part of the loader's core, and what they are of the idle machine's."""
    idle = {(one.name, one.threads): one for one in by_load[0.0]}
    rows = []
    for key, quiet in idle.items():
        row = [TITLES.get(quiet.name, quiet.name), str(quiet.threads)]
        for contender in (OURS, BOUND):
            row.append(_spread(quiet.times.get(contender)))
            for load, networks in by_load.items():
                if load:
                    other = next((one for one in networks if (one.name, one.threads) == key), None)
                    row.append(_over(other, quiet, contender))
        rows.append(row)
    names = [f"{load:.0%} busy" for load in by_load if load]
    return _table(["network", "threads", "idle", *names, "threads bound to cores: idle", *names], rows)


def ablation(networks: Sequence[Network]) -> str:
    """First and steady inferences with one idea taken away at a time; ratios are to all of it, in the same rounds."""
    contenders = list(dict.fromkeys(name for one in networks for name in one.times))
    rows = []
    for one in networks:
        row = [TITLES.get(one.name, one.name), str(one.threads)]
        for name in contenders:
            times, ratio = one.times.get(name), one.ratio(name, OURS)
            row.append("" if times is None else f"{times.median:.0f}" + (f" ({ratio:.2f}×)" if name != OURS and ratio else ""))
        rows.append(row)
    return _table(["network", "threads", *contenders], rows)


def _over(busy: Network | None, quiet: Network, contender: str) -> str:
    mine, theirs = (one.rounds.get(contender, {}) if one else {} for one in (busy, quiet))
    if not (both := mine.keys() & theirs.keys()):
        return ""
    return f"{statistics.median(mine.values()):.0f} ({statistics.median(mine[i] / theirs[i] for i in both):.2f}×)"


def _peer(one: Network, engine: str) -> str:
    for ending, note in _NOTES.items():
        if times := one.times.get(engine + ending):
            return f"{times.median:.0f}{note}" + ("" if times.right else f" wrong ({times.error:.0e})")
    return "failed" if any(name.startswith(engine) for name in one.failures) else ""


def _closing(networks: Sequence[Network]) -> str:
    """The figures of all networks together, and whose outputs were wrong or missing."""
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


def _of(one: Network, contender: str, key: str, unit: float) -> str:
    return f"{one.facts[contender][key] / unit:.1f}" if contender in one.facts else ""


def _spread(times: Times | None) -> str:
    if times is None:
        return ""
    text = f"{times.median:.0f} ({min(times.first):.0f} to {max(times.first):.0f})"
    return text if times.right else f"{text} wrong ({times.error:.0e})"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
