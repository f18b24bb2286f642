"""Timing a trial's library, wherever its module was loaded: in this process, or on a device reached by RPC."""

from __future__ import annotations

import json
import statistics

_FEWEST_RUNS = 6
_MOST_RUNS = 41
_ENOUGH_S = 0.15


def seconds_of_call(program, weights: str, calls: int, threads: int) -> float:
    """Seconds of one kernel call, the median over inferences of `calls` calls each.

    `program` is the loaded library's module, `weights` the path of the data on that machine.
    """
    options = {"threads": threads, "direct": False}
    session = program.get_function("open")(weights, json.dumps(options))
    try:
        # One call: a device does not idle between inferences until the network has asked for the next.
        done = json.loads(str(session.get_function("repeat")(_FEWEST_RUNS, _MOST_RUNS, _ENOUGH_S)))
    finally:
        session.get_function("close")()
    seconds = [run["latency_ms"] * 1e-3 for run in done["runs"]]
    return statistics.median(seconds[1:]) / calls  # the first inference loads the data


def time_here(path: str, weights: str, calls: int, threads: int) -> float:
    """`seconds_of_call` of a library on this machine; for worker processes."""
    import tvm_ffi

    return seconds_of_call(tvm_ffi.load_module(path), weights, calls, threads)
