"""The process of one engine: converts a model, or loads and times it. Needs NumPy and the engine, nothing else.

    python -m benchmarks.peers.ENGINE convert MODEL.onnx FOLDER INPUTS.npz --threads N
    python -m benchmarks.peers.ENGINE run FOLDER INPUTS.npz OUTPUTS.npz --threads N

`run` says "ready" when everything is imported, waits for a line on stdin, and prints how long each inference took from then on,
the first with all preparations, and the peak of the resident set over that before loading, with the engine imported and the
inputs in memory: {"inferences_ms": [first, second, …], "memory_bytes": …}. `convert --cached` also makes the engine's cache for
starting sooner.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np

Inputs = Mapping[str, np.ndarray]
Call = Callable[[], Sequence[np.ndarray]]  # one inference on fixed inputs; outputs in order

LEAST = 3  # inferences timed after the third, of any duration


def main(package: str, convert: Callable[..., None], load: Callable[..., Call], cache: Callable[..., None] | None = None) -> None:
    """Run the command line's command with the functions of an engine.

    `convert(model, folder, inputs, threads)` writes the files for `load(folder, inputs, threads, budget)`; `cache` of the same
    arguments adds files for faster loading.
    """
    args = _parser().parse_args()
    with np.load(args.inputs) as file:
        inputs = dict(file)
    if args.task == "convert":
        convert(args.model, args.folder, inputs, args.threads)
        if args.cached and cache is not None:
            cache(args.folder, inputs, args.threads)
        return
    print(json.dumps({"version": version(package), **_run(args, inputs, load)}))


def _run(args: argparse.Namespace, inputs: Inputs, load: Callable[..., Call]) -> dict:
    print("ready", flush=True)
    sys.stdin.readline()
    others, idle = _threads(), _status("VmRSS")
    _reset_peak()
    start = time.perf_counter()
    call = load(args.folder, inputs, args.threads, args.budget)
    outputs = [np.array(value) for value in call()]
    took = [time.perf_counter() - start]

    def again() -> float:
        start = time.perf_counter()
        call()
        end = time.perf_counter()
        took.append(end - start)
        return end

    # Threads that only load have had their time by now.
    spent = {thread: _processor_time(thread) for thread in _threads() - others}
    again()
    _spread(args.threads, {thread: _processor_time(thread) - before for thread, before in spent.items()})
    end = again() + args.seconds
    while again() < end or len(took) < 3 + LEAST:
        pass
    memory = _status("VmHWM") - idle
    np.savez(args.outputs, *outputs)
    return {"inferences_ms": [1e3 * seconds for seconds in took], "memory_bytes": memory}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    tasks = parser.add_subparsers(dest="task", required=True)
    convert, run = (tasks.add_parser(name) for name in ("convert", "run"))
    convert.add_argument("model", type=Path)
    for task in (convert, run):
        task.add_argument("folder", type=Path)
        task.add_argument("inputs", type=Path)
        task.add_argument("--threads", type=int, default=1)
    convert.add_argument("--cached", action="store_true", help="also what the engine keeps to start sooner")
    run.add_argument("outputs", type=Path)
    run.add_argument("--seconds", type=float, default=1.0, help="how long inferences are timed, after the third")
    run.add_argument("--budget", type=int, help="bytes, for engines that take a budget")
    return parser


def _threads() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}


def _spread(threads: int, started: Mapping[int, int]) -> None:
    """Keep each thread that computes on a core of its own: this one, and those `started` that ran longest.

    Left alone, schedulers have been seen to keep two busy threads on one core for hundreds of milliseconds, with any
    engine, and few engines pin their threads by themselves.
    """
    cores = sorted(os.sched_getaffinity(0))[:threads]
    if threads == 1 or len(cores) < threads:
        return
    busiest = sorted(started, key=started.__getitem__, reverse=True)
    for thread, core in zip([0, *busiest], cores, strict=False):  # 0 is this thread
        os.sched_setaffinity(thread, {core})


def _processor_time(thread: int) -> int:
    """Nanoseconds; 0 if the thread has ended."""
    try:
        with open(f"/proc/self/task/{thread}/schedstat") as file:
            return int(file.read().split()[0])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _status(key: str) -> int:
    """Bytes of an entry of /proc/self/status."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(key + ":"))


def _reset_peak() -> None:
    """Forget the peak of the resident set so far: imports may have needed more than is left of them."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError as error:
        print(f"the peak includes importing: {os.strerror(error.errno or 0)}", file=sys.stderr)
