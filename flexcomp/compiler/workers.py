"""Processes that compile kernels, forked from the build, so that the kernels are there already.

Writing kernels down for others and reading them again took a quarter of a build, and every process would import TVM first. A
forked process must not touch locks that other threads held at that moment: TVM and LLVM lock only within the compiling of
a kernel, which never runs in another thread of ours (`machine_code.COMPILING`).
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import signal
import struct
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from flexcomp.errors import CompilerError

from .machine_code import COMPILING

_JOB = struct.Struct("<I")  # its number; written and read in one go, so that no process sees a part
_ANSWER = struct.Struct("<I?")  # and whether there is an object
_FATAL = "LLVM ERROR"  # begins what LLVM says before it ends a process
_SET_PDEATHSIG = 1  # an option of prctl


class Workers:
    """So many processes that together do `jobs` in order, each job called with a path for its result.

    They begin at once, and end by themselves; `close` ends them at any moment.
    """

    def __init__(self, jobs: Mapping[str, Callable[[Path], None]], count: int) -> None:
        self._names = tuple(jobs)
        # Of the processes and their children: a process may be ended at any moment, and its children die a moment later.
        self._scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._processes: list[int] = []
        # Nobody else forks meanwhile: a process that had these ends, too, would keep them open.
        with COMPILING:
            self._answers, answering = os.pipe()
            taking, giving = os.pipe()
            try:
                for _ in range(min(count, len(jobs))):
                    work = partial(_work, tuple(jobs.values()), taking, answering, self._path)
                    self._processes.append(_fork(work, self._said, close=(giving, self._answers)))
                for number in range(len(jobs)):
                    os.write(giving, _JOB.pack(number))
            except OSError as error:
                self.close()
                raise CompilerError(f"the system refuses processes that compile kernels: {error.strerror}") from error
            finally:
                for descriptor in (answering, taking, giving):
                    os.close(descriptor)
        self._waited_for = set(self._names)

    @property
    def pending(self) -> frozenset[str]:
        """The jobs whose results were not handed out."""
        return frozenset(self._waited_for)

    def results(self) -> Iterator[tuple[str, bytes]]:
        """Each job and its result, in the order of completion. CompilerError if a process is ended before."""
        while self._waited_for:
            answer = os.read(self._answers, _ANSWER.size)
            if not answer:
                raise CompilerError(self._why_ended())
            number, is_done = _ANSWER.unpack(answer)
            path = self._path(number)
            if not is_done:
                raise RuntimeError(_text_in(path) or _unknown(path))
            result = path.read_bytes()
            path.unlink()
            self._waited_for.discard(self._names[number])
            yield self._names[number], result

    def close(self) -> None:
        """End all processes and their children, at any moment."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
        for process in self._processes:
            with suppress(ChildProcessError):  # somebody waits for all children of this process
                os.waitpid(process, 0)
        os.close(self._answers)
        self._scratch.cleanup()

    def _why_ended(self) -> str:
        """What is known of processes that ended before their jobs were done."""
        said = [line for process in self._processes for line in _text_in(self._said(process)).splitlines()]
        if error := next((line for line in said if line.startswith(_FATAL)), ""):
            return (
                f"LLVM ended a process that compiled kernels: {error}. The target may lack an instruction that a "
                "kernel needs: name another -mcpu, or leave out options of -mattr and arithmetic"
            )
        return (
            "a process that compiled kernels was ended, most likely because memory ran out: end other programs, or let the build "
            "have fewer cores (taskset)"
        )

    def _said(self, process: int) -> Path:
        """What a process, or LLVM in it, wrote for users to see."""
        return Path(self._scratch.name) / f"{process}.txt"

    def _path(self, number: int) -> Path:
        return Path(self._scratch.name) / f"{number}.o"


def _text_in(path: Path) -> str:
    """What a process wrote; empty if it could not."""
    with suppress(OSError):
        return path.read_text(errors="replace")
    return ""


def _unknown(path: Path) -> str:
    return f"a kernel could not be compiled, nor could it be written why: is there room in {path.parent.parent}?"


def _fork(work: Callable[[], None], said: Callable[[int], Path], close: Sequence[int]) -> int:
    """A process that does `work` without these descriptors, and nothing afterwards. Ends with this process.

    What it writes to its standard error is in the file `said` of its number.

    Called while COMPILING is held, which is free in the process.
    """
    parent = os.getpid()
    process = os.fork()
    if process:
        with suppress(OSError):  # the child has done so itself
            os.setpgid(process, process)
        return process
    code = 1
    try:
        COMPILING.release()
        os.setpgid(0, 0)  # its compilers end with the process
        gc.disable()  # collecting would write to all memory, and so copy that
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the build is interrupted, and ends this process
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        faulthandler.disable()  # of the parent's standard error
        ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            return os._exit(code)
        silent = os.open(os.devnull, os.O_RDWR)
        for standard in range(2):
            os.dup2(silent, standard)
        os.dup2(_open(said(os.getpid()), silent), 2)
        for descriptor in close:
            os.close(descriptor)
        work()
        code = 0
    finally:
        os._exit(code)  # no handler of the parent


def _open(path: Path, otherwise: int) -> int:
    """A file to write to; `otherwise` where the disk is full."""
    with suppress(OSError):
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    return otherwise


def _work(jobs: Sequence[Callable[[Path], None]], taking: int, answering: int, path: Callable[[int], Path]) -> None:
    tempfile.tempdir = str(path(0).parent)
    while job := os.read(taking, _JOB.size):
        (number,) = _JOB.unpack(job)
        try:
            jobs[number](path(number))
            is_done = True
        except Exception:  # the building process raises any error
            with suppress(OSError):  # the disk may be full
                path(number).write_text(traceback.format_exc())
            is_done = False
        os.write(answering, _ANSWER.pack(number, is_done))
