"""Requests whose time is up while another one runs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.runtime import tiny as builder
from tests.serving.servers import Server, answer_on, raw_request, status_of


@pytest.fixture(scope="module")
def hasty(tmp_path_factory):
    """150 layers that read 39 MB in a small budget, and say that they take a microsecond: whatever is asked for is admitted."""

    def plan(program):
        return replace(program, rungs=tuple(replace(rung, seconds=1e-6) for rung in program.rungs))

    return builder.export(tmp_path_factory.mktemp("hasty") / "hasty.so", "served_hasty_", layers=150, plan=plan)


def test_it_is_answered_then_and_not_run(hasty, asked):
    body, path = json.dumps(asked).encode(), "/v2/models/hasty/infer"
    with Server(hasty.library, "--budget", "5MB") as server:
        for _ in range(10):
            with server.connection() as first, server.connection() as second:
                first.sendall(raw_request(path, body))
                second.sendall(raw_request(path, body, "timeout: 0.004"))
                answer = answer_on(second)
                assert status_of(answer_on(first)) == 200
            if status_of(answer) == 429 and b"passed while it waited" in answer:
                break
            for event in ("unload", "load"):  # which forgets how long it takes
                assert server.client.post(f"/v2/repository/models/hasty/{event}").status_code == 200
        else:
            raise AssertionError(answer)
        assert server.metric("flexcomp_requests_total", model="hasty", outcome="refused") >= 1
        assert server.metric("flexcomp_model_deadlines_missed_total", model="hasty") == 1
