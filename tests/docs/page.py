"""Runs the code blocks of a Markdown page in their order, as somebody who follows it would.

    python -m tests.docs.page PAGE FOLDER [TEXT=REPLACEMENT ...]

A `sh` block is one call of bash and a `python` block continues those before it; all of them run in FOLDER. A block marked
`sh background` is a server: it starts, and the next block begins when its port answers. A block marked `sh install` changes
the environment and does not run here: continuous integration installs the package (.ci/run). A block marked `c NAME` or
`python NAME` is a file of that name. Other languages are outputs and listings.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

RUN = ("python", "sh", "sh background", "sh install")
SHOWN = ("text", "json", "c", "yaml")
_FILE = re.compile(r"(?:c (?=\w+\.[ch]$)|python (?=\w+\.py$))([\w.]+)")
FORKED = Path(__file__).parent / "forked"  # `flexcomp` that needs not import what it needs; servers take the real one
START_S = 60.0  # for a server, on a busy machine


@dataclass(frozen=True)
class Block:
    """A fenced block: its language with what follows it, its first line in the page, its text."""

    kind: str
    line: int
    text: str


def blocks(page: str) -> list[Block]:
    """The fenced blocks of `page`. Raises ValueError for code that would run nowhere: indented, or of another language."""
    found = []
    for token in MarkdownIt().parse(page):
        if token.type == "code_block":
            raise ValueError(f"line {token.map[0] + 1}: indented code; fence it and name its language")
        if token.type == "fence":
            kind = " ".join(token.info.split())
            if kind not in RUN + SHOWN and not _FILE.fullmatch(kind):
                known = ", ".join(RUN + SHOWN)
                raise ValueError(f"line {token.map[0] + 1}: a block of {kind!r}; there are {known}, c and python NAME")
            found.append(Block(kind, token.map[0] + 1, token.content))
    return found


def run(page: Path, folder: Path, replacements: dict[str, str]) -> None:
    """Run `page` in `folder`, each text of `replacements` replaced. Raises CalledProcessError, or what a Python block raises."""
    servers: list[subprocess.Popen] = []
    names: dict = {"__name__": "__main__"}
    os.chdir(folder)
    sys.path.insert(0, str(folder))  # as for Python that is started there
    try:
        for block in blocks(page.read_text()):
            text = block.text
            for old, new in replacements.items():
                text = text.replace(old, new)
            print(f"--- {page.name}:{block.line} ({block.kind})\n{text}", flush=True)
            if file := _FILE.fullmatch(block.kind):
                Path(file[1]).write_text(text)
            elif block.kind == "python":
                exec(compile("\n" * block.line + text, str(page), "exec"), names)
            elif block.kind == "sh":
                path = os.pathsep.join([str(FORKED), os.environ["PATH"]])
                subprocess.run(["bash", "-euo", "pipefail", "-c", text], check=True, env=os.environ | {"PATH": path})
            elif block.kind == "sh background":
                servers.append(subprocess.Popen(["bash", "-euc", text], start_new_session=True))
                _await(servers[-1], *(int(port) for port in re.findall(r"--port (\d+)", text)))
    finally:
        for server in servers:
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGTERM)
            server.wait()


def _await(server: subprocess.Popen, port: int) -> None:
    """Return when `port` of this machine accepts a connection."""
    end = time.monotonic() + START_S
    while server.poll() is None and time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"nothing answers at port {port}")


if __name__ == "__main__":
    page, folder, *pairs = sys.argv[1:]
    run(Path(page).resolve(), Path(folder), dict(pair.split("=", 1) for pair in pairs))
