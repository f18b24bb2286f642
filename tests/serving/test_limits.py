"""Bodies that are too large, too slow, cut short or claimed to be something else, and clients that go away."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from contextlib import suppress

import pytest

from tests.serving.servers import Server, answer_on, raw_request, status_of

INFER = "/v2/models/first/infer"


def wait_until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_body_that_claims_too_much_is_refused_before_it_is_read(server):
    with server.connection() as connection:
        connection.sendall(raw_request(INFER, b"{", length=10**12))
        answer = answer_on(connection)
    assert status_of(answer) == 413 and b"a body of 1000000000000 bytes is more than the" in answer


def test_nor_is_it_asked_for_where_the_client_waits(server):
    with server.connection() as connection:
        connection.sendall(raw_request(INFER, b"", "Expect: 100-continue", length=10**9))
        assert status_of(answer_on(connection)) == 413


def test_a_body_in_chunks_is_read_up_to_the_limit(server, asked):
    response = server.client.post(INFER, content=iter([json.dumps(asked).encode()]))
    assert response.status_code == 200
    sent = 0
    with server.connection() as connection:
        connection.sendall(f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
        connection.settimeout(0.2)
        while sent < 100:
            connection.sendall(chunk)
            sent += 1
            try:
                answer = answer_on(connection)
                break
            except TimeoutError:
                pass
    assert status_of(answer) == 413 and sent < 5


@pytest.mark.parametrize("path", ["index", "models/first/load", "models/first/unload"])
def test_other_requests_are_short(server, path):
    path = f"/v2/repository/{path}"
    assert server.client.post(path, content=b" " * 70_000).status_code == 413
    assert server.client.post(path, content=b"[]").json()["error"] == "the request must be a JSON object"
    assert "is not JSON" in server.client.post(path, content=b"[" * 60_000).json()["error"]


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "gzip, gzip"])
def test_compressed_bodies_are_not_unpacked(server, coding):
    response = server.client.post(INFER, content=b"x", headers={"Content-Encoding": coding})
    assert response.status_code == 415 and response.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("length", ["-1", "1e3", "0x10", "9" * 40, "²", ""])
def test_lengths_that_are_none(server, length):
    with server.connection() as connection:
        connection.sendall(f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode())
        assert status_of(answer_on(connection)) in (400, 413)


def test_the_length_of_the_json_is_checked(server, asked):
    body = json.dumps(asked).encode()
    for length in ("-1", str(len(body) + 1), "9" * 400, "a", ""):
        response = server.client.post(INFER, content=body, headers={"Inference-Header-Content-Length": length})
        assert response.status_code == 400 and "Inference-Header-Content-Length is" in response.json()["error"]


def test_half_a_body_and_a_client_that_dies(server, asked):
    body = json.dumps(asked).encode()
    connections = [server.connection() for _ in range(8)]
    for connection in connections:
        connection.sendall(raw_request(INFER, body[:100], length=len(body)))
    wait_until(lambda: server.metric("flexcomp_requests_in_flight") == 8)
    assert server.metric("flexcomp_body_bytes") == 8 * len(body)
    for connection in connections:  # by a reset, as when its process is killed
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    wait_until(lambda: server.metric("flexcomp_requests_in_flight") == 0)
    assert server.metric("flexcomp_body_bytes") == 0
    assert server.client.post(INFER, json=asked).status_code == 200


def test_a_body_that_hardly_comes_gives_back_what_it_holds(server):
    with server.connection() as connection:
        began = time.monotonic()
        connection.sendall(raw_request(INFER, b"{" * 1000, length=60_000))
        answer = answer_on(connection)
        assert status_of(answer) == 408 and b"1000 bytes arrived in 5.0" in answer
        assert time.monotonic() - began < 20  # of the 30 that a body may take


def test_nonsense_on_a_connection_does_no_harm(server):
    for nonsense in (b"\0" * 100, b"GET /v2\r\n\r\n", b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02"):
        with server.connection() as connection:
            # It may be closed before all was sent.
            with suppress(ConnectionResetError, BrokenPipeError):
                connection.sendall(nonsense)
            with suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):
                answer = answer_on(connection)
                assert not answer or status_of(answer) in (400, 431)
    assert server.client.get("/v2").status_code == 200


@pytest.mark.parametrize(
    "begin",
    [
        "GET /v2/",
        "GET /v2 HTTP/1.1\r\nHost: localhost\r\nX-Long: ",
        f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1;x=",
        f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Long: ",
    ],
)
def test_what_is_no_body_comes_to_an_end(server, begin):
    sent = 0
    with server.connection() as connection, suppress(ConnectionResetError, BrokenPipeError):
        connection.sendall(begin.encode())
        while sent < 100:  # times 64 KiB
            connection.sendall(b"a" * 65536)
            sent += 1
            time.sleep(0.01)
        raise AssertionError("all of it was taken")
    assert server.client.get("/v2").status_code == 200


def test_chunks_may_be_small(server, asked):
    body = json.dumps(asked).encode() + b" " * 20_000  # with 15 times as many bytes of frames as a head may have
    frames = b"".join(b"1;frame=%d\r\n%c\r\n" % (index, byte) for index, byte in enumerate(body))
    with server.connection() as connection:
        head = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode() + frames + b"0\r\n\r\n")
        assert status_of(answer_on(connection)) == 200


@pytest.fixture(scope="module")
def strict(slow):
    """Room for one body, little time for it, and a short queue of what takes long."""
    arguments = ["--budget", "5MB", "--request-memory", "60kB", "--body-timeout-ms", "500", "--queue", "2"]
    with Server(slow.library, *arguments) as server:
        yield server


def test_a_body_that_does_not_come_is_not_waited_for(strict):
    with strict.connection() as connection:
        began = time.monotonic()
        connection.sendall(raw_request("/v2/models/slow/infer", b"{", length=100))
        answer = answer_on(connection)
        assert 0.4 < time.monotonic() - began < 4
        assert status_of(answer) == 408 and b"1 bytes arrived in 0.5 seconds" in answer
        assert connection.recv(1) == b""


def test_bodies_share_what_memory_they_may_take(strict, asked):
    with strict.connection() as connection:
        connection.sendall(raw_request("/v2/models/slow/infer", b"{", length=55_000))
        wait_until(lambda: strict.metric("flexcomp_body_bytes") == 55_000)
        response = strict.client.post("/v2/models/slow/infer", json=asked)
        assert response.status_code == 429 and int(response.headers["retry-after"]) >= 1
        assert "is more than the 58.59 KiB that the server holds at once" in response.json()["error"]
    wait_until(lambda: strict.metric("flexcomp_body_bytes") == 0)
    assert strict.client.post("/v2/models/slow/infer", json=asked).status_code == 200


def test_json_counts_as_what_it_takes_while_it_is_read(strict):
    response = strict.client.post("/v2/models/slow/infer", content=b"[" + b"[]," * 12_000 + b"1]")
    assert response.status_code == 413
    assert "JSON, while it is read; one of binary tensors takes less, takes 1.9" in response.json()["error"]
    assert strict.metric("flexcomp_body_bytes") == 0


def test_a_full_queue_refuses_and_goes_on(strict, asked):
    import httpx

    statuses = []

    def ask() -> None:
        response = httpx.post(f"{strict.url}/v2/models/slow/infer", json=asked, timeout=60)
        statuses.append(response.status_code)
        assert response.status_code == 200 or int(response.headers["retry-after"]) >= 1

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(statuses) == {200, 429} and len(statuses) == 12
    assert strict.client.post("/v2/models/slow/infer", json=asked).status_code == 200


def test_who_goes_away_leaves_the_queue(slow, asked):
    with Server(slow.library, "--budget", "5MB") as server:
        body = json.dumps(asked).encode()
        connections = [server.connection() for _ in range(20)]
        for connection in connections:
            connection.sendall(raw_request("/v2/models/slow/infer", body))
        wait_until(lambda: server.metric("flexcomp_requests_in_flight") > 15)
        for connection in connections:
            connection.close()
        wait_until(lambda: server.metric("flexcomp_requests_in_flight") == 0)
        assert server.metric("flexcomp_requests_total", model="slow", outcome="abandoned") > 10
        assert server.client.post("/v2/models/slow/infer", json=asked).status_code == 200


def test_the_budget_follows_a_control_group(first, asked, tmp_path):
    """Down at once, up when there is room, and never above what was asked for."""
    limit = tmp_path / "memory.max"
    limit.write_text(str(1 << 40))
    with Server(first.library, "--budget", "20MB", "--watch", tmp_path) as server:
        assert server.client.post("/v2/models/first/infer", json=asked).status_code == 200
        low = int(server.metric("flexcomp_claimed_bytes")) + 4096
        for allowed, reached in ((low, lambda budget: budget <= low), (1 << 40, lambda budget: budget == 17_500_000)):
            limit.write_text(str(allowed))
            until = time.monotonic() + 30
            while not reached(server.metric("flexcomp_budget_bytes")) and time.monotonic() < until:
                time.sleep(0.05)
            assert reached(server.metric("flexcomp_budget_bytes"))
            assert server.client.post("/v2/models/first/infer", json=asked).status_code == 200


def test_a_watch_of_nothing_is_refused(first, tmp_path):
    with pytest.raises(AssertionError, match="no memory control group"):
        Server(first.library, "--budget", "20MB", "--watch", tmp_path)
