"""The peak rates of this machine: fused multiply-adds from registers, and reading memory."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from flexcomp.device import CompileTarget
from flexcomp.schedules.tiles.emit import vector, zero

_HUGE_PAGE = 2 << 20
_CHAINS = 12  # independent sums: more than latency times units of any core, fewer than its registers
_READS = 8  # vectors read in a row: a power of two keeps whole lines and pages together
_TRIPS = 1 << 18  # multiply-adds of one chain in one call
_READ_NBYTES = 256 << 20  # beyond every cache
_REPEATS = 15


@dataclass(frozen=True)
class Rates:
    """Rates of all threads together."""

    flops_per_s: float
    read_bytes_per_s: float


@contextmanager
def pool(threads: int) -> Iterator[None]:
    """Let kernels called from this thread run on so many threads of TVM's pool, each on a core of its own.

    Left alone, schedulers have been seen to keep two busy threads on one core for hundreds of milliseconds. The first
    pool of a process decides how many threads later ones can have.
    """
    allowed = os.sched_getaffinity(0)
    cores = sorted(allowed)[:threads]
    configure = tvm_ffi.get_global_func("runtime.config_threadpool")
    if len(cores) < threads:
        configure(1, threads)  # the big cores, which are all there are
        yield
        return
    configure(-2, threads, [str(core) for core in cores])  # one core for each thread; the caller is the first
    try:
        os.sched_setaffinity(0, cores[:1])
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def measure_rates(target: CompileTarget, threads: int) -> Rates:
    """The best of several runs in the `pool` of so many threads."""
    lanes = target.vector_width
    sums = tvm_ffi.from_dlpack(aligned(threads * _CHAINS * lanes * 4).view(np.float32))
    operands = aligned(2 * lanes * 4).view(np.float32)
    operands[:lanes], operands[lanes:] = 0.999, 0.001
    compute = _compile(_multiply_adds(threads, lanes), target)
    seconds = _fastest(lambda: compute(tvm_ffi.from_dlpack(operands), sums))
    flops = 2.0 * threads * _CHAINS * lanes * _TRIPS

    data = aligned(_READ_NBYTES).view(np.float32)
    data.fill(1.0)  # untouched pages are all the same one
    read = _compile(_sums(threads, lanes), target)
    streamed = tvm_ffi.from_dlpack(data)
    return Rates(flops / seconds, _READ_NBYTES / _fastest(lambda: read(streamed, sums)))


def aligned(nbytes: int) -> np.ndarray:
    """Zeroed bytes at the start of a page, a huge one where there are many, as the runtime allocates its arena."""
    if nbytes < _HUGE_PAGE:
        return np.frombuffer(mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    area = mmap.mmap(-1, nbytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        area.madvise(mmap.MADV_HUGEPAGE)
    start = -np.frombuffer(area, np.uint8).ctypes.data % _HUGE_PAGE
    return np.frombuffer(area, np.uint8, nbytes, start)


def call_seconds(target: CompileTarget, tensors: int = 4, calls: int = 2000) -> float:
    """Cost of calling a kernel from Python: the time of one that does next to nothing."""
    function = _compile(_nothing(tensors), target)
    args = [tvm_ffi.from_dlpack(aligned(64).view(np.float32)) for _ in range(tensors)]
    times = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        function(*args)
        times.append(time.perf_counter_ns() - start)
    return float(np.median(times)) * 1e-9


def _compile(func: tirx.PrimFunc, target: CompileTarget) -> Callable:
    with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
        return tvm.tirx.build(tvm.IRModule({"main": func}), target=target.tvm_target)["main"]


def _fastest(call: Callable[[], object]) -> float:
    call()
    best = float("inf")
    for _ in range(_REPEATS):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def _multiply_adds(threads: int, lanes: int) -> tirx.PrimFunc:
    """acc = acc * a + b in every chain; nothing can be hoisted, nothing leaves the registers."""
    with IRBuilder() as builder:
        with T.prim_func():
            T.func_name("main")
            T.func_attr({"tirx.noalias": True})
            operands = T.arg("operands", T.buffer((2 * lanes,), "float32"))
            sums = T.arg("sums", T.buffer((threads * _CHAINS * lanes,), "float32"))
            with T.parallel(threads) as thread:
                chains = _chains(_CHAINS, lanes)
                with T.serial(_TRIPS):
                    for chain in chains:
                        old = chain[vector(0, lanes)]
                        new = old * operands[vector(0, lanes)] + operands[vector(lanes, lanes)]
                        T.buffer_store(chain, new, [vector(0, lanes)])
                _store(chains, sums, thread, lanes)
    return builder.get()


def _sums(threads: int, lanes: int) -> tirx.PrimFunc:
    """Sums of consecutive vectors; every thread has its own part of the data."""
    trips = _READ_NBYTES // 4 // (threads * _READS * lanes)
    with IRBuilder() as builder:
        with T.prim_func():
            T.func_name("main")
            T.func_attr({"tirx.noalias": True})
            data = T.arg("data", T.buffer((_READ_NBYTES // 4,), "float32"))
            sums = T.arg("sums", T.buffer((threads * _CHAINS * lanes,), "float32"))
            with T.parallel(threads) as thread:
                chains = _chains(_READS, lanes)
                with T.serial(trips) as i:
                    for number, chain in enumerate(chains):
                        at = vector(((thread * trips + i) * _READS + number) * lanes, lanes)
                        T.buffer_store(chain, chain[vector(0, lanes)] + data[at], [vector(0, lanes)])
                _store(chains, sums, thread, lanes)
    return builder.get()


def _nothing(tensors: int) -> tirx.PrimFunc:
    with IRBuilder() as builder:
        with T.prim_func():
            T.func_name("main")
            first, *_ = [T.arg(f"t{i}", T.buffer((16,), "float32")) for i in range(tensors)]
            T.buffer_store(first, tirx.const(0.0, "float32"), [0])
    return builder.get()


def _chains(count: int, lanes: int) -> list:
    chains = [T.alloc_buffer((lanes,), "float32", scope="global") for _ in range(count)]
    for chain in chains:
        T.buffer_store(chain, zero(lanes), [vector(0, lanes)])
    return chains


def _store(chains: list, sums, thread, lanes: int) -> None:
    for number, chain in enumerate(chains):
        T.buffer_store(sums, chain[vector(0, lanes)], [vector((thread * _CHAINS + number) * lanes, lanes)])
