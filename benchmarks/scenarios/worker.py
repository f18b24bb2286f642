"""A server in a process of its own, which does what lines of JSON on its standard input ask for.

    {"do": "round"}                                     every task once: {"ms": {task: latency}}
    {"do": "arrivals", "times": [[s, task, ms], ...]}   requests at these seconds with deadlines: {"ms": {task: [response, ...]}}
    {"do": "memory"}                                    {"idle": bytes, "peak": bytes} of all its processes
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from benchmarks.scenarios.servers import SERVERS
from benchmarks.scenarios.tasks import SCENARIOS, Files
from flexcomp.errors import RefusedError


class Memory:
    """Resident bytes of some processes, looked at every millisecond."""

    def __init__(self, processes: Iterable[int | str]) -> None:
        self._files = [Path(f"/proc/{process}/statm") for process in processes]
        self.idle = self.peak = self._now()
        threading.Thread(target=self._look, daemon=True).start()

    def _now(self) -> int:
        return sum(int(file.read_text().split()[1]) for file in self._files) * 4096

    def _look(self) -> None:
        while True:
            self.peak = max(self.peak, self._now())
            time.sleep(1e-3)


def arrivals(server: Any, times: list[tuple[float, str, float]]) -> dict[str, list[float]]:
    """Milliseconds from each request's time to its answer, by task; of those that are refused infinitely many."""
    taken: dict[str, list[float]] = {}
    begin = time.perf_counter()
    futures: list[Future] = []

    def note(task: str, at: float, refused: bool) -> None:
        taken.setdefault(task, []).append(math.inf if refused else 1e3 * (time.perf_counter() - begin - at))

    for at, task, deadline_ms in times:
        time.sleep(max(0.0, begin + at - time.perf_counter()))
        try:
            future = server.submit(task, deadline_ms)
        except RefusedError:
            note(task, at, refused=True)
            continue
        future.add_done_callback(lambda done, task=task, at=at: note(task, at, isinstance(done.exception(), RefusedError)))
        futures.append(future)
    for future in futures:
        if (error := future.exception()) and not isinstance(error, RefusedError):
            raise error
    return taken


def main() -> None:
    """The server that the first argument, JSON, describes."""
    asked = json.loads(sys.argv[1])
    files = Files(Path(asked["folder"]), Path(asked["weights_folder"]), asked["storage"])
    tasks = SCENARIOS[asked["scenario"]].tasks
    server = SERVERS[asked["server"]](tasks, files, asked["budget"])
    children = getattr(server, "children", {})
    memory = Memory(["self", *(child.pid for child in children.values())])
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "round":
            answer: dict[str, Any] = {"ms": {}}
            for task in tasks:
                begin = time.perf_counter()
                server.run(task.name)
                answer["ms"][task.name] = 1e3 * (time.perf_counter() - begin)
        elif order["do"] == "arrivals":
            answer = {"ms": arrivals(server, order["times"])}
        else:
            answer = {"idle": memory.idle, "peak": memory.peak}
        print(json.dumps(answer), flush=True)
    server.close()


if __name__ == "__main__":
    main()
