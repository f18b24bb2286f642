"""Processes that compile kernels, beside the one that builds: forked from it, so that they have the kernels already.

Writing kernels down for others and reading them again took a quarter of a build, and every process would import TVM first. What a
forked process may not touch is what other threads held at that moment: TVM and LLVM lock nothing but what compiling a
kernel takes, and that is never going on in another thread of ours (`machine_code.COMPILING`).
"""

from __future__ import annotations

import ctypes
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

_JOB = struct.Struct("<I")  # which one it is; written and read in one go, so that no process sees a part of it
_ANSWER = struct.Struct("<I?")  # and whether an object came of it
_SET_PDEATHSIG = 1  # an option of prctl


class Workers:
    """So many processes that together do `jobs` in their order, each by calling it with a path to write its result to.

    They begin at once, and end by themselves; `close` ends them wherever they are.
    """

    def __init__(self, jobs: Mapping[str, Callable[[Path], None]], count: int) -> None:
        self._names = tuple(jobs)
        # Theirs, and of what they start: they may be ended at any moment, and it dies a moment later.
        self._scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._processes: list[int] = []
        # Nobody else forks meanwhile: a process that had these ends, too, would keep them open.
        with COMPILING:
            self._answers, answering = os.pipe()
            taking, giving = os.pipe()
            try:
                for _ in range(min(count, len(jobs))):
                    work = partial(_work, tuple(jobs.values()), taking, answering, self._path)
                    self._processes.append(_fork(work, close=(giving, self._answers)))
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
        """Each job and what it wrote, as they are done. CompilerError if a process is ended before."""
        while self._waited_for:
            answer = os.read(self._answers, _ANSWER.size)
            if not answer:
                raise CompilerError(
                    "a process that compiled kernels was ended, most likely because memory ran out: end other programs, or "
                    "let the build have fewer cores (taskset)"
                )
            number, is_done = _ANSWER.unpack(answer)
            path = self._path(number)
            if not is_done:
                raise RuntimeError(_text_in(path))
            result = path.read_bytes()
            path.unlink()
            self._waited_for.discard(self._names[number])
            yield self._names[number], result

    def close(self) -> None:
        """End all processes and what they started, whatever they are doing."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
        for process in self._processes:
            with suppress(ChildProcessError):  # somebody waits for all children of this process
                os.waitpid(process, 0)
        os.close(self._answers)
        self._scratch.cleanup()

    def _path(self, number: int) -> Path:
        return Path(self._scratch.name) / f"{number}.o"


def _text_in(path: Path) -> str:
    """What went wrong with a job."""
    with suppress(OSError):
        if text := path.read_text():
            return text
    return f"a kernel could not be compiled, nor could it be written why: is there room in {path.parent.parent}?"


def _fork(work: Callable[[], None], close: Sequence[int]) -> int:
    """A process that does `work` without these descriptors, and nothing after it. It ends with this one.

    Called while COMPILING is held, which is free in the process.
    """
    parent = os.getpid()
    process = os.fork()
    if process:
        with suppress(OSError):  # it has done so itself
            os.setpgid(process, process)
        return process
    code = 1
    try:
        COMPILING.release()
        os.setpgid(0, 0)  # compilers that it starts are ended with it
        gc.disable()  # it would write to all that there is, and so copy it
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever builds is interrupted, and ends this process
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            return os._exit(code)
        silent = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(silent, standard)
        for descriptor in close:
            os.close(descriptor)
        work()
        code = 0
    finally:
        os._exit(code)  # no handler of the process that it was


def _work(jobs: Sequence[Callable[[Path], None]], taking: int, answering: int, path: Callable[[int], Path]) -> None:
    tempfile.tempdir = str(path(0).parent)
    while job := os.read(taking, _JOB.size):
        (number,) = _JOB.unpack(job)
        try:
            jobs[number](path(number))
            is_done = True
        except Exception:  # whatever it is, the process that builds raises it
            with suppress(OSError):  # the disk may be full
                path(number).write_text(traceback.format_exc())
            is_done = False
        os.write(answering, _ANSWER.pack(number, is_done))
