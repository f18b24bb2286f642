"""What KServe's runtime (`docs/kserve.yaml`) relies on: its arguments, models by links, names of other hosts, and a token."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.serving.servers import Server

TOKEN = "a-token-of-some-length"
DOCUMENT = Path(__file__).parents[2] / "docs" / "kserve.yaml"


@pytest.fixture(scope="module")
def runtime():
    runtime, service = yaml.safe_load_all(DOCUMENT.read_text())
    assert service["spec"]["predictor"]["model"]["runtime"] == runtime["metadata"]["name"]
    (container,) = runtime["spec"]["containers"]
    return container


@pytest.fixture(scope="module")
def deployed(runtime, first, second, tmp_path_factory):
    """A server as the document starts it; of its folders and port only the places differ."""
    root = tmp_path_factory.mktemp("kserve")
    models, claim = root / "models", root / "claim"
    models.mkdir()
    claim.mkdir()
    for name, network in (("first", first), ("second", second)):  # as KServe does for claims: a link for each file
        for file in (network.library, network.weights):
            (claim / f"{name}{file.suffix}").write_bytes(file.read_bytes())
            (models / f"{name}{file.suffix}").symlink_to(claim / f"{name}{file.suffix}")
    (root / "token").write_text(TOKEN)
    places = {"/mnt/models": models, "/etc/flexcomp/token": root / "token"}
    arguments = []
    for argument in runtime["args"][1:]:
        option, _, value = argument.partition("=")
        if option not in ("--port", "--log"):
            arguments += [option, *([places.get(value, value)] if value else [])]
    with Server(*arguments, token=TOKEN) as server:
        server.client.base_url = f"http://127.0.0.1:{server.port}"
        yield server


def test_all_models_answer_under_the_services_name(deployed, asked):
    service = {"Host": "pictures-predictor.default.example.com"}
    for name in ("first", "second"):
        assert deployed.client.get(f"/v2/models/{name}/ready", headers=service).status_code == 200
        assert deployed.client.post(f"/v2/models/{name}/infer", json=asked, headers=service).status_code == 200


def test_its_probes_need_no_token(runtime, deployed):
    import httpx

    for probe in ("readinessProbe", "livenessProbe"):
        path = runtime[probe]["httpGet"]["path"]
        assert httpx.get(f"http://127.0.0.1:{deployed.port}{path}", headers={"Host": "10.1.2.3:8080"}).status_code == 200
    assert httpx.get(f"http://127.0.0.1:{deployed.port}/v2", headers={"Host": "10.1.2.3:8080"}).status_code == 401


def test_a_library_may_be_called_as_the_service(first, asked):
    with Server(f"pictures={first.library}", "--budget", "20MB") as server:
        assert server.client.post("/v2/models/pictures/infer", json=asked).status_code == 200
        assert server.client.post("/v2/models/first/infer", json=asked).status_code == 404
