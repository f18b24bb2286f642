"""Tuning over RPC: stock TVM servers behind a tracker, one of which dies in the middle."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from tvm.rpc.tracker import Tracker

import flexcomp
from flexcomp.tuning.records import Database
from flexcomp.tuning.rpc import parse_tracker

from .test_tune import network

KEY = "board"
_START_S = 60.0


@pytest.fixture
def tracker():
    tracker = Tracker(host="127.0.0.1", port=9190, port_end=9890, silent=True)
    yield f"127.0.0.1:{tracker.port}"
    tracker.terminate()


@pytest.fixture
def servers(tracker):
    """Two servers, each with its child processes in a group of its own."""
    command = [sys.executable, "-m", "tvm.exec.rpc_server", "--host", "127.0.0.1", "--tracker", tracker, "--key", KEY]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    running = []
    try:
        # One after the other: two servers that start at once both bind the first free port, and one of them dies.
        for _ in range(2):
            running.append(subprocess.Popen(command, **quiet, start_new_session=True))
            _wait_until_registered(tracker, len(running))
        yield running
    finally:
        for server in running:
            kill(server)
            server.wait()


def _wait_until_registered(tracker: str, count: int) -> None:
    from tvm import rpc

    deadline = time.monotonic() + _START_S
    while True:
        known = rpc.connect_tracker(*parse_tracker(tracker)).summary()["server_info"]
        if len(known) >= count:
            return
        assert time.monotonic() < deadline, f"only {len(known)} RPC servers came up"
        time.sleep(0.2)


def kill(server: subprocess.Popen) -> None:
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)


def test_a_device_that_dies_loses_no_trial(tracker, servers, tmp_path):
    database = tmp_path / "tuning.jsonl"
    news = []

    def progress(trial):
        news.append(trial)
        if len(news) == 2:
            kill(servers[0])

    report = flexcomp.tune(
        network(), database=database, trials=8, threads=1, tracker=tracker, key=KEY, progress=progress
    )
    assert (report.trials, report.failed) == (8, 0)
    records = Database.read(database).records
    assert len({(r.layer, r.kernel) for r in records}) == 8
    assert {r.device for r in records} == {f"rpc:{KEY}"}
    assert all(layer.default_seconds and layer.best_seconds for layer in report.layers)


def test_without_a_device_or_a_tracker_the_reason_is_given(tracker, tmp_path):
    database = tmp_path / "tuning.jsonl"
    with pytest.raises(flexcomp.TuningError, match='knows no device with the key "board"'):
        flexcomp.tune(network(), database=database, trials=1, tracker=tracker, key=KEY)
    with pytest.raises(flexcomp.InputError, match="is not HOST:PORT"):
        flexcomp.tune(network(), database=database, trials=1, tracker="nowhere", key=KEY)
    assert not database.exists() or not database.read_bytes()
