"""What is counted and logged of requests."""

from __future__ import annotations

import json
import logging
import time

from prometheus_client.parser import text_string_to_metric_families

from flexcomp.serving.logs import log_to_stderr
from tests.serving.servers import Server


def test_requests_are_counted_timed_and_logged(first, asked):
    with Server(first.library, "--budget", "20MB") as server:
        post = server.client.post
        for _ in range(3):
            assert post("/v2/models/first/infer", json=asked | {"id": "it"}).status_code == 200
        assert post("/v2/models/first/infer", json={}).status_code == 400
        assert post("/v2/models/first/infer", json=asked, headers={"timeout": "1e-6"}).status_code == 429
        assert post("/v2/models/no%0Asuch/infer", json=asked).status_code == 404
        response = server.client.get("/metrics")
        families = {family.name: family for family in text_string_to_metric_families(response.text)}
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        for outcome, count in (("answered", 3), ("invalid", 1), ("refused", 1)):
            assert server.metric("flexcomp_requests_total", model="first", outcome=outcome) == count
        assert server.metric("flexcomp_request_seconds_count", model="first") == 3
        assert server.metric("flexcomp_queue_seconds_count", model="first") == 3
        assert server.metric("flexcomp_budget_bytes") == 17_500_000
        assert server.metric("flexcomp_body_limit_bytes") == 2_500_000
        assert 0 < server.metric("flexcomp_claimed_bytes") <= 17_500_000
        assert server.metric("flexcomp_model_pool_refused_total", model="first") == 1
        assert server.metric("process_resident_memory_bytes") > 1e6
        labels = {sample.labels.get("model", "first") for family in families.values() for sample in family.samples}
        assert labels == {"first"}  # none that a client made up
        for name in ("arena_kept_bytes", "arena_working_bytes", "stall_seconds", "queue_length", "rung"):
            assert f"flexcomp_model_{name}" in families
        code, said = server.end()
    assert code == 0 and [one["event"] for one in said if one["event"] != "request"] == ["loaded", "serving", "ended"]
    requests = [one for one in said if one["event"] == "request"]
    assert [one["status"] for one in requests] == [200, 200, 200, 400, 429, 404]
    assert requests[0]["id"] == "it" and requests[0]["took_ms"] > requests[0]["wait_ms"] >= 0
    assert requests[0]["body_bytes"] > 1024 and requests[-1]["model"] == "no\nsuch"
    times = [one["time"] for one in said]
    assert times == sorted(times) and times[0][:4] == str(time.gmtime().tm_year)


def test_lines_for_people_cannot_be_forged(capsys):
    loggers = [logging.getLogger(name) for name in ("flexcomp.serving", "asyncio")]
    try:
        log_to_stderr("text").warning("load refused", model="a\nerror: forged", error="")
        log_to_stderr("json").warning("load refused", model="a\nb")
        log_to_stderr("text").request(model="a")
        try:
            raise ValueError("\x1b[2Ja\x7f")
        except ValueError:
            log_to_stderr("text").exception("failed", model="\x1b[2J\x7f")
    finally:
        for logger in loggers:
            logger.handlers.clear()
            logger.propagate = True
    text, line, failed, *_, raised = capsys.readouterr().err.splitlines()
    assert failed == 'error: failed model="\\u001b[2J\\u007f"' and raised == "ValueError: \\x1b[2Ja\\x7f"
    assert text == 'warning: load refused model="a\\nerror: forged" error=""'
    assert json.loads(line)["model"] == "a\nb"
