"""Costs of builds are those of all processes."""

import sys

from benchmarks.lab.built import MOST_BYTES, MOST_S, Cost, cost_of

BUSY = """
import os, sys, time
def spend():
    block = bytearray(b"x" * 30_000_000)
    start = time.process_time()
    while time.process_time() - start < 0.2: pass
    time.sleep(0.8)
if os.fork():
    spend()
    os.wait()
    print("first\\nlast", file=sys.stderr)
    sys.exit(3)
spend()
"""


def test_all_processes_count():
    found = cost_of([sys.executable, "-c", BUSY])
    assert (found.status, found.said) == (3, "last")
    assert found.seconds >= 0.4
    assert found.nbytes >= 60_000_000


def test_what_exceeds_a_bound_is_said():
    model = 1_000_000_000
    assert Cost(MOST_S, 1_200_000_000 + MOST_BYTES, 0, "").excess(model) == []
    assert Cost(MOST_S + 1, 0, 0, "").excess(model) == ["above 120 s"]
    assert Cost(0.0, 1_200_000_001 + MOST_BYTES, 0, "").excess(model) == ["above 3,200 MB"]
