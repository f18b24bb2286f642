"""Models that come and go while a server runs, and files that are damaged under it."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper

import flexcomp
from tests.runtime import tiny as builder
from tests.runtime.tiny import close_to, with_page
from tests.serving.servers import Server


def copy_of(tiny, folder, name):
    shutil.copy(tiny.library, folder / f"{name}.so")
    shutil.copy(tiny.weights, folder / f"{name}.weights")
    return folder / f"{name}.so"


@pytest.fixture
def folder(tmp_path, first, second):
    """Two libraries, one that is none, and one without weights."""
    folder = tmp_path / "models"
    folder.mkdir()
    copy_of(first, folder, "one")
    copy_of(second, folder, "two")
    (folder / "broken.so").write_bytes(b"no library")
    (folder / "broken.weights").touch()
    shutil.copy(first.library, folder / "bare.so")
    return folder


def states(server, **body) -> dict[str, str]:
    return {one["name"]: one["state"] for one in server.client.post("/v2/repository/index", json=body).json()}


def change(server, name, event) -> tuple[int, str]:
    response = server.client.post(f"/v2/repository/models/{name}/{event}")
    return response.status_code, response.json().get("error", "")


def works(server, name, asked) -> bool:
    return server.client.post(f"/v2/models/{name}/infer", json=asked).status_code == 200


def test_models_of_a_folder_are_loaded_when_asked_for(folder, asked, tmp_path):
    (tmp_path / "outside.so").symlink_to(folder / "one.so")
    with Server("--repository", folder, "--budget", "20MB") as server:
        assert set(states(server).values()) == {"UNAVAILABLE"} and states(server, ready=True) == {}
        assert change(server, "one", "load") == (200, "") == change(server, "one", "load")
        assert states(server, ready=True) == {"one": "READY"} and works(server, "one", asked)
        code, error = change(server, "broken", "load")
        assert code == 500 and "broken.so" in error
        code, error = change(server, "bare", "load")
        assert code == 500 and "bare.weights" in error
        reasons = {one["name"]: one["reason"] for one in server.client.post("/v2/repository/index").json()}
        assert str(tmp_path) not in f"{reasons} {error}"  # clients learn names, and not where files lie
        assert reasons["bare"] == error and reasons["two"] == "not loaded yet" and reasons["one"] == ""
        for name in ("..%2Foutside", "outside", "..", "%2Fetc%2Fpasswd", "one.so"):
            assert change(server, name, "load")[0] == 404
        assert change(server, "three", "unload")[0] == 404
        assert change(server, "one", "unload") == (200, "") == change(server, "one", "unload")
        assert not works(server, "one", asked)
        os.unlink(folder / "one.so")
        assert change(server, "one", "load")[0] == 404
        assert server.client.get("/v2/health/ready").status_code == 200


def test_links_lead_to_libraries(folder, asked, tmp_path):
    """With weights beside the link, or beside what it leads to."""
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "first.so").symlink_to(folder / "one.so")
    (linked / "second.so").symlink_to(folder / "two.so")
    os.rename(folder / "two.weights", tmp_path / "of two")
    (linked / "second.weights").symlink_to(tmp_path / "of two")
    with Server("--repository", linked, "--load-all", f"third={folder / 'one.so'}", "--budget", "20MB") as server:
        assert states(server) == dict.fromkeys(("first", "second", "third"), "READY")
        assert all(works(server, name, asked) for name in ("first", "second", "third"))


def test_a_replaced_library_is_loaded_anew(folder, second, asked, x):
    with Server(folder / "one.so", "--budget", "20MB") as server:
        for suffix in ("weights", "so"):
            os.replace(folder / f"two.{suffix}", folder / f"one.{suffix}")
        assert works(server, "one", asked)
        assert change(server, "one", "load") == (200, "")
        said = server.client.post("/v2/models/one/infer", json=asked).json()
        close_to(np.array(said["outputs"][0]["data"], "f4"), second.reference(x))


def test_what_the_budget_has_no_room_for_is_refused_with_numbers(folder, first, asked):
    builder.export(
        folder / "larger.so", "larger_", plan=lambda program: replace(program, rungs=tuple(map(with_page, program.rungs)))
    )
    budget = str(first.program.rungs[0].budget + 100_000)
    with Server(folder / "one.so", "--repository", folder, "--budget", budget, "--request-memory", "100kB") as server:
        code, error = change(server, "larger", "load")
        assert code == 409 and "405604 bytes is too small" in error and "409600 bytes" in error
        assert states(server)["larger"] == "UNAVAILABLE" and works(server, "one", asked)


def test_damaged_weights_are_an_error_for_that_model_only(folder, first, asked):
    with Server(folder / "one.so", folder / "two.so", "--budget", "2MB") as server:
        assert works(server, "one", asked) and works(server, "two", asked)
        with open(folder / "one.weights", "r+b") as file:
            file.truncate(4096)
        response = server.client.post("/v2/models/one/infer", json=asked)
        assert response.status_code == 500 and "one.weights" in response.json()["error"]
        assert works(server, "two", asked)
        copy_of(first, folder, "spare")
        for suffix in ("weights", "so"):
            os.replace(folder / f"spare.{suffix}", folder / f"one.{suffix}")
        assert change(server, "one", "load") == (200, "") and works(server, "one", asked)
        os.unlink(folder / "two.weights")  # whoever has it open reads on
        assert works(server, "two", asked)
        assert server.metric("flexcomp_requests_total", model="one", outcome="failed") == 1


def test_networks_with_state_are_refused(folder):
    node, info, f4 = helper.make_node, helper.make_tensor_value_info, TensorProto.FLOAT
    inputs, outputs = ([info(name, f4, [64]) for name in names] for names in (("x", "h"), ("y", "h_out")))
    graph = helper.make_graph([node("Add", ["x", "h"], ["y"]), node("Neg", ["y"], ["h_out"])], "sum", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    flexcomp.build(model, state={"h_out": "h"}, threads=1).export_library(folder / "sum.so")
    with Server("--repository", folder, "--budget", "20MB") as server:
        code, error = change(server, "sum", "load")
        assert code == 400 and 'keeps "h" from one inference to the next, which all clients would share' in error
