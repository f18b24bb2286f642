"""Processes that compile kernels, beside the one that builds."""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor

from flexcomp.errors import CompilerError

COMMAND = (sys.executable, "-m", "flexcomp.compiler.worker")


class Workers:
    """So many processes. Each is spoken to by one thread at a time; only `close` ends them."""

    def __init__(self, count: int) -> None:
        self._scratch = tempfile.TemporaryDirectory()  # theirs: they may be ended at any moment
        # Where this process finds its modules, so do they.
        modules = os.pathsep.join(path for path in sys.path if path)
        environment = os.environ | {"PYTHONPATH": modules, "TMPDIR": self._scratch.name}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._processes = [subprocess.Popen(COMMAND, env=environment, **pipes) for _ in range(count)]
        self._idle: queue.SimpleQueue[subprocess.Popen] = queue.SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(count)

    def submit(self, symbol: str, kernel: str, target: str) -> Future[bytes]:
        """An object file that defines `symbol`; `kernel` is TVM's JSON. The future raises CompilerError if a process is ended."""
        return self._threads.submit(self._compile, (symbol, kernel, target))

    def close(self) -> None:
        """End all processes, whatever they are doing."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()
        self._threads.shutdown()  # nothing answers any more: none of them waits
        for process in self._processes:
            process.communicate()
        self._scratch.cleanup()

    def _compile(self, job: tuple[str, str, str]) -> bytes:
        process = self._idle.get()
        try:
            pickle.dump(job, process.stdin)
            process.stdin.flush()
            code, wrong = pickle.load(process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            raise CompilerError(
                "a process that compiled kernels was ended, most likely because memory ran out: end other programs, or let "
                "the build have fewer cores (taskset)"
            ) from None
        finally:
            self._idle.put(process)
        if wrong is not None:
            raise RuntimeError(wrong)
        return code
