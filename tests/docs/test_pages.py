"""README and guides do what they say: every block of code runs, every link leads somewhere."""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path

import pytest

from tests.api import prefix
from tests.cli import calls
from tests.conftest import ROOT

from . import models
from .page import blocks

GUIDES = sorted((ROOT / "docs" / "guide").glob("*.md"))
RUNNING = [ROOT / "README.md", *GUIDES]
ALL = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("page", RUNNING, ids=lambda page: page.stem)
def test_every_block_of_code_runs(page, tmp_path):
    folder = tmp_path / "user"
    folder.mkdir()
    models.write(folder)
    board, server = free_port(), free_port()
    # This machine takes the place of the board, and its ports are free ones.
    replaced = [f"pi:9090=127.0.0.1:{board}", f"--port 9090=--port {board}", f"8080={server}", "raspberry-pi-5=native"]
    bin_folder, scripts = Path(sys.executable).parent, Path(__file__).parent / "bin"
    path = os.pathsep.join([str(scripts), str(bin_folder), os.environ["PATH"]])
    installed = prefix.environment(prefix.install(tmp_path / "prefix")) if page.stem == "embedding" else {}
    own = {"PATH": path, "PYTHONPATH": str(ROOT), "BOARD": str(tmp_path / "board"), "MPLBACKEND": "agg"}
    environment = os.environ | installed | own
    done = calls.run("-m", "tests.docs.page", page, folder, *replaced, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_a_page_has_no_code_that_runs_nowhere():
    assert [block.kind for block in blocks("```sh\nls\n```\n\n```python\nx = 1\n```\n")] == ["sh", "python"]
    with pytest.raises(ValueError, match="line 3: indented code"):
        blocks("Text\n\n    ls\n")
    with pytest.raises(ValueError, match="line 1: a block of 'bash'"):
        blocks("```bash\nls\n```\n")


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        name, _, heading = target.partition("#")
        other = (page.parent / name).resolve() if name else page
        assert other.exists(), f"{page.name} links to {name}, which does not exist"
        if heading:
            assert heading in headings(other), f"{page.name} links to {target}, a heading that does not exist"


def headings(page: Path) -> set[str]:
    """The anchors of the headings of `page`, as GitHub names them."""
    titles = re.findall(r"^#+\s+(.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_the_readme_is_short():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    assert len(text.split()) <= 1000
