"""How soon cancelled inferences return, and whether everything is as before.

    python -m benchmarks.lab.cancels a.so b.so c.so [--times 200] [--budgets 10%] [--bandwidths 0,1e8]

Another thread cancels at random moments, from before an inference's beginning to after its end. An inference returns after the
running kernel, or after reads of the one before if these are still awaited; the bound is the longest step of three traced
inferences, or a read of 1 MiB, the largest single one. Reported for each network, budget and storage: how many inferences were
cancelled, how late they returned, and the part of them that returned within the bound and 5 ms. The exit status is 1 if that part
is below 0.99, if memory is not as before, or if outputs after a cancelled inference differ. A bandwidth of 0 is the storage that
the files lie on.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

import flexcomp
from benchmarks.lab.pooling import example
from benchmarks.results import Results, Table, json_option
from flexcomp.errors import CancelledError

_MORE_MS, _PART = 5.0, 0.99
_LARGEST_READ = 1 << 20  # bytes
COLUMNS = {
    "network": "", "budget": "", "MB/s": ".0f", "cancelled": "d", "median, ms": ".2f", "99 of 100, ms": ".2f", "bound, ms": ".2f",
    "within": ".3f", "wrong": "d",
}  # fmt: skip


def longest_ms(session: flexcomp.Session, inputs: Mapping[str, np.ndarray]) -> float:
    """Of the steps of some inferences."""
    spans = []
    for _ in range(3):
        session.run(inputs)
        spans += [end - begin for begin, end in session.trace().steps]
    return max(spans) * 1e-6


def cancelled(session: flexcomp.Session, inputs: Mapping[str, np.ndarray], moment_s: float) -> float | None:
    """Milliseconds from the cancelling of an inference to its return; None: it had ended."""
    begun, at = threading.Event(), []

    def cancel() -> None:
        begun.wait()
        time.sleep(moment_s)
        at.append(time.perf_counter())
        session.cancel()

    other = threading.Thread(target=cancel)
    other.start()
    begun.set()
    try:
        session.run(inputs)
        return None
    except CancelledError:
        return (time.perf_counter() - at[0]) * 1e3
    finally:
        other.join()


def measure(library: Path, budget: str, bandwidth: float, times: int) -> tuple:
    """A row of the table."""
    draw = random.Random(0)
    options = {"threads": 1, "read_bandwidth": bandwidth or None}
    with flexcomp.load(library, budget, **options, trace=True) as session:
        inputs = example(session.inputs)
        bound = max(longest_ms(session, inputs), _LARGEST_READ / bandwidth * 1e3 if bandwidth else 0) + _MORE_MS
    with flexcomp.load(library, budget, **options) as session:  # a trace waits for reads in flight
        expected = session.run(inputs)
        resident = session.resident_arena()
        took_s = session.stats()["latency_ms"] * 1e-3
        late, wrong = [], 0
        while len(late) < times:
            returned = cancelled(session, inputs, draw.random() * 1.1 * took_s)
            if returned is None:
                continue
            late.append(returned)
            wrong += session.resident_arena() != resident
            if len(late) % 10 == 0:
                again = session.run(inputs)
                wrong += any(not np.array_equal(again[name], value) for name, value in expected.items())
    within = sum(one <= bound for one in late) / len(late)
    median, most = np.quantile(late, (0.5, 0.99))
    return library.stem, budget, bandwidth / 1e6 or None, len(late), median, most, bound, within, wrong


def main() -> int:
    """Print a row for each network, budget and storage."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("libraries", nargs="+", type=Path, metavar="LIBRARY")
    parser.add_argument("--times", type=int, default=200, help="cancelled inferences in each row")
    parser.add_argument("--budgets", default="10%", help="as `flexcomp run` takes them")
    parser.add_argument("--bandwidths", default="0,1e8", help="bytes per second; 0: as fast as the storage is")
    json_option(parser, "cancels")
    args = parser.parse_args()
    results, table = Results.begin("benchmarks.lab.cancels"), Table(COLUMNS)
    for library in args.libraries:
        for budget in args.budgets.split(","):
            for bandwidth in map(float, args.bandwidths.split(",")):
                table.add(*measure(library, budget, bandwidth, args.times))
    results.write(args.json, [table])
    return int(any(row[7] < _PART or row[8] for row in table.rows))


if __name__ == "__main__":
    sys.exit(main())
