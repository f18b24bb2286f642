"""Ctrl-C ends every command at once, without leftovers, but for two: a server finishes its requests in progress, a chat goes on.

A build spends minutes inside single calls of C++, where no Python handler runs, and an exception in a callback
arrives as an error of TVM's. So the command runs in a process of its own, which ignores the signal, and this one waits
for the end. Interrupted, the parent kills the command with all its processes, removes incomplete files, says so in
one line, and ends with 130. Temporary files lie in a folder of this process; files that have to lie next to
outputs are in a journal (flexcomp/files.py).

C++ output on stderr comes through here as well, for TVM's warnings have no switch. Python's own stderr, with
the progress on a terminal, does not.
"""

from __future__ import annotations

import ctypes
import os
import re
import select
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from flexcomp.files import keep_journal, remove_unfinished

_ENDING = {
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "terminated",
    signal.SIGHUP: "the terminal was closed",
}
_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36  # options of prctl
_JOURNAL, _LAST_WORDS, _PASSED_ON, _INTERRUPTIBLE = "journal", "last-words", "passed-on", "interruptible"
INTERRUPTED = signal.SIGUSR1  # in the command's process, in the place of an interrupt that it takes itself
# LOG(WARNING) of TVM: "[13:45:35] /workspace/src/topi/transform.cc:1: Warning: …".
_WARNING = re.compile(rb"\[\d\d:\d\d:\d\d\] \S+:\d+: (Warning|Debug): ")
_scratch: Path | None = None  # of the command, in its process


def supervise() -> None:
    """Return in a process that runs the command; this one waits, and ends with the same status."""
    for descriptor in range(3):  # a closed one would be taken by the next file that is opened
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    # A signal is a byte in this pipe; handlers themselves do nothing.
    woken, wake = os.pipe()
    errors, foreign_stderr = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    ending = [number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN]  # as under nohup
    for number in (*ending, signal.SIGCHLD):
        signal.signal(number, lambda number, frame: None)
    try:  # only now: from here on there is something to clean up
        scratch = Path(tempfile.mkdtemp(prefix="flexcomp-"))
    except OSError as error:
        print(f"error: no folder for temporary files: {error.strerror}; name one in TMPDIR", file=sys.stderr)
        sys.exit(1)
    _prctl(_SET_CHILD_SUBREAPER, 1)
    watcher = os.getpid()
    child = os.fork()
    if child == 0:
        for number in (*ending, signal.SIGCHLD):
            signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        for descriptor in (woken, wake, errors):
            os.close(descriptor)
        _prctl(_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != watcher:
            os._exit(1)
        _begin(scratch, foreign_stderr)
        return
    os.close(foreign_stderr)
    try:
        code = _watch(child, woken, errors, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    os._exit(code)


def last_words(text: str) -> None:
    """Set the line printed instead of "interrupted" if this command is interrupted from now on."""
    if _scratch is not None:
        (_scratch / _LAST_WORDS).write_text(text, encoding="utf-8")


def pass_signals_on() -> None:
    """From now on an interrupt sends SIGTERM, and the command ends in its own time; a second signal kills the command."""
    if _scratch is not None:
        (_scratch / _PASSED_ON).touch()


def pass_interrupts_on() -> None:
    """From now on an interrupt is INTERRUPTED in the command's process, which has a handler, and goes on."""
    if _scratch is not None:
        (_scratch / _INTERRUPTIBLE).touch()


def _begin(scratch: Path, foreign_stderr: int) -> None:
    global _scratch
    _scratch = scratch
    keep_journal(scratch / _JOURNAL)
    os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)  # the compiler's temporary files too
    encoding = sys.stderr.encoding if sys.stderr else "utf-8"
    sys.stderr = sys.__stderr__ = os.fdopen(os.dup(2), "w", 1, encoding=encoding, errors="backslashreplace")
    os.dup2(foreign_stderr, 2)
    os.close(foreign_stderr)


def _watch(child: int, woken: int, errors: int, scratch: Path) -> int:
    """The exit code, when the command has ended or was ended; none of its processes is left then."""
    filtered = _Filter()
    sources = [woken, errors]
    passed = None  # the signal that the command was told of
    while True:
        ready, _, _ = select.select(sources, [], [])
        if errors in ready and not filtered.pass_on(errors):
            sources.remove(errors)
        signals = _signals(woken) if woken in ready else b""
        wanted = next((number for number in _ENDING if number in signals), None)
        if wanted == signal.SIGINT and (scratch / _INTERRUPTIBLE).exists():
            os.kill(child, INTERRUPTED)
        elif wanted is not None and passed is None and (scratch / _PASSED_ON).exists():
            os.kill(child, signal.SIGTERM)
            passed = wanted
        elif wanted is not None:
            _kill(child)
            remove_unfinished(scratch / _JOURNAL)
            words = scratch / _LAST_WORDS
            _say(words.read_text(encoding="utf-8") if words.exists() and wanted == signal.SIGINT else _ENDING[wanted])
            return 128 + wanted
        if signal.SIGCHLD in signals:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                _kill(None)
                os.set_blocking(errors, False)
                with suppress(BlockingIOError):
                    while errors in sources and filtered.pass_on(errors):
                        pass
                code = _code(os.waitstatus_to_exitcode(status), scratch)
                return 128 + passed if code == 0 and passed not in (None, signal.SIGTERM) else code


def _code(code: int, scratch: Path) -> int:
    """The exit code of a command that ended by itself, or crashed."""
    if code >= 0:
        return code
    remove_unfinished(scratch / _JOURNAL)
    if code == -signal.SIGKILL:
        _say("error: the command was killed, most likely because memory ran out")
    elif code != -signal.SIGPIPE:
        _say(f"error: the command crashed ({signal.Signals(-code).name}); this is a fault of flexcomp or of TVM")
    return 128 - code


def _kill(child: int | None) -> None:
    """End the command and its processes: orphans become children of this process, which is a subreaper."""
    if child is not None:
        os.kill(child, signal.SIGKILL)
    with suppress(ChildProcessError):
        while True:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):  # there are others
                import psutil

                for process in psutil.Process().children(recursive=True):
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
                os.waitpid(-1, 0)


def _signals(woken: int) -> bytes:
    try:
        return os.read(woken, 4096)
    except BlockingIOError:
        return b""


def _say(line: str) -> None:
    """One line on stderr; on a terminal, below the progress."""
    with suppress(OSError):
        # Whoever drew a bar was killed: its line is cleared, and the cursor shown.
        os.write(2, (b"\r\x1b[2K\x1b[?25h" if os.isatty(2) else b"") + line.encode(errors="replace") + b"\n")


class _Filter:
    """Passes lines on to stderr, all but TVM's warnings."""

    def __init__(self) -> None:
        self._rest = b""

    def pass_on(self, source: int) -> bool:
        """Read the available bytes; False at the end."""
        data = os.read(source, 65536)
        *lines, self._rest = (self._rest + data).splitlines(keepends=True) + [b""]
        if lines and data and not lines[-1].endswith(b"\n"):
            self._rest = lines.pop()
        with suppress(OSError):
            for line in lines:
                if not _WARNING.match(line):
                    os.write(2, line)
        return bool(data)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
