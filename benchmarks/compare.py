"""flexcomp next to ncnn, ONNX Runtime, MNN and OpenVINO: latency, memory, and time to the first output.

    python -m benchmarks.compare                                      # all networks, one and two threads
    python -m benchmarks.compare resnet50 gpt2 --threads 1 --rounds 3
    python -m benchmarks.compare vgg19 --picture vgg19.png            # also flexcomp over its budgets
    python -m benchmarks.compare --draw docs/measurements/comparison*.json --picture again.png    # measures nothing

Every engine has an environment of its own in `.cache/peers`, made at its first use, and every measurement a process of
its own; engines take turns. All compute in float32 with the same number of threads on the same inputs, and outputs are
compared with those of ONNX Runtime: an engine that is wrong is shown and not ranked. Models are out of the page cache
when a process starts; the cold time counts from there, with the engine imported, to the first output. Each of several
threads is kept on a core of its own. On stderr stand the state of the machine (benchmarks/peers/machine.py) and the ratio of
every round. The exit status is 1 if flexcomp's output is wrong or missing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx

from benchmarks import models
from benchmarks.peers import ENGINES
from benchmarks.peers.flexcomp import LIBRARY
from benchmarks.peers.measure import EngineFailure, EnvironmentFailure, Workplace, install
from benchmarks.peers.picture import by_network, draw, shown
from benchmarks.peers.summary import OURS, Run, Verdict, conditions, judge, ranking, standing
from benchmarks.results import Results, Table, json_option
from flexcomp.report.progress import BuildProgress
from flexcomp.runtime.library import read_info

NETWORKS = {  # short names → those of benchmarks.models
    "resnet152": "resnet152",
    "vgg19": "vgg19_torch",
    "vit_b16": "vit_b16",
    "gpt2": "gpt2",
    "mobilenet_v2": "mobilenet_v2",
    "squeezenet": "squeezenet1_1",
    "resnet50": "resnet50_v15",
}
REFERENCE = "onnxruntime"
CURVE_POINTS = 6  # budgets on the curve of a picture, besides everything resident

Progress = Callable[[str, int, int], None]


def compare(
    workplace: Workplace, engines: Sequence[str], rounds: int, seconds: float, curve: bool, progress: Progress
) -> tuple[Verdict, list[dict]]:
    """Measure the engines in turns; also flexcomp at several budgets if a curve is wanted."""
    failures: dict[str, str] = {}
    for name in dict.fromkeys([REFERENCE, *engines]):
        progress(f"converting for {ENGINES[name].title}", 0, 1)
        try:
            workplace.convert(name)
        except EngineFailure as error:
            failures[name] = str(error)
    if REFERENCE in failures:
        sys.exit(f"error: {ENGINES[REFERENCE].title}, the reference: {failures[REFERENCE]}")
    workplace.measure(REFERENCE, seconds=0.0)  # its outputs are the reference

    turns: list[tuple[str, int | None]] = [(name, None) for name in engines if name not in failures]
    if curve and OURS in engines and OURS not in failures:
        turns += [(OURS, budget) for budget in budgets(workplace)]
    runs: dict[tuple[str, int | None], list[Run]] = defaultdict(list)
    total = rounds * len(turns)
    for index in range(rounds):
        first = index % len(turns)  # who goes first has the quietest caches, or the slowest clock
        for turn in turns[first:] + turns[:first]:
            progress("measuring", sum(map(len, runs.values())), total)
            name, budget = turn
            if name in failures:
                continue
            try:
                runs[turn].append(workplace.measure(name, seconds, budget))
            except EngineFailure as error:
                failures[name] = str(error)
    verdict = judge({name: runs[name, budget] for name, budget in turns if budget is None}, failures)
    points = [
        {"budget_bytes": budget, **asdict(standing(found))}
        for (name, budget), found in runs.items()
        if name == OURS and len(found) == rounds
    ]
    return verdict, points


def budgets(workplace: Workplace) -> list[int]:
    """Budgets from the ladder of the built library, from the smallest up, without the resident one."""
    with tempfile.TemporaryDirectory() as folder:  # a library that was opened here would stay in the page cache
        library = shutil.copy(workplace.of(ENGINES[OURS]) / LIBRARY, folder)
        ladder = [rung["budget_bytes"] for rung in read_info(library)["ladder"]][:-1]
    places = {round(i * (len(ladder) - 1) / (CURVE_POINTS - 1)) for i in range(CURVE_POINTS)}
    return [ladder[place] for place in sorted(places)] if ladder else []


COLUMNS = {
    "network": "", "threads": "d", "engine": "", "latency, ms": ".2f", "lower quartile": ".2f", "upper quartile": ".2f",
    "of the best peer": ".2f", "memory over idle, MB": ".1f", "cold, ms": ".0f", "error": ".1e", "remark": "",
}  # fmt: skip


def add_rows(table: Table, network: str, threads: int, verdict: Verdict) -> None:
    """One row for each engine, the fastest first."""
    best = verdict.standings[verdict.best_peer].latency_ms if verdict.best_peer else None
    for name in ranking(verdict):
        found = verdict.standings[name]
        if found.status == "failed":
            table.add(network, threads, ENGINES[name].title, *[None] * 7, f"failed: {found.reason}")
            continue
        ratio = verdict.ratio if name == OURS else found.latency_ms / best if best else None
        table.add(
            network, threads, ENGINES[name].title, found.latency_ms, *found.quartiles_ms,
            ratio if found.status == "ok" else None, found.memory_bytes / 1e6, found.cold_ms, found.error,
            "" if found.status == "ok" else "wrong output",
        )  # fmt: skip
    print(f"\n{conditions(verdict)}\n", file=sys.stderr)


def measure_network(name: str, args: argparse.Namespace, table: Table) -> list[dict]:
    """The results of one network for each number of threads."""
    network = models.load(NETWORKS.get(name, name))
    results = []
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        for threads in args.threads:
            workplace = Workplace(Path(folder), threads)
            if not workplace.model.exists():
                onnx.save(network.model, workplace.model)
                np.savez(workplace.inputs, **network.example(0))
            with BuildProgress(f"{name}, {threads} thread{'s' * (threads > 1)}") as progress:
                verdict, points = compare(
                    workplace, args.engines, args.rounds, args.seconds, bool(args.picture or args.summary), progress
                )
            add_rows(table, name, threads, verdict)
            facts = asdict(verdict)
            results.append(
                {
                    "network": name, "threads": threads, "processor": args.processor, "engines": facts.pop("standings"), **facts,
                    "curve": points,
                }
            )
    return results


def main() -> None:
    """Measure the chosen networks and print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NETWORK", help=f"some of {', '.join(NETWORKS)}, or of benchmarks.models")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5, help="turns of every engine")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long a process times inferences")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES), metavar="ENGINE")
    json_option(parser, "compare")
    parser.add_argument("--picture", type=Path, help="draw latency over memory, with flexcomp at several budgets")
    parser.add_argument("--summary", type=Path, help="write what the picture shows here, as JSON")
    parser.add_argument("--processor", default="", help="its name in the picture; a virtual machine may hide it")
    parser.add_argument("--draw", type=Path, nargs="+", help="only draw the picture of JSON files, one for each processor")
    parser.add_argument("--dir", type=Path, help="a folder for the models, on the disk to load from")
    args = parser.parse_args()
    if args.draw:
        if not args.picture:
            parser.error("--draw needs --picture")
        draw(by_network([json.loads(path.read_text())["results"] for path in args.draw]), args.picture)
        return
    if unknown := set(args.names) - {*NETWORKS, *models.NAMES}:
        parser.error(f"no network {', '.join(sorted(unknown))}; there are {', '.join([*NETWORKS, *models.NAMES])}")
    try:
        for name in [REFERENCE, *args.engines]:
            install(ENGINES[name])
    except EnvironmentFailure as error:
        sys.exit(f"error: {error}")
    written, table, results = Results.begin("benchmarks.compare"), Table(COLUMNS), []
    for name in args.names or NETWORKS:
        results += measure_network(name, args, table)
        written.write(args.json, [table], results=results)  # long runs are worth keeping in parts
    if args.summary:
        written.write(args.summary, [table], results=shown(results))
    if args.picture:
        args.picture.parent.mkdir(parents=True, exist_ok=True)
        draw(results, args.picture)
        print(f"the picture is {args.picture}")
    if OURS in args.engines:
        sys.exit(any(result["engines"][OURS]["status"] != "ok" for result in results))


if __name__ == "__main__":
    main()
