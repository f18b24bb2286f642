"""Ctrl-C, wherever it strikes: one line, exit code 130, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from . import calls


class Command:
    """`flexcomp ARGS…` as the leader of a process group, as a shell starts it, with a folder of its own for temporary files."""

    def __init__(
        self, folder: Path, *args: str | Path, program: tuple[str, ...] = ("-m", "flexcomp"), is_forked: bool = True
    ) -> None:
        self.scratch, self.outputs = folder / "tmp", folder / "outputs"
        self.scratch.mkdir()
        self.outputs.mkdir()
        environment = {**os.environ, "TMPDIR": str(self.scratch), "FLEXCOMP_CACHE": str(folder / "cache")}
        (out, stdout), (errors, stderr) = os.pipe(), os.pipe()
        options = {"stdout": stdout, "stderr": stderr, "env": environment, "start_new_session": True}
        command = [*program, *map(str, args)]
        self.process = calls.start(*command, **options) if is_forked else subprocess.Popen([sys.executable, *command], **options)
        for descriptor in (stdout, stderr):
            os.close(descriptor)
        self.output, self.errors = os.fdopen(out), os.fdopen(errors)
        self.seen: list[str] = []

    def wait_for(self, text: str) -> None:
        """Until a line on stderr holds the text."""
        for line in self.errors:
            self.seen.append(line.rstrip("\n"))
            if text in line:
                return
        raise AssertionError(f"{text!r} did not come: {self.seen}")

    def wait_until(self, condition) -> None:
        while not condition():
            assert self.process.poll() is None, self.errors.read()
            time.sleep(0.002)

    def wait_for_output(self, pattern: str) -> None:
        """Until a file of this pattern is there; folders that the command removes meanwhile are passed over."""

        def found() -> bool:
            try:
                return any(self.outputs.glob(pattern))
            except FileNotFoundError:
                return False

        self.wait_until(found)

    def interrupt(self, number: int = signal.SIGINT) -> None:
        os.killpg(self.process.pid, number)

    def end(self) -> tuple[int, list[str]]:
        """Exit code, and all lines on stderr."""
        code = self.process.wait(timeout=60)
        reader = threading.Thread(target=lambda: self.seen.extend(self.errors.read().splitlines()), daemon=True)
        reader.start()
        reader.join(60)
        assert not reader.is_alive(), "a process that it left has its stderr"
        return code, self.seen

    def assert_nothing_is_left(self) -> None:
        assert list(self.scratch.iterdir()) == [] and list(self.outputs.iterdir()) == []
        with pytest.raises(ProcessLookupError):  # no process of the group
            os.killpg(self.process.pid, 0)


def words(lines: list[str]) -> list[str]:
    """What is no progress."""
    return [line for line in lines if not line.startswith("tiny.onnx")]


@pytest.fixture
def build(model, tmp_path):
    def start(name: str = "tiny.so", *options: str, **how: bool) -> Command:
        return Command(tmp_path, "build", model, "-o", tmp_path / "outputs" / name, *options, **how)

    return start


@pytest.mark.parametrize("stage", ["import (", "passes (", "plan (", "compile ("])
def test_a_build_after_any_stage(build, stage):
    command = build("new/folder/tiny.so", is_forked=stage != "import (")  # one that has to import what it needs
    command.wait_for(stage)
    command.interrupt()
    code, lines = command.end()
    assert (code, words(lines)) == (130, ["interrupted"])
    command.assert_nothing_is_left()


def test_before_anything_is_imported(build):
    command = build(is_forked=False)
    command.wait_until(lambda: any(command.scratch.iterdir()))
    command.interrupt()
    assert command.end() == (130, ["interrupted"])
    command.assert_nothing_is_left()


def test_while_linking(build):
    command = build()
    command.wait_for_output(".flexcomp-*/*.weights")
    command.interrupt()
    code, lines = command.end()
    assert (code, words(lines)) == (130, ["interrupted"])
    command.assert_nothing_is_left()


def test_while_storage_is_measured(build):
    command = build("tiny.so", "--probe")
    command.wait_for_output(".flexcomp-*/probe")
    command.interrupt()
    code, lines = command.end()
    assert (code, words(lines)) == (130, ["interrupted"])
    command.assert_nothing_is_left()


def test_impatience_is_harmless(build):
    command = build()
    command.wait_for("passes (")
    for _ in range(20):
        if command.process.poll() is None:
            command.interrupt()
    code, lines = command.end()
    assert (code, words(lines)) == (130, ["interrupted"])
    command.assert_nothing_is_left()


@pytest.mark.parametrize(("number", "line"), [(signal.SIGTERM, "terminated"), (signal.SIGHUP, "the terminal was closed")])
def test_other_ends(build, number, line):
    command = build()
    command.wait_for("import (")
    command.interrupt(number)
    code, lines = command.end()
    assert (code, words(lines)) == (128 + number, [line])
    command.assert_nothing_is_left()


def test_the_signal_to_one_process_only(build):
    """As `kill -INT` sends it; on a terminal all processes of the group get it."""
    command = build()
    command.wait_for("import (")
    command.process.send_signal(signal.SIGINT)
    code, lines = command.end()
    assert (code, words(lines)) == (130, ["interrupted"])
    command.assert_nothing_is_left()


def test_a_run(library, tmp_path):
    out = tmp_path / "outputs" / "out"
    command = Command(tmp_path, "run", library, "--repeat", "100000000", "--output-dir", out)
    command.wait_until(lambda: "flexcomp-run" in processes(command.process.pid))
    command.interrupt()
    assert command.end() == (130, ["interrupted"])
    command.assert_nothing_is_left()


def test_tuning_says_what_it_keeps(model, tmp_path):
    database = tmp_path / "tuning.jsonl"
    command = Command(tmp_path, "tune", model, "-o", database, "--trials", "1000")
    command.wait_for("best")
    command.interrupt()
    code, lines = command.end()
    said = [line for line in lines if "interrupted" in line]
    assert code == 130 and len(said) == 1 and str(database) in said[0] and lines[-1] == said[0]
    assert database.read_text().endswith("\n")
    command.assert_nothing_is_left()


CRASH = """
import os, signal, subprocess, sys
from flexcomp.cli.supervise import supervise
from flexcomp.files import beside
supervise()
with beside(sys.argv[1]):
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    os.kill(os.getpid(), getattr(signal, sys.argv[2]))
"""


@pytest.mark.parametrize(("name", "line"), [("SIGSEGV", "crashed (SIGSEGV)"), ("SIGKILL", "memory ran out")])
def test_a_crash_is_one_line_and_leaves_nothing(tmp_path, name, line):
    command = Command(tmp_path, tmp_path / "outputs" / "new" / "x.so", name, program=("-c", CRASH), is_forked=False)
    code, lines = command.end()
    assert code == 128 + getattr(signal, name)
    assert len(lines) == 1 and lines[0].startswith("error: ") and line in lines[0]
    command.assert_nothing_is_left()


WARNINGS = """
import os
from flexcomp.cli.supervise import supervise
supervise()
os.write(2, b"[13:45:35] /workspace/src/topi/transform.cc:1: Warning: Fast mode segfaults\\n")
os.write(2, b"[13:45:35] /workspace/src/x.cc:1: Error: that is one\\nand its ")
os.write(2, b"second line")
os._exit(7)
"""


def test_only_warnings_of_tvm_are_left_out(tmp_path):
    command = Command(tmp_path, program=("-c", WARNINGS), is_forked=False)
    assert command.end() == (7, ["[13:45:35] /workspace/src/x.cc:1: Error: that is one", "and its second line"])


API = """
import os, signal, sys, threading, flexcomp
def progress(stage, done, total):
    if (stage, done) == (sys.argv[3], 0):
        threading.Timer(float(sys.argv[4]), os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    flexcomp.build(sys.argv[1], progress=progress).export_library(sys.argv[2])
    threading.Event().wait(60)
except KeyboardInterrupt:
    print("a keyboard interrupt")
"""


@pytest.mark.parametrize(
    ("stage", "seconds"), [("import", 0), ("passes", 0.02), ("passes", 0.05), ("plan", 0.1), ("compile", 0.05)]
)
def test_from_python_it_is_a_keyboard_interrupt(model, tmp_path, stage, seconds):
    output = tmp_path / "outputs" / "tiny.so"
    command = Command(tmp_path, model, output, stage, str(seconds), program=("-c", API))
    _, errors = command.end()
    assert command.output.read() == "a keyboard interrupt\n", errors
    assert list(command.outputs.iterdir()) == []


@pytest.mark.parametrize("fails", [False, True])
def test_it_passes_through_tvm(fails):
    """Also where cleaning up fails, as TVM's block builder does if it was interrupted while it began."""
    from tvm import IRModule

    from flexcomp.compiler import pipeline
    from flexcomp.passes.module_pass import module_pass

    @module_pass(opt_level=0)
    class Interrupted:
        def transform_module(self, mod, context):
            try:
                raise KeyboardInterrupt
            finally:
                assert not fails

    with pytest.raises(KeyboardInterrupt):
        pipeline.run(IRModule(), [Interrupted()], "test")


def processes(group: int) -> set[str]:
    names = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, rest = stat.read_text().split("(", 1)[1].rsplit(")", 1)
        except OSError:
            continue
        if int(rest.split()[2]) == group:
            names.add(name)
    return names
