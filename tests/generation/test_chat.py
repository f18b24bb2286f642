"""A chat in a terminal: Ctrl-C stops the reply and keeps the chat, Ctrl-D ends the chat."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import select
import shutil
import signal
import sys
import time

import pytest

import flexcomp
from flexcomp.cli.chat import converse
from flexcomp.generation import Text
from tests.cli import calls

CTRL_C, CTRL_D = b"\x03", b"\x04"
ENDED = rb"ended by ([\w-]+)\r\n> "


class Terminal:
    """`flexcomp ARGS…` with a terminal of its own."""

    def __init__(self, *args: object) -> None:
        self.seen = b""
        self.pid, self.terminal = pty.fork()
        if not self.pid:
            os.execv(sys.executable, [sys.executable, "-m", "flexcomp", *map(str, args)])

    def until(self, pattern: bytes) -> re.Match:
        """The first match in what the terminal shows after the match before."""
        deadline = time.monotonic() + 60
        while (found := re.search(pattern, self.seen)) is None:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.terminal], [], [], 0.2)[0]:
                self.seen += os.read(self.terminal, 4096)
        self.seen = self.seen[found.end() :]
        return found

    def type(self, text: bytes) -> None:
        os.write(self.terminal, text)

    def end(self) -> int:
        with contextlib.suppress(OSError):  # the terminal has no other end any more
            while os.read(self.terminal, 4096):
                pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.close(self.terminal)


def test_a_chat_goes_on_after_an_interrupt(library):
    with Terminal("generate", library, "--chat", "--threads", 1) as terminal:
        terminal.until(rb"> ")
        endings = set()
        for number in range(8):  # some replies end before they can be stopped
            terminal.type(b"the cat %d\n" % number)
            terminal.until(rb"the cat %d\r\n[^>^]" % number)  # the reply has begun: before, Ctrl-C empties the line
            terminal.type(CTRL_C)
            ended = terminal.until(rb"ended by ([\w-]+)\r\n")[1]
            terminal.until(rb"> ")
            endings.add(ended)
            if ended != b"Ctrl-C":  # which may arrive later, and must not meet the next reply
                time.sleep(0.5)
        assert b"Ctrl-C" in endings
        terminal.type(b"half")
        terminal.type(CTRL_C)
        terminal.until(rb"Ctrl-D ends the chat\)\r\n> ")
        terminal.type(CTRL_D)
        assert terminal.end() == 0


@pytest.mark.parametrize(
    "args, reason",
    [([], "give --prompt, or --chat"), (["--prompt", "x", "--system", "y"], "--system is for a --chat")],
)
def test_options_that_miss_others(library, args, reason):
    done = calls.call("generate", library, *args)
    assert done.returncode == 2 and reason in done.stderr


def test_a_chat_without_a_template_is_refused_before_a_message(library, tmp_path):
    shutil.copy(library.parent / "tokenizer.json", tmp_path)
    done = calls.call("generate", library, "--chat", "--tokenizer", tmp_path)
    assert done.returncode == 2 and "has no chat template (chat_template.jinja)" in done.stderr


def test_a_message_without_room_is_no_part_of_the_chat(library, monkeypatch, capsys):
    lines = f"the cat\n{'x' * 3000}\n\nok\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    asked = []
    with flexcomp.load(library, threads=1) as session:
        text = Text(session, library.parent)

        def reply_to(messages):
            asked.append([one["content"] for one in messages if one["role"] != "assistant"])
            return text.chat(messages, 3)

        converse(reply_to, text.generator, "be kind", None)
    assert asked == [["be kind", "the cat"], ["be kind", "the cat", "x" * 3000], ["be kind", "the cat", "ok"]]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3 and all("first after" in said[i] for i in (0, 2))
    assert said[1].startswith("error: the prompt has") and "2048 places" in said[1]
