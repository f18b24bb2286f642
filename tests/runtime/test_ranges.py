"""The two ranges of an arena need not follow each other in memory."""

from __future__ import annotations

from tests.by_hand import encode_program
from tests.runtime import native

_CALLS = ("kernels/call_table.cc", "kernels/bounds_check.cc")


def test_whatever_runs_finds_its_bytes_where_the_ranges_lie_apart(tiny, tmp_path):
    """Arguments of kernels, and what is read: of rungs that keep nothing, something and everything."""
    path = tmp_path / "program"
    path.write_bytes(encode_program(tiny.program, tiny.digest))
    native.run(native.compile(tmp_path, "ranges_apart.cc", (*native.LOADER, *native.READER, *_CALLS)), path)
