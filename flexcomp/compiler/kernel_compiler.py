"""All kernels of a network, compiled: each once, from the cache where they are there, else in as many processes as cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, as_completed

import tvm
from tvm import tirx

from flexcomp.cache import KernelCache
from flexcomp.device import CompileTarget

from .machine_code import compile_object, version
from .workers import Workers

# Characters of kernels as text, below which this process has compiled them before others have started.
_WORTH_PROCESSES = 8 << 20


class KernelCompiler:
    """Compiles kernels for a target, in the background from the moment they are known.

    `cache` is None where nothing is to be kept or found. Used in a `with`, at whose end no process is left.
    """

    def __init__(self, target: CompileTarget, cache: KernelCache | None) -> None:
        self._target, self._cache = target, cache
        self._found: dict[str, bytes] = {}  # by symbol
        self._pending: dict[str, Future[bytes]] = {}
        self._waiting: dict[str, str] = {}  # kernels as text
        self._workers: Workers | None = None
        self._has_kept = False

    def __enter__(self) -> KernelCompiler:
        return self

    def __exit__(self, *_: object) -> None:
        if self._workers is not None:
            self._workers.close()
        if self._cache is not None and self._has_kept:  # looking through the folder takes as long as a small build
            self._cache.trim()

    def begin(self, kernels: Mapping[str, tirx.PrimFunc]) -> None:
        """Start to compile kernels, by their symbols, that are needed later."""
        for symbol, kernel in kernels.items():
            if symbol in self._found or symbol in self._pending or symbol in self._waiting:
                continue
            code = self._cache.find(f"{symbol}.{version()}") if self._cache is not None else None
            if code is not None:
                self._found[symbol] = code
            else:
                self._waiting[symbol] = tvm.ir.save_json(kernel)
        if self._workers is not None or sum(map(len, self._waiting.values())) >= _WORTH_PROCESSES:
            self._hand_out()

    def finish(self, kernels: Mapping[str, tirx.PrimFunc], report: Callable[[int, int], None]) -> dict[str, bytes]:
        """The object files of these kernels, by their symbols."""
        self.begin(kernels)
        wanted = sorted(kernels)
        missing = [symbol for symbol in wanted if symbol not in self._found]
        done = 0
        report(done, len(missing))
        for symbol in [symbol for symbol in missing if symbol in self._waiting]:
            del self._waiting[symbol]
            self._keep(symbol, compile_object(symbol, kernels[symbol], self._target))
            done += 1
            report(done, len(missing))
        symbols = {self._pending[symbol]: symbol for symbol in missing if symbol in self._pending}
        for future in as_completed(symbols):
            self._keep(symbols[future], future.result())
            done += 1
            report(done, len(missing))
        return {symbol: self._found[symbol] for symbol in wanted}

    def _hand_out(self) -> None:
        """The largest first: no core has to wait long for the last one."""
        if self._workers is None:
            self._workers = Workers(len(os.sched_getaffinity(0)))
        for symbol in sorted(self._waiting, key=lambda symbol: (-len(self._waiting[symbol]), symbol)):
            self._pending[symbol] = self._workers.submit(symbol, self._waiting.pop(symbol), str(self._target))

    def _keep(self, symbol: str, code: bytes) -> None:
        self._found[symbol] = code
        self._pending.pop(symbol, None)
        if self._cache is not None:
            self._cache.keep(f"{symbol}.{version()}", code)
            self._has_kept = True
