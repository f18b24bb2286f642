"""SwapNet's scenarios: a pool beside separate shares by SwapNet's rule, a process per network, whole networks that make room
for each other, and everything in memory.

    for n in yolo_v3 fcn_resnet101 vgg19_torch resnet101; do
        python -m benchmarks.ladder $n build DIR --storage 718e6,tmpfs --strategies best --threads 1
    done
    python -m benchmarks.scenarios DIR [--scenarios uav] [--storage 718e6,tmpfs] [--budgets paper,0.5,least] [--json FILE]

All servers are the same runtime with the same kernels. In every round each of them, in turns, runs every task once; counted are
medians, and the sum of urgency · latency. Then requests come by themselves, at even times and in bursts, so many that everything
in memory would be busy for `--load` of the time: what counts is how long answers take, and how many take longer than the
time between two requests of the task. Memory is what all of a server's processes hold over what they do when nothing has run.

A budget is `paper`, a part of that, or `least`: 1.05 times the most that a single task needs.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.scenarios.servers import SERVERS
from benchmarks.scenarios.tasks import SCENARIOS, Files, Scenario
from benchmarks.storage import TMPFS
from flexcomp.runtime import least_bytes

_BURST = 4  # requests of a task at once


@dataclass
class Result:
    """One server in one scenario."""

    scenario: str
    storage: str
    budget: int
    server: str
    failed: str = ""  # why it does not run at all
    ms: dict[str, float] = field(default_factory=dict)  # medians of rounds, by task
    weighted_ms: float = 0
    memory: int = 0
    responses: dict[str, dict[str, float]] = field(default_factory=dict)  # of arrivals: median and missed


class Worker:
    """A server's process."""

    def __init__(self, scenario: Scenario, files: Files, budget: int, server: str) -> None:
        asked = {
            "scenario": scenario.name, "server": server, "budget": budget, "storage": files.storage,
            "folder": str(files.folder), "weights_folder": str(files.weights_folder),
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.scenarios.worker", json.dumps(asked)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._read()

    def ask(self, **order: Any) -> dict[str, Any]:
        """What it answers."""
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """End it."""
        self._process.stdin.close()
        self._process.wait()

    def _read(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(self._process.stderr.read().strip().splitlines()[-1])
        return json.loads(line)


def compare(
    scenario: Scenario, files: Files, budget: int, servers: list[str], rounds: int, seconds: float, load: float
) -> list[Result]:
    """All servers, in turns."""
    results = [Result(scenario.name, files.storage, budget, server) for server in servers]
    workers: dict[str, Worker] = {}
    for result in results:
        try:
            workers[result.server] = Worker(scenario, files, budget, result.server)
        except RuntimeError as error:
            result.failed = str(error)
    taken: dict[str, list[dict[str, float]]] = {server: [] for server in workers}
    for server, worker in workers.items():
        worker.ask(do="round")  # loads what stays
        if server != "evicting":
            worker.ask(do="round")
    for _ in range(rounds):
        for server, worker in workers.items():
            taken[server].append(worker.ask(do="round")["ms"])
    fastest = {task.name: min(one[task.name] for rows in taken.values() for one in rows) for task in scenario.tasks}
    for result in results:
        if result.failed:
            continue
        worker, rows = workers[result.server], taken[result.server]
        result.ms = {task.name: statistics.median(row[task.name] for row in rows) for task in scenario.tasks}
        result.weighted_ms = sum(task.urgency * result.ms[task.name] for task in scenario.tasks)
        if seconds > 0:
            for kind in ("even", "bursts"):
                times, deadlines = schedule(kind, scenario, fastest, seconds, load)
                found = worker.ask(do="arrivals", times=times)["ms"]
                every = [(ms, deadlines[task]) for task, each in found.items() for ms in each]
                result.responses[kind] = {
                    "median_ms": statistics.median(ms for ms, _ in every),
                    "missed": sum(ms > deadline for ms, deadline in every) / len(every),
                }
        memory = worker.ask(do="memory")
        result.memory = memory["peak"] - memory["idle"]
    for worker in workers.values():
        worker.close()
    return results


def schedule(
    kind: str, scenario: Scenario, fastest: dict[str, float], seconds: float, load: float
) -> tuple[list[tuple[float, str, float]], dict[str, float]]:
    """(second, task, deadline in ms) of requests, and the deadlines by task: every task is as often busy as the others."""
    chance = random.Random(1)
    times, deadlines = [], {}
    for task in scenario.tasks:
        period = len(scenario.tasks) * fastest[task.name] * 1e-3 / load
        deadlines[task.name] = 1e3 * period * (_BURST if kind == "bursts" else 1)
        at = chance.uniform(0, period)
        while at < seconds:
            times += [(at, task.name, deadlines[task.name])] * (_BURST if kind == "bursts" else 1)
            at += period if kind == "even" else _BURST * chance.expovariate(1 / period)
    return sorted(times), deadlines


def budget_of(text: str, scenario: Scenario, files: Files) -> int:
    """Bytes."""
    if text == "paper":
        return scenario.budget
    if text == "least":
        return int(1.05 * max(least_bytes([ladder]) for ladder in files.ladders(scenario.tasks)))
    return int(float(text) * scenario.budget)


def show(results: list[Result]) -> None:
    """A table of one comparison."""
    apart = next((one for one in results if one.server == "apart" and not one.failed), None)
    first = results[0]
    print(f"\n{first.scenario}, {first.storage}, {first.budget / 1e6:.0f} MB")
    for one in results:
        if one.failed:
            print(f"  {one.server:11} does not run: {one.failed[:120]}")
            continue
        part = f"{one.weighted_ms / apart.weighted_ms:6.3f} of apart" if apart else ""
        worst = f"worst {max(one.ms[t] / apart.ms[t] for t in one.ms):5.2f}" if apart else ""
        each = " ".join(f"{name} {ms:.0f}" for name, ms in one.ms.items())
        late = " ".join(f"{kind}: {r['median_ms']:.0f} ms, {100 * r['missed']:.0f} % late" for kind, r in one.responses.items())
        print(f"  {one.server:11} {one.weighted_ms:7.0f} ms {part} {worst}  {one.memory / 1e6:6.0f} MB  {each}  {late}")
    sys.stdout.flush()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    parser.add_argument("--storage", default="718e6,tmpfs")
    parser.add_argument("--budgets", default="paper,0.5,least")
    parser.add_argument("--servers", default=",".join(SERVERS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0, help="of requests that come by themselves; 0: none")
    parser.add_argument("--load", type=float, default=0.6)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    results: list[Result] = []
    for storage in asked.storage.split(","):
        with tempfile.TemporaryDirectory(dir=TMPFS) as fast:
            weights = asked.folder
            if storage == "tmpfs":
                weights = Path(fast)
                for network in {task.network for name in asked.scenarios.split(",") for task in SCENARIOS[name].tasks}:
                    shutil.copy(asked.folder / f"{network}.weights", fast)
            files = Files(asked.folder, weights, storage)
            for name in asked.scenarios.split(","):
                for text in asked.budgets.split(","):
                    scenario = SCENARIOS[name]
                    found = compare(
                        scenario, files, budget_of(text, scenario, files), asked.servers.split(","), asked.rounds,
                        asked.seconds, asked.load,
                    )  # fmt: skip
                    show(found)
                    results += found
                    if asked.json:
                        asked.json.write_text(json.dumps([asdict(one) for one in results], indent=1))


if __name__ == "__main__":
    main()
