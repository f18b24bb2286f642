"""Weights that stay when a session changes its plan: moves within its memory (runtime_ext/src/memory/carry.cc)."""

from __future__ import annotations

import subprocess

from tests.runtime import native

WANTED = """
in place: 0 moves, there: 0 1
upwards: 3 moves, there: 0 1 2
downwards: 3 moves, there: 0 1 2
swapped: 1 moves, there: 1 2
in the way of states: 1 moves, there: 1
others: 0 moves, there: 1
nothing: 0 moves, there:
what is left: 1 moves, there: 1
many: 4000 moves
"""


def test_moves_do_not_overwrite_what_is_moved_later(tmp_path):
    """Of two loads in each other's way one is read again; states stay in any case."""
    memory = ("memory/carry.cc", "memory/carry_order.cc", "memory/sharing.cc")
    parts = (*memory, "program/shareable.cc", "program/signature.cc", *native.READER)
    program = native.compile(tmp_path, "carried_weights.cc", parts)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines() == WANTED.strip().splitlines()
