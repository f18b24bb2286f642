"""A pool's second lane, and its deadlines.

    python -m benchmarks.lab.pooling lanes a.so b.so [--seconds 10]
    python -m benchmarks.lab.pooling deadlines a.so b.so c.so [--seconds 30]

`lanes`: inferences a second by two lanes and by one. `deadlines`: requests at even times and in bursts, 70 % and 150 %
of the predicted rate of one lane; how many admitted ones end too late, and how long the longest took.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

import flexcomp
from flexcomp.errors import RefusedError

_BURST = 4  # requests of a model at once


def example(ports: Sequence[flexcomp.TensorInfo]) -> dict[str, np.ndarray]:
    """Inputs for a network, the same in every run."""
    random = np.random.default_rng(0)
    return {port.name: random.standard_normal(port.shape).astype(port.array_dtype) for port in ports}


def throughput(pool: flexcomp.Pool, seconds: float, expected: dict[str, dict[str, np.ndarray]]) -> tuple[float, int]:
    """(inferences a second, two of every model waiting at all times; how many of the last ones are wrong)."""
    inputs = {name: example(pool.inputs(name)) for name in pool.models}
    for name in pool.models:
        pool.run(name, inputs[name])
    last: dict[int, tuple[str, dict]] = {}
    done = [0] * (2 * len(pool.models))
    end = time.perf_counter() + seconds

    def ask(index: int, name: str) -> None:
        while time.perf_counter() < end:
            last[index] = name, pool.run(name, inputs[name])
            done[index] += 1

    threads = [threading.Thread(target=ask, args=(i, name)) for i, name in enumerate(2 * list(pool.models))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / seconds, sum(not same(outputs, expected[name]) for name, outputs in last.values())


def lanes(libraries: Sequence[Path], seconds: float) -> bool:
    """One thread in each lane, everything in memory."""
    pools = {count: flexcomp.Pool(10**12, lanes=count, threads=1) for count in (1, 2)}
    for pool in pools.values():
        for library in libraries:
            pool.add(library.stem, library)
    expected = {}
    for library in libraries:
        with flexcomp.load(library) as session:
            expected[library.stem] = session.run(example(session.inputs))
    found: dict[int, list[float]] = {1: [], 2: []}
    wrong = 0
    for _ in range(3):
        for count, pool in pools.items():
            rate, mistakes = throughput(pool, seconds / 3, expected)
            found[count].append(rate)
            wrong += mistakes
    one, two = (statistics.median(found[count]) for count in (1, 2))
    print(f"one lane {one:.1f}, two lanes {two:.1f} inferences a second: {two / one:.2f} times; {wrong} outputs wrong")
    for pool in pools.values():
        pool.close()
    return two >= 1.7 * one and not wrong


def deadlines(libraries: Sequence[Path], seconds: float) -> bool:
    """Every model as busy as the others, deadlines as long as the time between two of its requests."""
    right = True
    with flexcomp.Pool(10**12) as pool:
        for library in libraries:
            pool.add(library.stem, library)
        inputs = {name: example(pool.inputs(name)) for name in pool.models}
        for name in pool.models:  # the pool learns the time beyond predictions
            for _ in range(9):
                pool.run(name, inputs[name])
        plan = pool.plan().models
        for model in plan:
            print(f"{model.name}: {model.predicted_ms:.2f} ms predicted, {model.likely_ms:.2f} likely")
        for load in (0.7, 1.5):
            for burst in (1, _BURST):
                periods = {model.name: len(plan) * model.predicted_ms * 1e-3 * burst / load for model in plan}
                right &= _offer(pool, inputs, periods, burst, load, seconds)
    return right


def _offer(pool: flexcomp.Pool, inputs: dict, periods: dict[str, float], burst: int, load: float, seconds: float) -> bool:
    """So many requests of every model at once, at even times; whether admitted ones ended in time, or at all."""
    parts: list[float] = []  # of its deadline that each took; infinite for dropped ones

    def note(future: flexcomp.runtime.PoolFuture, name: str, asked: float) -> None:
        parts.append((time.perf_counter() - asked) / periods[name] if future.exception() is None else math.inf)

    times = sorted(
        (i * period + period * k / len(periods), name)
        for k, (name, period) in enumerate(periods.items())
        for i in range(int(seconds / period))
        for _ in range(burst)
    )
    begin, refused = time.perf_counter(), 0
    for at, name in times:
        time.sleep(max(0.0, begin + at - time.perf_counter()))
        try:
            future = pool.submit(name, inputs[name], deadline_ms=1e3 * periods[name])
        except RefusedError:
            refused += 1
        else:
            future.add_done_callback(partial(note, name=name, asked=time.perf_counter()))
    while len(parts) < len(times) - refused:
        time.sleep(0.01)
    late, worst = sum(part > 1 for part in parts) / max(1, len(parts)), max(parts, default=0)
    print(
        f"{100 * load:.0f} %, {burst} at once: {len(times)} requests, {refused} refused, "
        f"{100 * late:.2f} % of those admitted late, the longest took {worst:.2f} of its deadline"
    )
    return late <= 0.01 if load < 1 else worst < math.inf


def same(outputs: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    """Whether outputs agree up to rounding: other budgets take other kernels."""
    return all(np.allclose(a, expected[key], rtol=0, atol=1e-3 * np.abs(expected[key]).max()) for key, a in outputs.items())


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("topic", choices=("lanes", "deadlines"))
    parser.add_argument("libraries", type=Path, nargs="+")
    parser.add_argument("--seconds", type=float, default=20.0)
    asked = parser.parse_args()
    right = {"lanes": lanes, "deadlines": deadlines}[asked.topic](asked.libraries, asked.seconds)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
