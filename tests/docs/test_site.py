"""The site that `make site` writes: every link leads somewhere, and no page loads anything from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build(config: Path, site: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "mkdocs", "build", "--config-file", config, "--site-dir", site]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=False)


def test_every_link_leads_somewhere(tmp_path):
    done = build(ROOT / "mkdocs.yml", tmp_path)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 25 and "flexcomp" in (tmp_path / "index.html").read_text()
    loaded = re.compile(r"<(?:script|img|link)[^>]+(?:src|href)=.?https?://[^ >]*")
    for page in pages:
        found = [tag for tag in loaded.findall(page.read_text()) if 'rel="canonical"' not in tag]
        assert not found, f"{page.name} loads {found}"


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("[there](guide/nowhere.md)")
    config = (ROOT / "mkdocs.yml").read_text().partition("nav:")[0].replace("hooks: [scripts/site_home.py]", "")
    (tmp_path / "mkdocs.yml").write_text(config)
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode and "guide/nowhere.md" in done.stderr
