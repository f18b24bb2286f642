"""All kernels of a network, compiled: each once, from the cache if there, else in as many processes as cores.

Kernels that call instructions of one architecture are never compiled in the build's own process: where the target lacks one, LLVM
ends the process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from tvm import tirx

from flexcomp.cache import KernelCache
from flexcomp.device import CompileTarget
from flexcomp.network import BandKernel

from . import device_code
from .code import Kernel
from .machine_code import calls_instructions, compile_object, extent, version, write_object
from .nvcc import Nvcc
from .workers import Workers

# Statements of kernels, below which this process has compiled them about when others would have.
_WORTH_PROCESSES = 500


class KernelCompiler:
    """Compiles kernels, in the background as soon as they are known.

    `cache` is None where nothing is to be kept or found. `toolkit` makes machine code for GPUs, by default the nvcc that
    `require` finds. Used in a `with`, at whose end no process is left.
    """

    def __init__(self, cache: KernelCache | None, toolkit: device_code.Toolkit | None = None) -> None:
        self._cache, self._toolkit = cache, toolkit
        self._found: dict[str, bytes] = {}  # by symbol
        self._pending: set[str] = set()
        self._waiting: dict[str, tuple[tirx.PrimFunc, CompileTarget, int]] = {}  # with their extents
        self._workers: list[Workers] = []
        self._has_kept = False

    def __enter__(self) -> KernelCompiler:
        return self

    def __exit__(self, *_: object) -> None:
        for workers in self._workers:
            workers.close()
        self._workers.clear()
        self._pending.clear()
        if self._cache is not None and self._has_kept:
            self._cache.trim()
            self._has_kept = False

    def require(self, target: CompileTarget) -> None:
        """Raise TargetError if the compiler for a GPU is missing."""
        if target.gpu:
            self._toolkit = self._toolkit or Nvcc.found()
            self._toolkit.require(target.gpu)

    def begin(self, kernels: Mapping[str, Kernel], target: CompileTarget) -> None:
        """Start to compile kernels, by their symbols, that are needed later."""
        makers = self._makers(target)
        for symbol, kernel in kernels.items():
            if symbol in self._found or symbol in self._pending or symbol in self._waiting:
                continue
            code = self._cache.find(f"{symbol}.{makers}") if self._cache is not None else None
            if code is not None:
                self._found[symbol] = code
            else:
                made = kernel.code if isinstance(kernel, BandKernel) else kernel
                self._waiting[symbol] = made, target, extent(made)
        if target.gpu or sum(size for _, _, size in self._waiting.values()) >= _WORTH_PROCESSES:
            self._hand_out(self._waiting, len(os.sched_getaffinity(0)))

    def finish(
        self, kernels: Mapping[str, Kernel], target: CompileTarget, report: Callable[[int, int], None]
    ) -> dict[str, bytes]:
        """The object files of these kernels, by their symbols."""
        self.begin(kernels, target)
        makers = self._makers(target)
        wanted = sorted(kernels)
        missing = [symbol for symbol in wanted if symbol not in self._found]
        done = 0
        report(done, len(missing))
        self._hand_out([symbol for symbol, (kernel, *_) in self._waiting.items() if calls_instructions(kernel)], 1)
        for symbol in [symbol for symbol in missing if symbol in self._waiting]:
            kernel, target, _ = self._waiting.pop(symbol)
            self._keep(symbol, compile_object(symbol, kernel, target), makers)
            done += 1
            report(done, len(missing))
        for workers in self._workers:
            for symbol, code in workers.results():
                self._keep(symbol, code, makers)
                done += symbol in kernels
                report(done, len(missing))
        return {symbol: self._found[symbol] for symbol in wanted}

    def _hand_out(self, symbols: Iterable[str], processes: int) -> None:
        """The largest first: no core has to wait long for the last one."""
        order = sorted(symbols, key=lambda symbol: (-self._waiting[symbol][2], symbol))
        jobs = {symbol: partial(self._write, symbol, *self._waiting.pop(symbol)[:2]) for symbol in order}
        if jobs:
            self._workers.append(Workers(jobs, processes))
            self._pending.update(jobs)

    def _write(self, symbol: str, kernel: tirx.PrimFunc, target: CompileTarget, path: Path) -> None:
        if target.gpu:
            device_code.write_device_object(symbol, kernel, target, self._toolkit, path)
        else:
            write_object(symbol, kernel, target, path)

    def _makers(self, target: CompileTarget) -> str:
        """The key that distinguishes machine code of the same kernel for the same target."""
        return device_code.version(self._toolkit.version()) if target.gpu else version()

    def _keep(self, symbol: str, code: bytes, makers: str) -> None:
        self._found[symbol] = code
        self._pending.discard(symbol)
        if self._cache is not None:
            self._cache.keep(f"{symbol}.{makers}", code)
            self._has_kept = True
