"""Shared by all tests."""

from __future__ import annotations

from pathlib import Path

import flexcomp.passes

ROOT = Path(__file__).resolve().parent.parent

# An installed copy, or another checkout's editable install, would be tested in silence.
assert Path(flexcomp.passes.__file__).is_relative_to(ROOT), (
    f"flexcomp.passes comes from {flexcomp.passes.__file__}, not from {ROOT}: run `make test`"
)
