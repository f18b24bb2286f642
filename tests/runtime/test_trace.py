"""The runtime's own record of an inference."""

from __future__ import annotations

import subprocess
import time

import pytest

import flexcomp
from flexcomp import runtime_ext
from flexcomp.errors import ArtifactError, InputError, StorageError
from flexcomp.runtime.trace import parse_trace, read_traces
from tests.runtime import hooks


def check(trace, planned, *, resident):
    """Waits are kept, and everything lies inside the inference."""
    assert len(trace.steps) == len(planned.steps) and len(trace.loads) == len(planned.loads)
    before = trace.begin_ns
    for step, (begin, end) in zip(planned.steps, trace.steps, strict=True):
        assert before <= begin <= end
        assert all(trace.loaded(index)[1] <= begin for index in range(step.need))
        before = end
    assert before <= trace.end_ns
    ran = []
    for load, (begin, end) in zip(planned.loads, trace.loads, strict=True):
        if load.pinned and resident:
            assert (begin, end) == (0, 0)
            continue
        assert begin < end <= trace.end_ns
        assert trace.begin_ns <= begin or (load.ahead and resident)
        assert not ran or ran[-1] <= begin
        assert load.after == 0 or load.ahead or trace.steps[load.after - 1][1] <= begin
        ran.append(end)


@pytest.mark.parametrize("rung", [0, 1, 2])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_trace_obeys_the_plan(tiny, x, rung, threads):
    planned = tiny.program.rungs[rung]
    with flexcomp.load(tiny.library, planned.budget, threads, trace=True) as session:
        for run in range(3):
            before = time.monotonic_ns()
            session(x)
            trace = session.trace()
            assert before <= trace.begin_ns <= trace.end_ns <= time.monotonic_ns()
            assert trace.rung == rung
            assert trace.latency_s * 1e3 == pytest.approx(session.stats()["latency_ms"])
            check(trace, planned, resident=run > 0)


def test_a_trace_shows_slow_storage(tiny, x):
    with flexcomp.load(tiny.library, "min", trace=True, read_bandwidth=50e6) as session:
        session(x)
        planned, trace = tiny.program.rungs[0], session.trace()
        # A read that waits in the storage's queue seems shorter, where the loader learned late of the one before.
        first, last = trace.loads[0][0], trace.loads[-1][1]
        assert (last - first) * 1e-9 > 0.9 * sum(load.nbytes for load in planned.loads) / 50e6
        ends = [trace.begin_ns, *(end for _, end in trace.steps[:-1])]
        waited = sum(begin - end for end, (begin, _) in zip(ends, trace.steps, strict=True))
        assert waited * 1e-6 == pytest.approx(session.stats()["stall_ms"], rel=0.2)


def test_a_failed_inference_says_so(tiny, x):
    with hooks.load(tiny.library, "min", trace=True, fail_read_at=1) as session:
        with pytest.raises(StorageError):
            session(x)
        assert session.trace().end_ns == 0
        session(x)
        check(session.trace(), tiny.program.rungs[0], resident=False)


def test_a_switch_changes_what_is_traced(tiny, x):
    with flexcomp.load(tiny.library, "min", trace=True) as session:
        session(x)
        session.set_budget("all")
        session(x)
        assert session.trace().rung == 2
        check(session.trace(), tiny.program.rungs[2], resident=False)


def test_only_on_request(tiny, x):
    with flexcomp.load(tiny.library) as session:
        session(x)
        with pytest.raises(InputError, match="opened without tracing"):
            session.trace()


def test_the_runner_writes_a_line_for_each_timed_inference(tiny, tmp_path):
    path = tmp_path / "trace.jsonl"
    command = [str(runtime_ext.runner()), str(tiny.library)]
    subprocess.run(
        [*command, "--budget", "min", "--repeat", "3", "--warmup", "1", "--trace", str(path)],
        check=True,
        capture_output=True,
    )
    traces = list(read_traces(path))
    assert len(traces) == 3
    for trace in traces:
        check(trace, tiny.program.rungs[0], resident=True)
    done = subprocess.run(
        [*command, "--trace", str(tmp_path / "no" / "t")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 4 and "cannot write" in done.stderr


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"rung": 0, "begin_ns": 0, "end_ns": 0, "steps": [[1]], "loads": []}']
)
def test_other_text_is_refused(text):
    with pytest.raises(ArtifactError, match="not a trace"):
        parse_trace(text)
