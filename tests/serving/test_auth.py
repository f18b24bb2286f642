"""Who may ask."""

from __future__ import annotations

import json

import pytest

from flexcomp.errors import InputError
from flexcomp.serving.auth import is_loopback, read_token
from tests.serving.servers import Server, answer_on, raw_request, status_of

TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def guarded(first, tmp_path_factory):
    path = tmp_path_factory.mktemp("token") / "token"
    path.write_text(f"{TOKEN}\n")
    with Server(first.library, "--budget", "20MB", "--host", "0.0.0.0", "--token-file", path, token=TOKEN) as server:
        server.client.base_url = f"http://127.0.0.1:{server.port}"
        yield server


@pytest.mark.parametrize(
    "given", [None, "", "Bearer", "Bearer ", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", TOKEN, "Bearer ü" * 9]
)
@pytest.mark.parametrize("path", ["/v2", "/metrics", "/openapi.json", "/v2/models/first", "/v2/models/first/ready", "/nothing"])
def test_without_the_token_nothing_is_said(guarded, given, path):
    headers = [] if given is None else [f"Authorization: {given}"]
    with guarded.connection() as connection:
        connection.sendall(raw_request(path, b"", *headers, method="GET"))
        answer = answer_on(connection)
    assert status_of(answer) == 401 and b"www-authenticate: Bearer" in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"error": "a token is needed: Authorization: Bearer TOKEN"}


def test_with_it_all_is(guarded, asked):
    for path in ("/v2", "/metrics", "/openapi.json", "/v2/models/first"):
        assert guarded.client.get(path, headers={"Host": "elsewhere", "Origin": "http://elsewhere"}).status_code == 200
    assert guarded.client.post("/v2/models/first/infer", json=asked).status_code == 200


def test_whoever_watches_over_the_process_needs_none(guarded):
    import httpx

    for path in ("/v2/health/live", "/v2/health/ready"):
        assert httpx.get(f"http://127.0.0.1:{guarded.port}{path}").status_code == 200


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.1:8080", "LOCALHOST:1", "[::1]:8080"])
def test_this_machine_needs_no_token(server, host):
    assert server.client.get("/v2", headers={"Host": host}).status_code == 200
    assert server.client.get("/v2", headers={"Host": host, "Origin": f"http://{host}"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "rebound.example"},
        {"Host": "127.0.0.1.rebound.example:80"},
        {"Host": "[::1"},
        {"Host": "192.168.0.1"},
        {"Origin": "http://page.example"},
        {"Origin": "null"},
        {"Host": "localhost:8080", "Origin": "http://localhost:3000"},
    ],
)
def test_pages_in_a_browser_do(server, headers):
    response = server.client.post("/v2/repository/models/second/unload", headers=headers)
    assert response.status_code == 403 and "--token-file" in response.json()["error"]
    assert server.client.get("/v2/models/second/ready").status_code == 200


@pytest.mark.parametrize(
    ("text", "wrong"),
    [("", True), ("short", True), ("two tokens, that are long", True), ("ü" * 20, True), (f" {TOKEN}\r\n", False)],
)
def test_token_files(tmp_path, text, wrong):
    path = tmp_path / "token"
    path.write_text(text)
    if wrong:
        with pytest.raises(InputError, match="must hold one token of 16 to 4096 characters without spaces"):
            read_token(path)
    else:
        assert read_token(path) == TOKEN


def test_a_token_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"cannot read the token in .*none: No such file or directory"):
        read_token(tmp_path / "none")


def test_addresses_of_this_machine():
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.1", "localhost.example", "", "a b")))
