"""Work in processes of their own: a crash or hang costs one trial and no more."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from concurrent.futures import Future

# A process keeps every library that was loaded.
_MOST_USES = 64


class Workers:
    """A pool of processes in which a function has `timeout_s` seconds."""

    def __init__(self, count: int, timeout_s: float) -> None:
        from tvm.support.popen_pool import PopenPoolExecutor

        self.timeout_s = timeout_s
        self._pool = PopenPoolExecutor(
            count, timeout_s, maximum_process_uses=_MOST_USES, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def submit(self, function: Callable, *args) -> Future:
        """Call a function that can be imported by name."""
        return self._pool.submit(function, *args)

    def close(self) -> None:
        """End all processes."""
        self._pool.shutdown(wait=True)


def outcome(future: Future, timeout_s: float) -> tuple[object | None, str | None]:
    """The result of a worker's function, or else one line about its failure."""
    try:
        return future.result(), None
    except TimeoutError:
        return None, f"no answer within {timeout_s:g} s"
    except ChildProcessError:
        return None, "the process crashed"
    except Exception as error:  # whatever a candidate can provoke, in a compiler or a device, is its own fault
        return None, one_line(error)


def one_line(error: BaseException) -> str:
    """An error as one line of at most 300 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"[:300]
