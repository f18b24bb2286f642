"""The database of a tuner: what is written is read, the best counts, and nothing broken is trusted."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexcomp.errors import TuningError
from flexcomp.profiling.kernel_records import Database, Record, parse

GOOD = Record("ConvSpec(1)", "llvm", 2, "direct 14×32", "a CPU", "0.1.0", "2026-01-31T12:00:00+00:00", seconds=1e-3)


def record(**changes) -> Record:
    return Record(**{**GOOD.__dict__, **changes})


text = st.text(min_size=1, max_size=20)


@given(
    st.builds(
        lambda layer, kernel, seconds: record(layer=layer, kernel=kernel, seconds=seconds),
        text, text, st.floats(1e-9, 1e3),
    )
)  # fmt: skip
def test_a_record_survives_its_line(one):
    line = one.line()
    assert "\n" not in line
    assert parse(line) == one


def test_the_best_of_several_times_counts_and_failures_are_remembered(tmp_path):
    path = tmp_path / "new folder" / "tuning.jsonl"
    database = Database.open(path)
    database.extend([record(seconds=3e-3), record(seconds=1e-3), record(seconds=2e-3)])
    database.extend([record(kernel="bad", seconds=None, error="it crashed"), record(target="other", seconds=1e-9)])
    for known in (database, Database.read(path)):
        assert known.seconds(GOOD.key) == {"direct 14×32": 1e-3}
        assert known.trials(GOOD.key)["bad"].error == "it crashed"
    assert len(path.read_text().splitlines()) == 5


def test_an_interrupted_line_is_dropped_and_the_rest_continued(tmp_path):
    path = tmp_path / "tuning.jsonl"
    whole = GOOD.line() + "\n"
    path.write_text(whole + GOOD.line()[:40])
    assert len(Database.read(path).records) == 1
    Database.open(path).append(record(kernel="next"))
    assert [r.kernel for r in Database.read(path).records] == ["direct 14×32", "next"]


def broken(**changes) -> str:
    facts = {**json.loads(GOOD.line()), **changes}
    return json.dumps({name: value for name, value in facts.items() if value is not None})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "no JSON"),
        ("[1]", "no JSON object"),
        (broken(format=2), "format is not 1"),
        (broken(layer=None), "lacks layer"),
        (broken(seconds=None), "lacks seconds"),
        (broken(mood="good"), "unknown entries: mood"),
        (broken(seconds=-1), "seconds"),
        (broken(seconds=float("nan")), "NaN is no number"),
        (broken(seconds="1"), "seconds"),
        (broken(threads=0), "threads"),
        (broken(threads=True), "threads"),
        (broken(kernel=7), "kernel"),
        (broken(date="yesterday"), "date"),
        (broken(error="it crashed"), "unknown entries: seconds"),
    ],
)
def test_a_broken_line_is_named(tmp_path, line, reason):
    path = tmp_path / "tuning.jsonl"
    path.write_text(f"{GOOD.line()}\n{line}\n{GOOD.line()}\n")
    with pytest.raises(TuningError, match=rf"line 2 is no record of a tuner: .*{reason}"):
        Database.read(path)


def test_files_that_cannot_be_read_or_written_are_named(tmp_path):
    with pytest.raises(TuningError, match="cannot read the tuning database"):
        Database.read(tmp_path / "absent")
    with pytest.raises(TuningError, match="cannot write the tuning database"):
        Database.open("/proc/tuning.jsonl")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(TuningError, match="not text"):
        Database.read(tmp_path / "binary")
