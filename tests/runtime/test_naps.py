"""A loader that has a core of its own looks for the end of a read, unless the system has just given that core to others."""

from __future__ import annotations

from tests.runtime import native


def test_a_loader_that_others_stop_sleeps_for_a_while(tmp_path):
    program = native.compile(tmp_path, "loader_naps.cc", native.LOADER)
    lines = (line.split() for line in native.run(program).stdout.splitlines())
    looks = {name: int(count) for name, count in lines}
    assert looks["undisturbed"] > 1000 and looks["later"] > 1000
    assert 0 < looks["stopped"] < 10
    assert looks["behind"] == 0
