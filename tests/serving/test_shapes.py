"""Requests of any length, of a library that pads."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from tests.padded import masked_encoder, masked_library
from tests.serving.servers import Server

INFER = "/v2/models/padded/infer"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = masked_library(tmp_path_factory.mktemp("served") / "padded.so")
    with Server(path, "--budget", "20MB") as server:
        yield server


def tensors(n, shape=None):
    ids = np.random.default_rng(n).integers(1, 50, n)
    return [
        {"name": name, "datatype": "INT64", "shape": shape or [1, n], "data": data.tolist()}
        for name, data in (("ids", ids), ("mask", np.ones_like(ids)))
    ]


def test_metadata_say_which_extents_a_request_may_have(server):
    said = server.client.get("/v2/models/padded").json()
    assert [port["shape"] for port in said["inputs"]] == [[1, -1], [1, -1]]
    assert [port["shape"] for port in said["outputs"]] == [[1, -1, 32], [1, 32]]
    assert said["parameters"] == {"shapes": "n=12; n=5", "padded": True}


def test_requests_of_every_length(server):
    reference = onnxruntime.InferenceSession(masked_encoder().SerializeToString())
    for n in np.random.default_rng(0).permutation(range(1, 13)).tolist():
        given = tensors(n)
        said = server.client.post(INFER, json={"inputs": given}).json()
        wanted = reference.run(None, {one["name"]: np.array([one["data"]]) for one in given})
        for output, array in zip(said["outputs"], wanted, strict=True):
            assert output["shape"] == list(array.shape)
            np.testing.assert_allclose(np.array(output["data"]).reshape(array.shape), array, rtol=1e-4, atol=1e-5)


def test_tritons_client_sends_every_length(server):
    triton = pytest.importorskip("tritonclient.http")
    reference = onnxruntime.InferenceSession(masked_encoder().SerializeToString())
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        for n in np.random.default_rng(1).permutation(range(1, 13)).tolist():
            arrays = {one["name"]: np.array([one["data"]]) for one in tensors(n)}
            asked = [triton.InferInput(name, list(array.shape), "INT64") for name, array in arrays.items()]
            for one, array in zip(asked, arrays.values(), strict=True):
                one.set_data_from_numpy(array, binary_data=n % 2 == 0)
            result = client.infer("padded", asked)
            for name, wanted in zip(("rows", "mean"), reference.run(None, arrays), strict=True):
                np.testing.assert_allclose(result.as_numpy(name), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (tensors(13), 'input "ids" has 13 elements along axis 1, and the library was built for 12 at most'),
        (tensors(3, [3]), 'input "ids" must be INT64[1, -1], not "INT64"[3]'),
        (tensors(3, [2, 3]), 'input "ids" must be INT64[1, 3], not "INT64"[2, 3]'),
        (tensors(3, [1, 4]), 'input "ids" must be INT64[1, 4]'),
        (tensors(3, [1, -3]), 'input "ids" must be INT64[1, -1]'),
        ([tensors(3)[0], tensors(4)[1]], '"mask" has 4 elements along axis 1, but "ids" has 3 elements along axis 1: both are n'),
    ],
)
def test_bad_extents(server, given, says):
    response = server.client.post(INFER, json={"inputs": given})
    assert response.status_code == 400 and says in response.json()["error"]
