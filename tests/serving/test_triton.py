"""Triton's own client, unchanged."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime.tiny import close_to

triton = pytest.importorskip("tritonclient.http")
Error = pytest.importorskip("tritonclient.utils").InferenceServerException


@pytest.fixture
def client(server):
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}", concurrency=4) as client:
        yield client


def given(x: np.ndarray, name: str = "x", datatype: str = "FP32", *, binary: bool = True):
    wanted = triton.InferInput(name, list(x.shape), datatype)
    wanted.set_data_from_numpy(x, binary_data=binary)
    return wanted


def test_health_metadata_and_index(client):
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("first")
    assert not client.is_model_ready("third") and not client.is_model_ready("first", "2")
    assert client.get_server_metadata()["name"] == "flexcomp"
    said = client.get_model_metadata("first", "1")
    assert said["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [256]}]
    assert [one["state"] for one in client.get_model_repository_index()] == ["READY", "READY"]


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_inference(client, first, x, binary_in, binary_out):
    outputs = [triton.InferRequestedOutput("out", binary_data=binary_out)]
    result = client.infer("first", [given(x, binary=binary_in)], outputs=outputs, request_id="9", timeout=20_000_000)
    assert result.get_response()["id"] == "9"
    close_to(result.as_numpy("out"), first.reference(x))


def test_many_at_the_same_time(client, first, second, x):
    images = [x * factor for factor in range(8)]
    running = [
        (tiny, image, client.async_infer(tiny.library.stem, [given(image)])) for image in images for tiny in (first, second)
    ]
    for tiny, image, result in running:
        close_to(result.get_result().as_numpy("out"), tiny.reference(image))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda x: given(x, "y"), 'inputs must be "x", not "y"'),
        (lambda x: given(x.reshape(16, 16)), "must be FP32"),
        (lambda x: given(x.astype("i4"), datatype="INT32"), "must be FP32"),
    ],
)
def test_wrong_names_shapes_and_types(client, x, wrong, says):
    with pytest.raises(Error, match=says):
        client.infer("first", [wrong(x)])


def test_what_is_not_served(client, x):
    with pytest.raises(Error, match='there is no model "third"'):
        client.infer("third", [given(x)])
    with pytest.raises(Error, match='there is no output "y"'):
        client.infer("first", [given(x)], outputs=[triton.InferRequestedOutput("y")])
    with pytest.raises(Error, match="classification is not supported"):
        client.infer("first", [given(x)], outputs=[triton.InferRequestedOutput("out", class_count=3)])
    with pytest.raises(Error, match="'gzip' is not supported"):
        client.infer("first", [given(x)], request_compression_algorithm="gzip")
    with pytest.raises(Error, match="takes no parameter 'config'"):
        client.load_model("first", config="{}")


def test_models_come_and_go(client, x):
    client.unload_model("second")
    assert not client.is_model_ready("second")
    with pytest.raises(Error, match='the model "second" is not loaded: unloaded'):
        client.infer("second", [given(x)])
    client.unload_model("second", unload_dependents=True)
    client.load_model("second")
    assert client.is_model_ready("second")
    client.infer("second", [given(x)])
