"""Lets each system call and allocation of a session and of a pool fail once: right answers, or one clear error and then those.

`python -m tests.faults.sweep` tries all of them, on disk, in memory and through the page cache, of weights from a
descriptor and from a reader, and of pools; `--sample N` tries N of each.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from flexcomp import runtime_ext
from tests.runtime import tiny

HERE = Path(__file__).resolve().parent
_PART = 20  # calls that one process of the driver lets fail
_TOLD = 200  # calls between two lines of progress
GOOD = ("right", "error")  # verdicts; "unfired" says that there were fewer calls this time
MEMORY = Path("/dev/shm")
KINDS = {  # what is played, where the weights lie, and how they are read
    "disk": ("session", None, {"direct": True}),
    "memory": ("session", MEMORY, {"direct": True}),
    "buffered": ("session", None, {"direct": False}),
    "verified": ("session", None, {"direct": True, "verify": True}),
    "descriptor": ("source-descriptor", None, {}),
    "reader": ("source-reader", None, {}),
    "pool": ("pool-1", None, {"direct": True}),
    "two lanes": ("pool-2", None, {"direct": True}),
}


@dataclass(frozen=True)
class Fault:
    """What came of one call that failed."""

    n: int
    variant: int
    call: str
    verdict: str
    step: str
    message: str


class Harness:
    """The driver and the library that is preloaded into it, compiled into `folder`, with a network to run."""

    def __init__(self, network, x: np.ndarray, folder: Path) -> None:
        self._network = network
        self._driver, self._interposer = folder / "driver", folder / "interposer.so"
        # A copy: another may be installed in the hours of a sweep.
        self._runtime = Path(shutil.copy(runtime_ext.runtime_library(), folder / "runtime.so"))
        ffi = Path(find_spec("tvm_ffi").submodule_search_locations[0])
        compiler = ["g++", "-std=c++20", "-O1", "-Wall", "-Wextra"]
        for command in (
            [*compiler, "-fPIC", "-shared", "-o", self._interposer, HERE / "interposer.cc"],
            [
                *compiler, "-o", self._driver, HERE / "driver.cc", self._interposer, "-isystem", ffi / "include",
                f"-I{Path(runtime_ext.__file__).parent / 'include'}",
                f"-L{ffi / 'lib'}", "-ltvm_ffi", f"-Wl,-rpath,{ffi / 'lib'}", f"-Wl,-rpath,{folder}", "-pthread",
            ],
        ):  # fmt: skip
            subprocess.run(command, check=True)
        self._x, self._y = folder / "x", folder / "y"
        x.astype("f4").tofile(self._x)
        network.reference(x).tofile(self._y)

    def calls(self, kind: str) -> int:
        """How many calls there are that can fail."""
        return int(self._play(kind, [0])[0])

    def faults(self, kind: str, numbers: Sequence[int]) -> list[Fault]:
        """Let these calls fail, each in every way it can."""
        fields = [line.split("\t") for line in self._play(kind, numbers)]
        return [Fault(int(n), int(variant), *rest) for n, variant, *rest in fields]

    def _play(self, kind: str, numbers: Sequence[int]) -> list[str]:
        scenario, folder, options = KINDS[kind]
        budgets = [rung.budget for rung in self._network.program.rungs]
        if scenario == "session":
            own = {"library_path": str(self._network.library), "threads": 2, "trace": True, "budget_bytes": budgets[1]}
            options = {**options, **own}
        with tempfile.TemporaryDirectory(dir=folder) as weights_folder:
            weights = Path(weights_folder) / "weights"
            weights.write_bytes(self._network.weights.read_bytes())
            files = [self._driver, scenario, self._network.library, weights, self._x, self._y]
            done = subprocess.run(
                [*files, json.dumps(options), *map(str, budgets)], input="\n".join(map(str, numbers)),
                capture_output=True, text=True, check=False,
                env={**os.environ, "LD_PRELOAD": str(self._interposer), "FLEXCOMP_RUNTIME": str(self._runtime)},
            )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"the driver ended with {done.returncode}: {done.stderr.strip()}")
        print(done.stderr, end="", file=sys.stderr)  # where a process crashed, the trace of libtvm_ffi
        return done.stdout.splitlines()


def sweep(
    harness: Harness, kind: str, sample: int | None = None, seed: int = 0, jobs: int = 2,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Fault]:
    """All faults of one kind, or a random sample of the calls; `report(done, total)` counts the calls."""
    numbers = list(range(1, harness.calls(kind) + 1))
    if sample is not None:
        numbers = sorted(random.Random(seed).sample(numbers, min(sample, len(numbers))))
    parts = [numbers[at : at + _PART] for at in range(0, len(numbers), _PART)]
    with ThreadPoolExecutor(jobs) as pool:
        for done, faults in enumerate(pool.map(lambda part: harness.faults(kind, part), parts), 1):
            report(min(done * _PART, len(numbers)), len(numbers))
            yield from faults


def kinds() -> list[str]:
    """Those that this machine has storage and cores for."""
    cores = len(os.sched_getaffinity(0))
    return [
        name
        for name, (scenario, folder, _) in KINDS.items()
        if (folder is None or os.access(folder, os.W_OK)) and (scenario != "pool-2" or cores > 1)
    ]


def main() -> int:
    """Sweep, print what came of it by call, and list what is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, help="so many calls of each kind (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--kind", choices=KINDS, action="append", help="default: all that this machine has")
    arguments = parser.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        network = tiny.export(Path(folder) / "tiny.so", "faults_")
        harness = Harness(network, np.random.default_rng(1).standard_normal(tiny.N).astype("f4"), Path(folder))
        for kind in arguments.kind or kinds():
            faults = []

            def report(done: int, total: int, kind: str = kind) -> None:
                if done % _TOLD == 0 or done == total:
                    print(f"{kind}: {done} of {total} calls", file=sys.stderr, flush=True)

            for fault in sweep(harness, kind, arguments.sample, arguments.seed, arguments.jobs, report):
                faults.append(fault)
                if fault.verdict not in (*GOOD, "unfired"):
                    print(f"{kind}: NOT AS IT SHOULD BE: {fault}", flush=True)
                    bad += 1
            totals = Counter(fault.verdict for fault in faults)
            print(f"{kind}: {len(faults)} faults: " + ", ".join(f"{count} {name}" for name, count in totals.items()))
            by_call = Counter((fault.call, fault.verdict) for fault in faults if fault.call)
            for call in sorted({call for call, _ in by_call}):
                print(f"  {call}: " + ", ".join(f"{by_call[call, v]} {v}" for v in totals if by_call[call, v]))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
