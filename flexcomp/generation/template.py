"""Chat templates in a process of their own, with bounds of time and memory: a template is a program, and may not end.

The process imports Jinja alone, is started with the first conversation, and ends when nobody has needed it for a while.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from flexcomp.errors import InputError

SECONDS = 2.0  # of computing, for a conversation
_WAIT_S = 60.0  # for a process that has no processor
_MOST_ANSWER = 1 << 26  # bytes


class ChatTemplate:
    """A template. Conversations are formed one at a time."""

    def __init__(self, source: str, seconds: float = SECONDS) -> None:
        """Raises InputError without jinja2."""
        if (found := importlib.util.find_spec("jinja2")) is None or found.origin is None:
            raise InputError("chat templates need the package jinja2: pip install 'flexcomp[text]'")
        if not sys.executable:
            raise InputError("chat templates need a Python interpreter for a process of their own: sys.executable is empty")
        self._source, self._seconds = source, seconds
        self._packages = str(Path(found.origin).parents[1])
        self._process: subprocess.Popen[bytes] | None = None
        self._turn = threading.Lock()

    def conversation(self, messages: Sequence[Mapping[str, str]], names: Mapping[str, str]) -> str:
        """The prompt for messages; `names` are of special tokens. Raises InputError, also for a template that does not end."""
        asked = json.dumps({"messages": [dict(one) for one in messages], "names": dict(names)}).encode()
        with self._turn:
            answer = self._answer(asked)
        if answer is None:
            raise InputError(f"takes more than {self._seconds:g} s of computing, or ends its process: correct it")
        found = json.loads(answer)
        if "error" in found:
            raise InputError(found["error"])
        return found["text"]

    def close(self) -> None:
        """End the process."""
        with self._turn:
            self._end()

    def _answer(self, asked: bytes) -> bytes | None:
        """None if the process ended over it."""
        for is_new in (self._process is None, True):
            if self._process is None:
                self._process = self._started()
            answer = self._exchanged(self._process, asked)
            if answer is None:
                self._end()
            if answer is not None or is_new:  # one that had been waiting may have ended itself in between
                return answer
        return None

    def _started(self) -> subprocess.Popen[bytes]:
        program = Path(__file__).with_name("template_process.py")
        command = [sys.executable, "-I", "-S", str(program), self._packages, str(self._seconds)]
        environment = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PATH") if name in os.environ}
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
            start_new_session=True,
        )  # fmt: skip
        self._send(process, self._source.encode())
        return process

    def _exchanged(self, process: subprocess.Popen[bytes], asked: bytes) -> bytes | None:
        late = threading.Timer(_WAIT_S, process.kill)
        late.start()
        try:
            self._send(process, asked)
            head = process.stdout.read(8)
            nbytes = int.from_bytes(head, "little")
            if len(head) < 8 or nbytes > _MOST_ANSWER:
                return None
            answer = process.stdout.read(nbytes)
            return answer if len(answer) == nbytes else None
        except OSError:  # it has ended
            return None
        finally:
            late.cancel()

    @staticmethod
    def _send(process: subprocess.Popen[bytes], text: bytes) -> None:
        with suppress(BrokenPipeError):  # reading tells
            process.stdin.write(len(text).to_bytes(8, "little") + text)
            process.stdin.flush()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with suppress(OSError):
                process.stdin.close()
            process.stdout.close()
            process.wait()

    def __del__(self) -> None:
        if getattr(self, "_process", None) is not None:
            self._end()
