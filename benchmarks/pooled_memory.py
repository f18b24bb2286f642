"""How much a pool holds beside its budget, while requests, budgets, and models that come and go change it at random."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import flexcomp
from benchmarks.cgroup import is_available, memory_group
from benchmarks.scenarios.tasks import example
from flexcomp.errors import InputError, RefusedError
from flexcomp.runtime import ladder_of, least_bytes, read_info

_SPARE, _SPARE_PER_MODEL = 4 << 20, 3 << 19


def spare_nbytes(models: int) -> int:
    """What a pool of so many models may hold beside its budget."""
    return _SPARE + _SPARE_PER_MODEL * models


class Held:
    """Resident bytes of a process, looked at every millisecond, over those of now; `allowed` may change."""

    def __init__(self, allowed: int, file: Path = Path("/proc/self/statm")) -> None:
        self._file = file
        self.idle, self.worst, self.looks = self._now(), -(10**12), 0
        self._allowed, self._ended = [allowed], False
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def allow(self, nbytes: int) -> None:
        """Until a budget is in force the one before it counts, too."""
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


def memory_in_groups(libraries: Sequence[Path], requests: int, seed: int) -> bool:
    """`memory` in a process of its own, and in another inside a control group of what the first was held to."""
    if not is_available():
        print("there are no memory control groups here")
        return memory(libraries, requests, seed)
    with tempfile.TemporaryDirectory() as folder:
        facts = Path(folder) / "facts.json"
        command = [sys.executable, "-m", "benchmarks.pooling", "memory", *map(str, libraries)]
        command += ["--requests", str(requests), "--seed", str(seed), "--facts", str(facts)]
        right = subprocess.run(command, check=False).returncode == 0
        found = json.loads(facts.read_text())
        limit = found["idle_bytes"] + found["most_bytes"] + spare_nbytes(len(libraries))
        with memory_group(limit) as group:
            again = subprocess.run([*group.prefix, *command], check=False).returncode == 0
            print(f"inside a group of {limit / 2**20:.1f} MiB: {'held' if again else 'not held'}; {group.facts()}")
            return right and again and group.facts()["kills"] == 0


def memory(libraries: Sequence[Path], requests: int, seed: int, facts: Path | None = None) -> bool:
    """Whether all was right. `facts`: a file for what the process held when idle, and the largest budget."""
    chance = random.Random(seed)
    ladders = [ladder_of(read_info(library)) for library in libraries]
    names = [library.stem for library in libraries]
    least = least_bytes(ladders)
    with flexcomp.Pool(10**12) as pool:
        for name, library in zip(names, libraries, strict=True):
            pool.add(name, library)
        most = pool.plan().most_bytes
        inputs = {name: example(pool.inputs(name)) for name in names}
        expected = {name: pool.run(name, inputs[name]) for name in names}
    with flexcomp.Pool(most) as pool:
        for name, library in zip(names, libraries, strict=True):
            pool.add(name, library)
        held = Held(most)
        if facts is not None:
            lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
            facts.write_text(json.dumps({"idle_bytes": int(lines["RssAnon"].split()[0]) << 10, "most_bytes": most}))
        left, wrong = threading.Semaphore(requests), []

        def ask(seed: int) -> None:
            own = random.Random(seed)
            while left.acquire(blocking=False):
                name = own.choice(names)
                try:
                    outputs = pool.run(name, inputs[name])
                except (InputError, RefusedError):
                    continue  # removed just now
                if not same(outputs, expected[name]):
                    wrong.append(name)

        threads = [threading.Thread(target=ask, args=(chance.random(),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        changes = 0
        while any(thread.is_alive() for thread in threads):
            time.sleep(chance.uniform(0, 0.1))
            if chance.random() < 0.7:
                budget = chance.randint(least, most)
                held.allow(budget)
                pool.set_budget(budget)
                held.in_force()
            else:
                at = chance.randrange(len(names))
                pool.remove(names[at])
                pool.add(names[at], libraries[at], urgency=chance.uniform(0.5, 4))
            changes += 1
        held.end()
    limit = spare_nbytes(len(names))
    print(
        f"{requests} requests, {changes} changes, {held.looks} looks: at worst {held.worst / 2**20:.2f} MiB over the budget in "
        f"force (limit {limit / 2**20:.1f}), {len(wrong)} wrong"
    )
    return held.worst <= limit and not wrong


def same(outputs: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    """Up to rounding: other budgets take other kernels."""
    return all(np.allclose(a, expected[key], rtol=0, atol=1e-3 * np.abs(expected[key]).max()) for key, a in outputs.items())
