"""The end of a server: what has begun is finished, and nothing is begun."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
import typer

from tests.serving.servers import Server, answer_on, raw_request, status_of


def ask_in_background(server, asked, count):
    answers = []

    def ask() -> None:
        answers.append(httpx.post(f"{server.url}/v2/models/slow/infer", json=asked, timeout=60).status_code)

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    while not server.metric("flexcomp_model_queue_length", model="slow"):
        time.sleep(0.005)
    return threads, answers


def test_what_was_admitted_is_answered(slow, asked):
    with Server(slow.library, "--budget", "5MB") as server:
        threads, answers = ask_in_background(server, asked, 4)
        while server.metric("flexcomp_requests_in_flight") < 4:
            time.sleep(0.005)
        body = json.dumps(asked).encode()
        with server.connection() as late:
            late.sendall(raw_request("/v2/models/slow/infer", body[:50], length=len(body)))
            time.sleep(0.1)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            late.sendall(body[50:])
            answer = answer_on(late)
            assert status_of(answer) == 503 and b"retry-after: 1" in answer.lower()
        with pytest.raises(OSError):
            server.connection()
        for thread in threads:
            thread.join()
        code, said = server.ended()
    assert answers == [200] * 4 and code == 0
    assert said[-1]["event"] == "ended"


def test_grace_comes_to_an_end(slow, asked):
    with Server(slow.library, "--budget", "5MB", "--grace-ms", "1000") as server:
        with server.connection() as half:
            half.sendall(raw_request("/v2/models/slow/infer", b"{", length=100))
            while not server.metric("flexcomp_requests_in_flight"):
                time.sleep(0.005)
            began = time.monotonic()
            server.process.send_signal(signal.SIGINT)
            code, said = server.ended()
        assert code == 130 and 0.9 < time.monotonic() - began < 10
        assert said[-1]["event"] == "ended" and not any("exception" in one for one in said)


def test_a_second_signal_ends_it_at_once(slow):
    with Server(slow.library, "--budget", "5MB", "--grace-ms", "600000") as server:
        with server.connection() as half:
            half.sendall(raw_request("/v2/models/slow/infer", b"{", length=100))
            while not server.metric("flexcomp_requests_in_flight"):
                time.sleep(0.005)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            assert server.process.poll() is None
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(10) == 143


def test_what_cannot_be_served_is_said_in_a_line(first, tmp_path, capfd):
    from flexcomp.cli.serve import serve

    (tmp_path / "token").write_text("short")
    one = {"libraries": [first.library]}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for code, says, given in (
            (2, "there is nothing to serve: name libraries, or a --repository", {}),
            (2, "two libraries are called first", {"libraries": [first.library] * 2}),
            (2, "can be reached from other machines: say who may ask, with --token-file", one | {"host": "0.0.0.0"}),
            (2, "must hold one token", one | {"token_file": tmp_path / "token"}),
            (4, f"cannot listen on 127.0.0.1:{port}: Address already in use", one | {"port": port}),
            (4, "there is no host no.such.host.invalid", one | {"host": "no.such.host.invalid"}),
            (2, "is no folder", {"repository": first.library}),
            (4, "none.so", {"libraries": [tmp_path / "none.so"]}),
            (2, "--budget takes a number of bytes, such as 200MB, not 10%", one | {"budget": "10%"}),
            (2, "--load-all is for what is in a --repository", one | {"load_all": True}),
            (2, "'=a.so' is not NAME=LIBRARY", {"libraries": [Path("=a.so")]}),
            (2, "two libraries are called first", {"libraries": [first.library, Path(f"first={first.library}")]}),
            (4, "16.00 MB for requests: the smallest", one | {"budget": "16MB", "request_memory": "16MB"}),
            (2, "--request-memory takes a number of bytes", one | {"request_memory": "10%"}),
            (2, "watch follows", one | {"watch": "foo"}),
            (2, "cannot read the token in", one | {"token_file": tmp_path / "none"}),
            (
                4,
                "a budget of 1.00 kB is too small for 1 model and 68.61 kB for requests: the smallest feasible budget is ",
                one | {"budget": "1kB"},
            ),
        ):
            with pytest.raises(typer.Exit) as ended:
                serve(**{"budget": "20MB", "port": 0} | given)
            said = capfd.readouterr().err
            assert ended.value.exit_code == code and says in said, said
            assert len(said.splitlines()) == 1
    with pytest.raises(typer.BadParameter, match="'third' is not known: it is one of first"):
        serve(budget="20MB", rate=["third=3"], **one)


def test_without_the_extra_its_name_is_said(first):
    code = "import sys; sys.modules['fastapi'] = None; from flexcomp.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", str(first.library), "--budget", "20MB"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (4, "error: fastapi is missing: pip install 'flexcomp[serve]'\n")
