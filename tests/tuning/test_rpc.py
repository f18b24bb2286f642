"""Tuning over RPC: stock TVM servers behind a tracker, one of which dies in the middle."""

import pytest

import flexcomp
from flexcomp.profiling.kernel_records import Database
from tests.remote.servers import KEY, kill, python_servers, running_tracker

from .networks import network


@pytest.fixture
def tracker():
    with running_tracker() as address:
        yield address


@pytest.fixture
def servers(tracker):
    with python_servers(tracker, 2) as running:
        yield running


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
