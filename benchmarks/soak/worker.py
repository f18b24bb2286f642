"""The process that is soaked: rounds of everything at once, and between them an idle process that is measured.

    python -m benchmarks.soak.worker STORE MEMORY SEED SECONDS PAUSE

STORE is a folder of `benchmarks.soak.prepare` on a disk, MEMORY one on a file system in memory. Each round opens
one to three sessions, which THREADS threads use for some seconds at random; then all are closed, and the resident
memory is read. A line of JSON on standard output tells of each round. Random numbers follow from seed, round and
thread; the interleaving of threads does not.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import random
import resource
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import flexcomp
from benchmarks.soak.files import Expected, Place, damage, read_expected
from benchmarks.soak.forked import fork_and_check
from benchmarks.soak.memory import Allowance, Sampler, resident
from benchmarks.soak.subject import Subject, Wrong, draw_wish
from flexcomp.errors import ArtifactError, FlexcompError

THREADS = 4
MOST_SESSIONS = 3
SAMPLE_S = 0.02
WEIGHTS = {  # how often each is done, of a thousand times
    "run": 350, "burst": 200, "set_budget": 250, "ask": 60, "trace": 30, "read_rate": 15, "ask_too_little": 15,
    "give_nonsense": 15, "watch": 20, "reopen": 20, "replace": 15, "damaged": 5, "fork": 5,
}  # fmt: skip


class Doors:
    """Libraries are loaded by any number of threads, but by none while the process is forked.

    A child has the dynamic loader's lock in its state at the fork, and nobody would release the lock.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._inside, self._forking = 0, False

    @contextmanager
    def loading(self) -> Iterator[None]:
        with self._condition:
            self._condition.wait_for(lambda: not self._forking)
            self._inside += 1
        try:
            yield
        finally:
            with self._condition:
                self._inside -= 1
                self._condition.notify_all()

    @contextmanager
    def forking(self) -> Iterator[None]:
        with self._condition:
            self._condition.wait_for(lambda: not self._forking)
            self._forking = True
            self._condition.wait_for(lambda: self._inside == 0)
        try:
            yield
        finally:
            with self._condition:
                self._forking = False
                self._condition.notify_all()


class Slot:
    """A place for a session: others keep using the one that is being replaced."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.reopening = threading.Lock()


class Soak:
    """The rounds."""

    def __init__(self, store: Path, memory: Path, seed: int, pause_s: float) -> None:
        self._store, self._seed, self._pause_s = store, seed, pause_s
        self._networks = read_expected(store)
        self._threads = tuple(sorted(next(iter(self._networks[0].outputs.values()))))
        versions = tuple(self._networks[0].outputs)
        self._places = [
            Place(folder / "live", folder, network.name, versions) for network in self._networks for folder in (store, memory)
        ]
        self._damaged = {network.name: damage(store, network.name, versions[0], store / "damaged") for network in self._networks}
        self._scratch = store / "scratch"
        self._allowance, self._doors = Allowance(), Doors()
        self._sampler = Sampler(self._allowance, SAMPLE_S)
        self._pool = ThreadPoolExecutor(THREADS)
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []

    def warm_up(self) -> None:
        """Everything once, so that permanent memory of the process is there."""
        for place in self._places:
            expected = self._expected(place)
            for version in expected.outputs:
                place.replace(version)
                for threads in self._threads:
                    with flexcomp.load(place.library, "min", threads) as session:
                        session.run(expected.inputs[0])
        self.round(0, 2.0)
        self._sampler.idle_nbytes = _idle()
        self._sampler.most_over()

    def round(self, number: int, seconds: float) -> dict:
        """One round; returns its record."""
        chance = random.Random(f"{self._seed} {number}")
        slots = [Slot(self._open(chance)) for _ in range(chance.randint(1, MOST_SESSIONS))]
        end = time.monotonic() + seconds
        tasks = [
            self._pool.submit(self._use, slots, random.Random(f"{self._seed} {number} {thread}"), end, f"{number}-{thread}")
            for thread in range(THREADS)
        ]
        for task in tasks:
            task.result()
        for slot in slots:
            slot.subject.close()
        slots.clear()
        tasks.clear()
        over = self._sampler.most_over()
        idle = _idle()
        if self._sampler.idle_nbytes:
            self._sampler.idle_nbytes = idle
        return {
            "round": number, "idle_rss_bytes": idle, "over_bytes": over, "counts": dict(self.counts),
            "failures": len(self.failures), "samples": self._sampler.samples,
        }  # fmt: skip

    def stop(self) -> None:
        """No threads any more."""
        self._sampler.stop()
        self._pool.shutdown()

    def _expected(self, place: Place) -> Expected:
        return next(network for network in self._networks if network.name == place.library.stem)

    def _open(self, chance: random.Random) -> Subject:
        wish = draw_wish(chance, self._networks, self._places, self._threads)
        with self._doors.loading():
            return Subject(wish, self._allowance)

    def _use(self, slots: list[Slot], chance: random.Random, end: float, name: str) -> None:
        names, weights = list(WEIGHTS), list(WEIGHTS.values())
        while time.monotonic() < end:
            (action,) = chance.choices(names, weights)
            slot = chance.choice(slots)
            try:
                self._do(action, slot, chance, name)
            except Wrong as wrong:
                self._fail(f"round-thread {name}, {action}: {wrong}")
            except FlexcompError as error:
                self._fail(f"round-thread {name}, {action} of {slot.subject}: {type(error).__name__}: {error}")
            with self._lock:
                self.counts[action] += 1
            time.sleep(chance.expovariate(1 / self._pause_s) if self._pause_s else 0)

    def _do(self, action: str, slot: Slot, chance: random.Random, name: str) -> None:
        subject = slot.subject
        if action == "burst":  # inferences so close to each other, or just so far, that reading ahead meets them anywhere
            longest = chance.choice((0, 0.0005, 0.002))
            for _ in range(chance.randint(2, 20)):
                subject.run(chance)
                time.sleep(chance.random() * longest)
        elif action == "watch":
            subject.watch(chance, self._scratch / f"cgroup-{name}")
            shutil.rmtree(self._scratch / f"cgroup-{name}", ignore_errors=True)
        elif action == "reopen":
            if slot.reopening.acquire(blocking=False):
                try:
                    slot.subject = self._open(chance)
                    subject.close()
                finally:
                    slot.reopening.release()
        elif action == "replace":
            place = chance.choice(self._places)
            place.replace(chance.choice(tuple(self._expected(place).outputs)))
        elif action == "damaged":
            self._open_damaged(chance)
        elif action == "fork":
            expected = chance.choice(self._networks)
            with self._doors.forking():
                result = fork_and_check(chance, subject.session, expected, self._store, self._scratch)
            if result != "right":
                raise Wrong(f"a forked child with {expected.name}: {result}")
        else:
            method: Callable[[random.Random], None] = getattr(subject, action)
            method(chance)

    def _open_damaged(self, chance: random.Random) -> None:
        kind, library = chance.choice(sorted(chance.choice(sorted(self._damaged.items()))[1].items()))
        try:
            with self._doors.loading():
                flexcomp.load(library, "min", verify=kind == "flipped" or chance.random() < 0.5).close()
        except ArtifactError:
            return
        raise Wrong(f"{library} was opened although its weights are {kind}")

    def _fail(self, message: str) -> None:
        with self._lock:
            self.failures.append(message)
            if len(self.failures) <= 100:
                print(message, file=sys.stderr, flush=True)


def _idle() -> int:
    gc.collect()
    return resident()


def main() -> None:
    """Until the time is over."""
    store, memory, seed, seconds, pause = sys.argv[1:]
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.getLogger("flexcomp").setLevel(logging.ERROR)  # each session of more threads than cores would be warned of
    end = time.monotonic() + float(seconds)
    soak = Soak(Path(store), Path(memory), int(seed), float(pause))
    soak.warm_up()
    number = 0
    while number == 0 or time.monotonic() < end:
        number += 1
        length = random.Random(f"{seed} {number} length").uniform(2, 6)
        print(json.dumps(soak.round(number, min(length, max(0.5, end - time.monotonic())))), flush=True)
    soak.stop()
    if found := {"tvm", "onnx", "onnxruntime"} & set(sys.modules):
        raise SystemExit(f"imported: {found}")


if __name__ == "__main__":
    main()
