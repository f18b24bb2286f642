"""What a server answers, as plain HTTP."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from flexcomp.version import __version__
from tests.runtime.tiny import close_to

INFER = "/v2/models/first/infer"


def binary(x: np.ndarray, **more) -> tuple[bytes, dict]:
    """Body and headers of an inference with a binary tensor."""
    entry = {"name": "x", "datatype": "FP32", "shape": [256], "parameters": {"binary_data_size": x.nbytes}}
    text = json.dumps({"inputs": [entry], **more}).encode()
    return text + x.tobytes(), {"Inference-Header-Content-Length": str(len(text))}


def test_health_and_metadata(server):
    get = server.client.get
    assert get("/v2/health/live").status_code == get("/v2/health/ready").status_code == 200
    assert get("/v2/models/first/ready").status_code == get("/v2/models/first/versions/1/ready").status_code == 200
    said = get("/v2").json()
    assert (said["name"], said["version"]) == ("flexcomp", __version__) and "binary_tensor_data" in said["extensions"]
    port = {"datatype": "FP32", "shape": [256]}
    for path in ("/v2/models/second", "/v2/models/second/versions/1"):
        said = get(path).json()
        assert said == {
            "name": "second", "versions": ["1"], "platform": "flexcomp",
            "inputs": [{"name": "x", **port}], "outputs": [{"name": "out", **port}],
        }  # fmt: skip


def test_numbers_in_and_numbers_out(server, first, second, x, asked):
    for tiny, path in ((first, INFER), (second, "/v2/models/second/versions/1/infer")):
        response = server.client.post(path, json={**asked, "id": "seven"})
        assert response.status_code == 200 and response.headers["content-type"] == "application/json"
        said = response.json()
        assert (said["model_name"], said["id"]) == (tiny.library.stem, "seven")
        close_to(np.array(said["outputs"][0]["data"], "f4"), tiny.reference(x))


def test_long_json_is_read_beside_other_requests(server, first, x, asked):
    text = json.dumps(asked) + " " * 50_000
    with ThreadPoolExecutor(4) as clients:
        for response in clients.map(lambda _: httpx.post(server.url + INFER, content=text), range(8)):
            close_to(np.array(response.json()["outputs"][0]["data"], "f4"), first.reference(x))
    assert server.client.post(INFER, content=text[:40_000]).status_code == 200
    assert server.client.post(INFER, content=text + "x").status_code == 400


def test_binary_tensors_in_and_out(server, first, x):
    body, headers = binary(x, parameters={"binary_data_output": True})
    response = server.client.post(INFER, content=body, headers=headers)
    assert response.headers["content-type"] == "application/octet-stream"
    length = int(response.headers["Inference-Header-Content-Length"])
    assert json.loads(response.content[:length])["outputs"][0]["parameters"] == {"binary_data_size": 1024}
    close_to(np.frombuffer(response.content[length:], "f4"), first.reference(x))


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("GET", "/", 404, "there is no /"),
        ("GET", "/docs", 404, "there is no /docs"),
        ("GET", "/v2/", 404, "there is no /v2/"),
        ("POST", "/v2/health/live", 405, "Method Not Allowed"),
        ("GET", INFER, 405, "Method Not Allowed"),
        ("GET", "/v2/models/third", 404, 'there is no model "third"'),
        ("GET", "/v2/models/first/versions/2", 404, 'there is no model "first, version 2"'),
        ("GET", "/v2/models/first/versions/2/ready", 404, 'there is no model "first, version 2"'),
        ("POST", "/v2/models/third/infer", 404, 'there is no model "third"'),
        ("POST", "/v2/models/first/versions/2/infer", 404, 'there is no model "first, version 2"'),
        ("POST", "/v2/models/%2e%2e%2ffirst/infer", 404, ""),
        ("POST", INFER, 400, "the request is not JSON"),
    ],
)
def test_what_is_not_there_is_said_as_the_protocol_wants(server, method, path, status, says):
    response = server.client.request(method, path)
    assert response.status_code == status and says in response.json()["error"]
    assert response.headers["content-type"] == "application/json"
    assert status != 405 or response.headers["allow"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "y"}, 'inputs must be "x", not "y"'),
        ({"shape": [1, 256]}, r"must be FP32[256]"),
        ({"datatype": "INT32"}, r"must be FP32[256]"),
        ({"data": [1.0]}, "its data are not nested like that"),
        ({"data": ["a"] * 256}, "its data are not all int or float"),
    ],
)
def test_wrong_inputs_are_the_clients_fault(server, asked, change, says):
    response = server.client.post(INFER, json={"inputs": [{**asked["inputs"][0], **change}]})
    assert response.status_code == 400 and says in response.json()["error"]


@pytest.mark.parametrize("text", ["0", "-1", "nan", "1_0", "", "soon", "1e7", "²", "9" * 300])
def test_a_time_that_is_none_is_refused(server, asked, text):
    response = server.client.post(INFER, json=asked, headers={b"timeout": text.encode()})
    assert response.status_code == 400 and "must be a number of seconds" in response.json()["error"]


def test_a_deadline_that_cannot_be_met_is_refused_with_a_time_to_come_again(server, asked):
    soon = {"parameters": {"timeout": 1}}
    for more, headers in ((soon, {}), ({}, {"timeout": "1e-6"}), (soon, {"timeout": "50"})):
        response = server.client.post(INFER, json={**asked, **more}, headers=headers)
        assert response.status_code == 429 and int(response.headers["retry-after"]) >= 1, response.text
    later = {"parameters": {"timeout": 20_000_000}}
    assert server.client.post(INFER, json=asked | later, headers={"timeout": "20"}).status_code == 200


def test_outputs_without_numbers_in_json_are_asked_for_as_binary(server):
    infinite = np.full(256, np.inf, "f4")
    body, headers = binary(infinite)
    response = server.client.post(INFER, content=body, headers=headers)
    assert response.status_code == 400 and "ask for binary data" in response.json()["error"]
    body, headers = binary(infinite, parameters={"binary_data_output": True})
    assert server.client.post(INFER, content=body, headers=headers).status_code == 200
