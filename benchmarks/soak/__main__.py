"""Everything at once, for minutes or hours: are all outputs right, and does memory stay within bounds?

    python -m benchmarks.soak --minutes 120 [--seed 1] [--pause 0.02] [--disk DIR] [--memory /dev/shm] [--json FILE]

Four small networks are built twice, with different weights (`benchmarks/soak/prepare.py`; a minute), and run in a
process that has no compiler. There, four threads use up to three sessions at a time: inferences, in bursts with pauses
around half a millisecond too; budgets that change, also because a function or a control group's folder is watched; states,
traces, measurements of the storage; sessions that others close; weights and libraries that are replaced by renaming while
in use; damaged files; forked children that load anew. Sessions have 1 to 3 compute threads and read
directly, through the page cache, from memory, or with a limited bandwidth; some get one read error. The operations follow
from the seed, their interleaving does not.

An output must be, bit for bit, that of some budget of the same network, weights and number of threads, which sessions
that had run nothing before gave one by one, close to ONNX Runtime's. An error must be of the class that the operation may raise.

Memory is that of the whole process. Every `SAMPLE_S` seconds its resident memory, less that before the round, without
sessions, is compared with the sum of the budgets that are set or may be by then: code, stacks and programs of the sessions are
in the LIMIT of the excess. And every few seconds, when all sessions are closed, the process's own memory is read:
it must not grow, by more than GROWTH from the lowest to the highest in the second half of the run. (A first half must be
allowed for: a heap takes some thousand sessions to get its size. A run of less than JUDGED_MINUTES is no measure of that.)

Prints a line a minute and a table at the end. The exit status is 1 if an output or an error was wrong, memory was, a
round took longer than HANG_S, or the process died.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.results import Results, Table, json_option

LIMIT = 4 << 20  # bytes beyond the idle process and the budgets
GROWTH = 1 << 20  # bytes from the lowest to the highest idle process
JUDGED_MINUTES = 60.0
HANG_S = 300.0  # a round takes six seconds, and its slow parts have two minutes (`forked.LIMIT_S`)


@dataclass
class Tally:
    """The worker's reports so far."""

    rounds: int = 0
    failures: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    most_over: int = -(1 << 62)
    idle: list[tuple[float, int]] = field(default_factory=list)  # seconds since the start, bytes
    trouble: str = ""  # the worker's end, if unexpected

    def add(self, at_s: float, told: dict) -> None:
        """One round."""
        self.rounds, self.failures, self.counts = told["round"], told["failures"], told["counts"]
        self.most_over = max(self.most_over, told["over_bytes"])
        self.idle.append((at_s, told["idle_rss_bytes"]))

    def halves(self) -> tuple[list[int], list[int]]:
        """Idle memory in the first and in the second half of the time."""
        middle = self.idle[-1][0] / 2 if self.idle else 0
        return [n for at, n in self.idle if at < middle], [n for at, n in self.idle if at >= middle]

    def line(self, at_s: float) -> str:
        """For somebody who watches."""
        runs = self.counts.get("run", 0) + self.counts.get("burst", 0)
        return (
            f"{at_s / 60:6.1f} min  {self.rounds} rounds  {sum(self.counts.values())} actions ({runs} of inferences)  "
            f"idle {self.idle[-1][1] / 2**20:.2f} MiB  over budgets {self.most_over / 2**20:+.2f} MiB  {self.failures} failures"
        )

    def summary(self, minutes: float, seed: int) -> dict:
        """The verdict."""
        first, second = self.halves()
        growth = max(second) - min(second) if second else 0
        judged = minutes >= JUDGED_MINUTES
        good = not (self.failures or self.trouble or self.most_over > LIMIT or not self.idle or (judged and growth > GROWTH))
        mib = lambda values: [round(f(values) / 2**20, 3) for f in (min, max)] if values else None  # noqa: E731
        return {
            "good": good, "minutes": minutes, "seed": seed, "rounds": self.rounds, "failures": self.failures,
            "trouble": self.trouble, "over_budgets_mib": round(self.most_over / 2**20, 3), "idle_mib_first_half": mib(first),
            "idle_mib_second_half": mib(second), "second_half_range_mib": round(growth / 2**20, 3),
            "range_judged": judged, "counts": self.counts,
        }  # fmt: skip


def soak(disk: Path, memory: Path, minutes: float, seed: int, pause_s: float) -> Tally:
    """Networks in `disk` are used for so long; progress is printed."""
    command = [sys.executable, "-m", "benchmarks.soak.worker", str(disk), str(memory), str(seed), str(minutes * 60), str(pause_s)]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE)
    tally, start, said = Tally(), time.monotonic(), 0
    try:
        for line in _lines(worker):
            at_s = time.monotonic() - start
            tally.add(at_s, json.loads(line))
            if at_s >= 60 * (said + 1):
                said = int(at_s / 60)
                print(tally.line(at_s), flush=True)
        code = worker.wait()
    except TimeoutError as error:
        worker.send_signal(signal.SIGUSR1)  # where all threads are
        time.sleep(2)
        worker.kill()
        worker.wait()
        tally.trouble = str(error)
        return tally
    except BaseException:
        worker.kill()
        raise
    if code:
        tally.trouble = f"the worker was ended by {signal.strsignal(-code)}" if code < 0 else f"the worker ended with {code}"
    return tally


def _lines(worker: subprocess.Popen) -> Iterator[str]:
    """Its output, line by line. Raises TimeoutError after HANG_S without any."""
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(worker.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(HANG_S):
                raise TimeoutError(f"nothing was heard of the worker for {HANG_S:.0f} s")
            piece = os.read(worker.stdout.fileno(), 1 << 16)
            if not piece:
                return
            *lines, rest = (rest + piece).split(b"\n")
            yield from (line.decode() for line in lines)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=0.02, help="mean seconds between two actions of a thread")
    parser.add_argument("--disk", type=Path, default=None, help="a folder on a disk (default: the one for temporary files)")
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"), help="a folder in memory")
    json_option(parser, "soak")
    arguments = parser.parse_args()
    written = Results.begin("benchmarks.soak")
    with (
        tempfile.TemporaryDirectory(prefix="soak-", dir=arguments.disk) as disk,
        tempfile.TemporaryDirectory(prefix="soak-", dir=arguments.memory) as memory,
    ):
        subprocess.run([sys.executable, "-m", "benchmarks.soak.prepare", disk], check=True)
        shutil.copytree(disk, memory, dirs_exist_ok=True)
        print("networks are built; the soak begins", flush=True)
        tally = soak(Path(disk), Path(memory), arguments.minutes, arguments.seed, arguments.pause)
    summary = tally.summary(arguments.minutes, arguments.seed)
    table = Table(dict.fromkeys(("result", "value"), ""))
    for key, value in summary.items():
        table.add(key, str(value))
    written.write(arguments.json, [table], summary=summary)
    return 0 if summary["good"] else 1


if __name__ == "__main__":
    sys.exit(main())
