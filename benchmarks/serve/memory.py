"""The memory of a server while requests come, its budget changes, and models are unloaded and loaded, all at random.

Its resident memory is read every millisecond, over that of all models loaded and no request, and compared with the budget in
force, its part for requests included. The budget follows a file as if a control group's limit changed. A second run is inside
a control group that allows no more than the first was held to: the system ends a process that needs more.
"""

from __future__ import annotations

import contextlib
import http.client
import random
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx

import flexcomp
from benchmarks.cgroup import MemoryGroup, memory_group
from benchmarks.serve.served import EXPECTED, HEADER, Client, served
from flexcomp.runtime import ladder_of, least_bytes, read_info

_SPARE_NBYTES, _SPARE_NBYTES_PER_MODEL = 4 << 20, 3 << 19
_CLIENTS = 4
_GONE = 404  # a model that was unloaded just now
_MIXED = 0.7  # of the changes, those of the budget
_ROOM_NBYTES = 4 << 20  # for requests, of the budget
_PATIENCE_S = 2.5  # for a budget to grow: a watch waits for two


def spare_nbytes(models: int) -> int:
    """Bytes that a server of so many models may hold over its budget."""
    return _SPARE_NBYTES + _SPARE_NBYTES_PER_MODEL * models


class Held:
    """Resident bytes of a process, looked at every millisecond, over those of now; `allowed` may change."""

    def __init__(self, allowed: int, file: Path = Path("/proc/self/statm")) -> None:
        self._file = file
        self.idle, self.worst, self.looks = self._now(), -(10**12), 0
        self._allowed, self._ended = [allowed], False
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def allow(self, nbytes: int) -> None:
        """Until a budget is in force the previous one counts, too."""
        self._allowed.append(nbytes)

    def in_force(self) -> None:
        """From now on only the last one."""
        self._allowed = self._allowed[-1:]

    def end(self) -> None:
        """Stop looking."""
        self._ended = True
        self._thread.join()

    def _now(self) -> int:
        return int(self._file.read_text().split()[1]) * 4096

    def _look(self) -> None:
        while not self._ended:
            allowed = max(self._allowed)
            self.worst = max(self.worst, self._now() - self.idle - max(allowed, *self._allowed))
            self.looks += 1
            time.sleep(1e-3)


@dataclass
class Clients:
    """Threads that ask until so many requests are answered."""

    url: str
    clients: list[Client]
    requests: int
    seed: int
    statuses: dict[int, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._left, self._lock = threading.Semaphore(self.requests), threading.Lock()
        chance = random.Random(self.seed)
        self._threads = [threading.Thread(target=self._ask, args=(chance.random(),)) for _ in range(_CLIENTS)]
        for thread in self._threads:
            thread.start()

    @property
    def busy(self) -> bool:
        """Whether requests are left."""
        return any(thread.is_alive() for thread in self._threads)

    def _ask(self, seed: float) -> None:
        own = random.Random(seed)
        with contextlib.closing(http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=60)) as connection:
            while self._left.acquire(blocking=False):
                client = own.choice(self.clients)
                try:
                    connection.request("POST", client.path, client.body, client.headers)
                    response = connection.getresponse()
                    content = response.read()
                    if response.status == 200:
                        client.check(int(response.headers[HEADER]), content)
                except (OSError, http.client.HTTPException, AssertionError) as error:
                    self.faults.append(repr(error)[:200])
                    connection.close()
                    continue
                with self._lock:
                    self.statuses[response.status] = self.statuses.get(response.status, 0) + 1
                if response.status not in (*EXPECTED, _GONE):
                    self.faults.append(f"status {response.status}: {content[:200]!r}")


def run(
    libraries: list[Path], clients: list[Client], requests: int, seed: int, budgets: range, group: MemoryGroup
) -> tuple[int, int, list[str]]:
    """(anonymous bytes of an idle server, the most above the budget in force, faults); `budgets` are those of models."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        limit = Path(folder) / "memory.max"
        limit.write_text(str(1 << 40))
        options = ["--watch", folder, "--request-memory", str(_ROOM_NBYTES)]
        with contextlib.ExitStack() as stack:
            url, process = stack.enter_context(served(libraries, str(budgets.stop + _ROOM_NBYTES), *options, prefix=group.prefix))
            web = stack.enter_context(httpx.Client(base_url=url, timeout=60))
            idle = group.anonymous_nbytes()
            held = Held(budgets.stop + _ROOM_NBYTES, Path(f"/proc/{process.pid}/statm"))
            asking = Clients(url, clients, requests, seed)
            changes = 0
            while asking.busy and process.is_running():
                time.sleep(chance.uniform(0, 0.1))
                if chance.random() < _MIXED:
                    budget, before = chance.choice(budgets), _held_nbytes(web)[0]
                    held.allow(budget + _ROOM_NBYTES)
                    limit.write_text(str(budget))
                    until = time.monotonic() + (_PATIENCE_S if budget > before else 0)
                    while asking.busy and (max(_held_nbytes(web)) > budget or time.monotonic() < until):
                        time.sleep(0.01)
                    if max(_held_nbytes(web)) <= budget:
                        held.in_force()
                else:
                    name = chance.choice(libraries).stem
                    for action in ("unload", "load"):
                        web.post(f"/v2/repository/models/{name}/{action}")
                changes += 1
            held.end()
    print(
        f"{requests} requests, {changes} changes, {held.looks} looks, idle {held.idle / 2**20:.1f} MiB resident: at worst "
        f"{held.worst / 2**20:.2f} MiB over the budget in force; answers {dict(sorted(asking.statuses.items()))}, "
        f"{len(asking.faults)} faults"
    )
    return idle, held.worst, asking.faults


def _held_nbytes(web: httpx.Client) -> tuple[float, float]:
    """The budget, and claims of models and lanes, which may be more until running ones have given theirs back."""
    lines = web.get("/metrics").text.splitlines()
    budget, claimed = (
        next(float(line.split()[1]) for line in lines if line.startswith(f"flexcomp_{name}_bytes "))
        for name in ("budget", "claimed")
    )
    return budget, claimed


def hold(libraries: list[Path], clients: list[Client], requests: int, seed: int) -> tuple[bool, dict]:
    """Whether both runs kept the limit without a fault, and the figures. Raises OSError without control groups."""
    least = least_bytes([ladder_of(read_info(library)) for library in libraries])
    with flexcomp.Pool(10**12) as pool:
        for library in libraries:
            pool.add(library.stem, library)
        budgets = range(least, pool.plan().most_bytes)
    spare = spare_nbytes(len(clients))
    with memory_group(1 << 50) as group:
        idle, worst, faults = run(libraries, clients, requests, seed, budgets, group)
    inside = idle + budgets.stop + _ROOM_NBYTES + spare
    with memory_group(inside) as group:
        _, again, more = run(libraries, clients, requests, seed, budgets, group)
        facts = group.facts()
    for fault in (faults + more)[:5]:
        print(fault)
    held = not (faults or more or facts["kills"] or max(worst, again) > spare)
    return held, {"over_bytes": worst, "inside_over_bytes": again, "limit_bytes": spare, "group_bytes": inside} | facts
