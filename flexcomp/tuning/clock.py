"""Timing a trial's library, wherever its module was loaded: in this process, or on a device behind RPC."""

from __future__ import annotations

import json
import statistics
import time

_FEWEST_RUNS = 5
_MOST_RUNS = 40
_ENOUGH_S = 0.15


def seconds_of_call(program, weights: str, calls: int, threads: int) -> float:
    """Seconds of one kernel call, the median over inferences of `calls` calls each.

    `program` is the loaded library's module, `weights` the path of the data on the machine that loaded it.
    """
    options = {"threads": threads, "direct": False}
    session = program.get_function("open")(weights, json.dumps(options))
    try:
        run, stats = session.get_function("run_in_place"), session.get_function("stats")
        times: list[float] = []
        started = time.monotonic()
        while len(times) <= _FEWEST_RUNS or (len(times) <= _MOST_RUNS and time.monotonic() - started < _ENOUGH_S):
            run(None, None)
            times.append(json.loads(str(stats()))["latency_ms"] * 1e-3)
    finally:
        session.get_function("close")()
    return statistics.median(times[1:]) / calls  # the first inference loads the data


def time_here(path: str, weights: str, calls: int, threads: int) -> float:
    """`seconds_of_call` of a library on this machine; for worker processes."""
    import tvm_ffi

    return seconds_of_call(tvm_ffi.load_module(path), weights, calls, threads)
