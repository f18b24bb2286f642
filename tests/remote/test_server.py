"""Our RPC server: real aarch64 code under an emulator, an x86 client, with and without a tracker; and its options."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import flexcomp
from flexcomp import remote
from flexcomp.device.profile import kernel_key, load_profile
from flexcomp.profiling.kernel_records import Database
from flexcomp.program.prediction import from_program
from flexcomp.remote.server import SERVER, package_server
from tests.cli.conftest import tiny_network
from tests.remote.servers import EMULATOR, KEY, SYSROOT, emulated, own_server, running_tracker, wait_until_registered
from tests.tuning.brief import brief_tuning
from tests.uncompiled import planned

TARGET = "raspberry-pi-5"


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """What is copied to the device."""
    folder = tmp_path_factory.mktemp("server") / "server"
    assert package_server(folder, TARGET) == ["README", SERVER, "libtvm_ffi.so", "libtvm_runtime.so"]
    return folder


@pytest.fixture(scope="module")
def emulator() -> list[str]:
    return [EMULATOR, "-L", SYSROOT, "-E", f"LD_LIBRARY_PATH={SYSROOT}/lib"]


@pytest.fixture(scope="module")
def pi(package, emulator, tracker):
    """The tracker of an emulated device with the key "pi"."""
    with own_server(package, "--tracker", tracker, "--key", "pi", prefix=emulator):
        wait_until_registered(tracker, "pi", 1)
        yield tracker


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("aarch64") / "tiny.so"
    flexcomp.build(tiny_network(), target=TARGET, budget="0.6", threads=2, kernels="smallest").export_library(path)
    return path


@emulated
def test_an_aarch64_device_computes_the_same(pi, library, image, package):
    (expected,) = onnxruntime.InferenceSession(tiny_network().SerializeToString()).run(None, {"x": image})
    with remote.connect(tracker=pi, key="pi") as device:
        network = device.upload(library)
        assert network.machine["machine"] == "aarch64" and network.machine["cpus"] >= 1
        for budget in ("min", "0.6", None):
            with network.open(budget) as session:
                (output,) = session.run(image).values()
                np.testing.assert_allclose(output, expected, atol=1e-5 * abs(expected).max())
        assert len(list(package.glob("flexcomp-session-*"))) == 1
    _wait_until(lambda: not list(package.glob("flexcomp-session-*")), "the session's files are still there")


@emulated
def test_an_aarch64_device_is_measured_and_built_for(pi, library, cli, tmp_path):
    """By the command line, as a user does it."""
    where = ("--rpc-tracker", pi, "--rpc-key", "pi")
    done = cli("remote", "profile", library, *where, "-o", tmp_path / "device.json", "--repeat", 2)
    assert done.returncode == 0, done.stderr
    assert "storage:" in done.stdout and "SwapNet's delays" in done.stdout
    profile = load_profile(tmp_path / "device.json")
    assert profile.threads == 2 and profile.delays is not None and profile.storage_bytes_per_s > 0

    program = planned(
        tiny_network(), TARGET, "0.6", threads=2, kernels="smallest", profile=tmp_path / "device.json"
    )
    assert replace(from_program(program).storage, core_contention=0.0) == profile.storage
    used = [layer for layer in program.layers if kernel_key(layer) in profile.kernels]
    assert used


@emulated
def test_an_aarch64_device_is_tuned_for(pi, tmp_path):
    with brief_tuning():
        report = flexcomp.tune(
            tiny_network(), TARGET, database=tmp_path / "tuning.jsonl", trials=3, threads=1, tracker=pi, key="pi",
            timeout_ms=120000,
        )  # fmt: skip
    assert (report.trials, report.failed) == (3, 0)
    records = Database.read(tmp_path / "tuning.jsonl").records
    assert {record.device for record in records} == {"rpc:pi"} and all(record.seconds for record in records)


@emulated
def test_each_machine_refuses_the_libraries_of_the_other(pi, board, library, tiny):
    with remote.connect(tracker=pi, key="pi") as device:
        with pytest.raises(
            flexcomp.TargetError, match=r"was compiled for x86_64, .* is aarch64: build it with --target"
        ):
            device.upload(tiny)
        device.upload(library)  # the session goes on
    with remote.connect(tracker=board, key=KEY) as device:
        with pytest.raises(
            flexcomp.TargetError, match=r"was compiled for aarch64, .* is x86_64: build it with --target"
        ):
            device.upload(library)


@emulated
def test_missing_features_are_named(package, emulator, library):
    with own_server(package, prefix=[emulator[0], "-cpu", "cortex-a72", *emulator[1:]]) as (_, address):
        with remote.connect(address) as device, pytest.raises(flexcomp.TargetError, match=r"needs .*asimddp"):
            device.upload(library)


@pytest.fixture(scope="module")
def native(tmp_path_factory) -> Path:
    """The server for this machine."""
    folder = tmp_path_factory.mktemp("native") / "server"
    package_server(folder, "native")
    return folder


def test_it_serves_one_client_after_the_other(native, tiny, image):
    with own_server(native, "--key", KEY) as (server, address):
        for _ in range(2):
            with remote.connect(address, key=KEY) as device:
                with device.upload(tiny).open("min") as session:
                    session.run(image)
                with pytest.raises(flexcomp.DeviceError, match=r"within 0\.3 s"):
                    remote.connect(address, key=KEY, wait_ms=300)
        with pytest.raises(flexcomp.DeviceError, match="another key"):
            remote.connect(address, key="phone")
        assert server.poll() is None


def test_its_end_ends_the_session_and_removes_the_files(native, tiny):
    with own_server(native) as (server, address), remote.connect(address) as device:
        network = device.upload(tiny)
        assert list(native.glob("flexcomp-session-*"))
        os.kill(server.pid, signal.SIGTERM)
        assert server.wait(10) == -signal.SIGTERM
        assert not list(native.glob("flexcomp-session-*"))
        with pytest.raises(flexcomp.DeviceError, match="ended the session"):
            network.open("min")


def test_a_session_may_be_limited_in_time(native, tiny):
    from tvm import rpc

    with own_server(native) as (server, address):
        host, port = address.split(":")
        session = rpc.connect(host, int(port), session_timeout=1)
        time.sleep(1.5)
        with pytest.raises(RuntimeError):
            session.get_function("tvm.rpc.server.workpath")("")
        with remote.connect(address) as device:
            device.upload(tiny)
        assert server.poll() is None


def test_it_returns_to_a_tracker_that_was_away(native):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with own_server(native, "--tracker", f"127.0.0.1:{port}", "--key", KEY):
        time.sleep(0.5)  # it finds nobody
        for _ in range(2):
            with running_tracker(port) as tracker:
                wait_until_registered(tracker, KEY, 1)
                remote.connect(tracker=tracker, key=KEY).close()


def test_options(native, tmp_path):
    def outcome(*options: str) -> tuple[int, str]:
        done = subprocess.run([native / SERVER, *options], capture_output=True, text=True, check=False, timeout=30)
        return done.returncode, done.stdout + done.stderr

    assert outcome("--help") == (0, outcome("--help")[1]) and "--work-dir" in outcome("--help")[1]
    for options, reason in (
        (("--nothing", "1"), "no option --nothing"),
        (("--port", "99999"), "is no port"),
        (("--tracker", "host"), "takes HOST:PORT"),
        (("--tracker", "host:1"), "needs a --key"),
        (("--key", 'a"b'), "quotes"),
        (("--work-dir", f"{tmp_path}/none"), f"no folder {tmp_path}/none"),
        (("--port",), "takes a value"),
    ):
        code, text = outcome(*options)
        assert code == 2 and reason in text, (options, text)
    with own_server(native) as (_, address):
        code, text = outcome(
            "--host", "127.0.0.1", "--port", address.split(":")[1], "--port-end", address.split(":")[1]
        )
        assert code == 4 and "is free" in text


def test_a_machine_without_a_wheel_is_named(tmp_path):
    with pytest.raises(flexcomp.TargetError, match="riscv64"):
        package_server(tmp_path / "server", "llvm -mtriple=riscv64-linux-gnu")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(flexcomp.InputError, match="exists already"):
        package_server(tmp_path / "full")


def _wait_until(done, otherwise: str) -> None:
    deadline = time.monotonic() + 20
    while not done():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.1)
