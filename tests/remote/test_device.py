"""A stock Python server behind a tracker: upload, run, time; and what is said when something is not as it should be."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time

import numpy as np
import onnxruntime
import pytest

import flexcomp
from flexcomp import remote
from flexcomp.cli import remote as commands
from flexcomp.device import kernel_key
from flexcomp.remote.device import _PIECE_NBYTES
from tests.cli.conftest import tiny_network
from tests.operators.recurrent import Case
from tests.padded import masked_encoder, masked_library
from tests.remote.servers import KEY, kill, python_servers, running_tracker
from tests.shaped import INPUTS, encoder

CELL = Case(steps=1, width=4, hidden=8, optional=("initial_h", "initial_c"), outputs=("Y", "Y_h"))


@pytest.fixture(scope="module")
def device(board):
    with remote.connect(tracker=board, key=KEY) as device:
        yield device


@pytest.fixture(scope="module")
def network(device, tiny):
    return device.upload(tiny)


def test_outputs_are_those_of_onnxruntime(network, image):
    (expected,) = onnxruntime.InferenceSession(tiny_network().SerializeToString()).run(None, {"x": image})
    for budget in ("min", 0.6, None):
        with network.open(budget, threads=2) as session:
            for _ in range(2):
                (output,) = session.run({"x": image}).values()
                np.testing.assert_allclose(output, expected, atol=1e-5 * abs(expected).max())
            state = session.stats()
        assert state["arena_bytes"] <= state["budget_bytes"] and state["runs"] == 2


def test_the_budget_can_be_switched(network, image):
    with network.open("min") as session:
        (small,) = session.run(image).values()
        rung = session.set_budget(None)
        assert rung == network.ladder[-1]
        (large,) = session.run(image).values()
        np.testing.assert_allclose(small, large, atol=1e-5 * abs(large).max())
        with pytest.raises(flexcomp.BudgetError, match="smallest feasible"):
            session.set_budget(10)


def test_inferences_are_timed_on_the_device(network):
    with network.open("min", threads=1) as session:
        found = session.measure(repeat=5)
    assert len(found.latency_ms) == len(found.stall_ms) == 5
    assert found.threads == 1 and found.budget_bytes == network.ladder[0].budget_bytes
    assert 0 < found.median_ms < 1000
    assert set(found.bytes_read) == {network.ladder[0].streamed_bytes}


def test_shapes_and_lengths_between(device, tmp_path):
    network = device.upload(masked_library(tmp_path / "padded.so"))
    reference = onnxruntime.InferenceSession(masked_encoder().SerializeToString())
    with network.open("min") as session:
        for n in (12, 3, 5, 12, 1):
            given = {"ids": np.arange(n).reshape(1, n), "mask": np.ones((1, n), "int64")}
            for found, wanted in zip(session.run(given).values(), reference.run(None, given), strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
        with pytest.raises(flexcomp.InputError, match="13 elements along axis 1, and the library was built for 12 at most"):
            session.run({"ids": np.ones((1, 13), "int64"), "mask": np.ones((1, 13), "int64")})


def test_a_shape_that_a_library_on_a_device_lacks(device, tmp_path):
    shapes = {"input_shapes": INPUTS, "shapes": {"n": [16, 4]}}
    flexcomp.build(encoder(), threads=1, probe=False, progress=False, **shapes).export_library(tmp_path / "exact.so")
    network = device.upload(tmp_path / "exact.so")
    for n in (16, 4):
        assert network.fitted(np.ones((1, n), "int64")).outputs[0].shape == (1, n, 64)
    with pytest.raises(flexcomp.InputError, match='"ids" has 5 elements along axis 1, and the library was built for 4, 16'):
        network.fitted(np.ones((1, 5), "int64"))


def test_every_shape_is_measured_and_profiled(device, tmp_path):
    shapes = {"input_shapes": INPUTS, "shapes": {"n": [16, 4]}}
    library = tmp_path / "encoder.so"
    flexcomp.build(encoder(), threads=1, probe=False, progress=False, **shapes).export_library(library)
    network = device.upload(library)
    large, small = network.in_shapes()
    assert (large.extents, small.extents) == ({"n": 16}, {"n": 4}) and large.program != small.program
    for shape in (small, large):
        assert shape.budgets[0] == network.info["min_budget_bytes"]
        with network.open("min") as session:
            session.use(shape.number)
            found = session.measure(repeat=1)
            assert found.budget_bytes in shape.predicted_ms and session.stats()["shape"] == shape.number
        taken = shape.traces(shape.budgets[-1], 1, 2)
        assert len(taken.inferences[0].steps) == len(shape.program.rungs[taken.rung].steps)
    seen = remote.observe_device(device, [library], 1, 1)
    keys = [{kernel_key(layer) for layer in of.layers} for of in network.programs]
    assert seen.plans >= 4 and all(own & {*seen.layers} for own in (keys[0] - keys[1], keys[1] - keys[0]))
    found = commands._measured(network, ["min"], 1, 1, lambda stage, done, total: None)
    assert [commands._measured_facts(*one)["extents"] for one in found] == [{"n": 16}, {"n": 4}]


def test_state_stays_on_the_device(device, tmp_path):
    flexcomp.build(CELL.model(), state={"Y_h": "initial_h"}, threads=1).export_library(tmp_path / "cell.so")
    rng = np.random.default_rng(0)
    x, c = rng.standard_normal((4, 1, 1, 4), dtype=np.float32), np.zeros((1, 1, 8), np.float32)
    with device.upload(tmp_path / "cell.so").open() as session, flexcomp.load(tmp_path / "cell.so") as here:
        for one in x:
            (far,), (near,) = (opened.run(one, c).values() for opened in (session, here))
            np.testing.assert_array_equal(far, near)
        state = session.state()
        assert list(state) == ["initial_h"] and np.array_equal(state["initial_h"], here.state()["initial_h"])
        session.set_state({"initial_h": -state["initial_h"]})
        assert np.array_equal(session.state()["initial_h"], -state["initial_h"])
        with pytest.raises(flexcomp.InputError, match='keeps no state "h"'):
            session.set_state({"h": c})
        assert session.measure(repeat=2).median_ms > 0
        session.reset_state()
        assert not session.state()["initial_h"].any()


def test_weights_arrive_in_pieces(device, network, tiny, tmp_path):
    """A file of several pieces, the last one short."""
    data = np.random.default_rng(0).bytes(2 * _PIECE_NBYTES + 12345)
    (tmp_path / "large").write_bytes(data)
    seen = []
    device._send(network, tmp_path / "large", lambda stage, done, total: seen.append((done, total)))
    assert seen == [(min((i + 1) * _PIECE_NBYTES, len(data)), len(data)) for i in range(3)]
    assert bytes(device._session.download(network.weights_name)) == data
    device._send(network, tiny.with_suffix(".weights"), lambda *_: None)
    with network.open("min") as session:
        session.run(np.zeros((1, 3, 32, 32), "f4"))


def test_wrong_inputs_and_budgets(network, image):
    with network.open() as session:
        with pytest.raises(flexcomp.InputError, match='inputs must be "x", not "y"'):
            session.run({"y": image})
        with pytest.raises(flexcomp.InputError, match='input "x" must be float32'):
            session.run(image[..., :3])
        session.run(image)
    with pytest.raises(flexcomp.BudgetError, match="smallest feasible"):
        network.open(10)
    with pytest.raises(flexcomp.InputError, match="threads"):
        network.open(threads=0)
    with pytest.raises(flexcomp.InputError, match='no option "cores"'):
        network.open(cores=3)


def test_more_memory_than_the_device_has(network, monkeypatch):
    needed = network.ladder[-1].arena_bytes
    poorer = json.dumps(network.machine | {"memory_available_bytes": needed - 1})
    monkeypatch.setattr(network, "_text", lambda name: poorer)
    with pytest.raises(flexcomp.BudgetError, match=rf"has {needed - 1} bytes of memory available"):
        network.open()
    network.open("min").close()


def test_what_cannot_be_run_is_said_before_weights_are_sent(device, tiny):
    done = []

    def refuse(network):
        assert [port.name for port in network.inputs] == ["x"]
        raise flexcomp.InputError("no")

    with pytest.raises(flexcomp.InputError, match="no"):
        device.upload(tiny, progress=lambda *piece: done.append(piece), check=refuse)
    assert not done


def test_broken_files(device, tiny, tmp_path):
    with pytest.raises(flexcomp.ArtifactError, match=r"there is no library .*none\.so"):
        device.upload(tmp_path / "none.so")
    shutil.copy(tiny, tmp_path / "alone.so")
    with pytest.raises(flexcomp.ArtifactError, match=r"alone\.weights is missing"):
        device.upload(tmp_path / "alone.so")
    weights = tiny.with_suffix(".weights").read_bytes()
    (tmp_path / "alone.weights").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(flexcomp.ArtifactError, match="alone"):
        device.upload(tmp_path / "alone.so").open()


def test_addresses():
    with pytest.raises(flexcomp.InputError, match="either the address of an RPC server or a tracker"):
        remote.connect()
    with pytest.raises(flexcomp.InputError, match='"nowhere" is not HOST:PORT of an RPC server'):
        remote.connect("nowhere")
    with pytest.raises(flexcomp.InputError, match='"host:0" is not HOST:PORT of a tracker'):
        remote.connect(tracker="host:0", key=KEY)
    with pytest.raises(flexcomp.InputError, match="a tracker is asked for a key"):
        remote.connect(tracker="host:9190")


def test_nobody_there(board):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and says nothing
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(flexcomp.DeviceError, match=rf"no answer from {address} within 0\.5 s"):
            remote.connect(address, wait_ms=500)
    with pytest.raises(flexcomp.DeviceError, match=f"no RPC server answers at {address}"):
        remote.connect(address)
    with pytest.raises(flexcomp.DeviceError, match=rf"no tracker answers at {address}.*tvm\.exec\.rpc_tracker"):
        remote.connect(tracker=address, key=KEY)
    with pytest.raises(flexcomp.DeviceError, match='knows no device with the key "phone", but "board"'):
        remote.connect(tracker=board, key="phone")


def test_a_busy_device_is_waited_for(board, device):
    with pytest.raises(flexcomp.DeviceError, match=r"all 1 devices .* were busy for 0\.5 s"):
        remote.connect(tracker=board, key=KEY, wait_ms=500)


def test_a_device_that_dies(tiny):
    with running_tracker() as tracker, python_servers(tracker) as (server,):
        (known,) = remote.tracked_devices(tracker)
        assert known.key == KEY
        with pytest.raises(flexcomp.DeviceError, match="another key than"):
            remote.connect(known.address, key="phone")
        device = remote.connect(tracker=tracker, key=KEY)
        network = device.upload(tiny)
        with pytest.raises(flexcomp.DeviceError, match="ended the session"), network.open("min") as session:
            threading.Timer(0.3, kill, [server]).start()
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                session.run(np.zeros((1, 3, 32, 32), "f4"))
        with pytest.raises(flexcomp.DeviceError, match="ended the session"):
            network.open("min")
        device.close()
        with pytest.raises(flexcomp.DeviceError, match="is closed"):
            network.open("min")
