"""Our RPC server among clients that are slow, silent, wrong, gone, or want to stay for good. All of it on the loopback."""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tvm import rpc

from flexcomp.remote.server import SERVER, package_server
from tests.remote.servers import KEY, own_server

MAGIC = 0xFF271
PATIENCE_S = 1.0


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """The server for this machine."""
    folder = tmp_path_factory.mktemp("hostile") / "server"
    package_server(folder, "native")
    return folder


@pytest.fixture
def server(package) -> Iterator[tuple[subprocess.Popen, tuple[str, int]]]:
    """One with a key and little patience; its process and address."""
    with own_server(package, "--key", KEY, "--patience", str(PATIENCE_S)) as (process, address):
        host, port = address.split(":")
        yield process, (host, int(port))
        assert process.poll() is None, "it did not survive"


def greeting(text: str, magic: int = MAGIC, length: int | None = None) -> bytes:
    return struct.pack("=ii", magic, len(text) if length is None else length) + text.encode()


def works(address: tuple[str, int], within_s: float = 10.0) -> None:
    """Fail unless somebody with the key is served."""
    start = time.monotonic()
    session = rpc.connect(*address, key=KEY, session_timeout=60)
    assert session.get_function("tvm.rpc.server.workpath")("").startswith("/")
    del session
    assert time.monotonic() - start < within_s


def wait_for(happened: Callable[[], object], what: str, seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def closed_within(connection: socket.socket, seconds: float) -> bool:
    """Whether the server hangs up, whatever it says before."""
    connection.settimeout(seconds)
    try:
        while connection.recv(1024):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


def children_of(process: subprocess.Popen) -> list[int]:
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(pid) for pid in text.split()]


def start_session(process: subprocess.Popen, address: tuple[str, int], text: str = f"client:{KEY}") -> tuple[socket.socket, int]:
    """A client that was let in and says no more; its connection, and the process that serves it."""
    client = socket.create_connection(address)
    client.sendall(greeting(text))
    assert struct.unpack("=i", client.recv(4))[0] == MAGIC
    wait_for(lambda: children_of(process), "no session began")
    return client, children_of(process)[0]


def test_a_client_that_comes_byte_by_byte_keeps_nobody_waiting(server):
    """Its whole greeting has one deadline, however lively it is."""
    _, address = server
    with socket.create_connection(address) as slow:
        start = time.monotonic()
        works(address)
        for byte in greeting(f"client:{KEY}" + " " * 500):
            try:
                slow.send(bytes([byte]))
            except OSError:
                break
            time.sleep(PATIENCE_S / 10)
        assert PATIENCE_S * 0.9 < time.monotonic() - start < PATIENCE_S * 20
    works(address)


def test_many_silent_clients_keep_nobody_waiting(server):
    """More than are let in at a time, and more than there is room for."""
    _, address = server
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(address)) for _ in range(100)]
        works(address)
        assert all(closed_within(one, 10 * PATIENCE_S) for one in silent)
    works(address)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        random.Random(0).randbytes(64),
        greeting("", length=-1),
        greeting("client:", length=2**31 - 1),
        greeting("client:", length=1017),
        greeting("server:" + KEY),
        greeting(""),
        *(greeting(f"client:{KEY} -timeout={t}") for t in ("inf", "-inf", "nan", "-1", "0", "", "1e999", "5x", "0x10")),
    ],
    ids=lambda said: repr(said[8:30]),
)
def test_nonsense_is_sent_away(server, said):
    process, address = server
    with socket.create_connection(address) as client:
        client.sendall(said)
        assert closed_within(client, PATIENCE_S / 2)
    assert not children_of(process)
    works(address)


def test_another_key_is_refused_in_words_that_tvm_knows(server):
    _, address = server
    for key in ("", KEY[:-1], KEY + "x", "x" * 900):
        with pytest.raises(RuntimeError, match="cannot find server that matches key"):
            rpc.connect(*address, key=key)
    works(address)


def test_clients_that_hang_up_are_forgotten(server):
    _, address = server
    whole = greeting(f"client:{KEY}")
    for nbytes in range(len(whole)):
        with socket.create_connection(address) as client:
            client.sendall(whole[:nbytes])
            if nbytes % 2:
                client.shutdown(socket.SHUT_WR)  # half closed: no more will come
                assert closed_within(client, PATIENCE_S / 2)
    works(address)


def test_a_client_that_leaves_behind_its_greeting_leaves_nothing(server, package):
    process, address = server
    for _ in range(20):
        with socket.create_connection(address) as client:
            client.sendall(greeting(f"client:{KEY}"))
    works(address)
    wait_for(lambda: not children_of(process), "sessions are still there")
    wait_for(lambda: not list(package.glob("flexcomp-session-*")), "files are still there")


def test_no_client_stays_for_good(package):
    """Whatever it asks for, the server's own limit holds."""
    with own_server(package, "--session-limit", "1.5") as (process, address):
        where = (address.split(":")[0], int(address.split(":")[1]))
        for asked in ("", " -timeout=1e300", " -timeout=600", " -timeout=0.2"):
            start = time.monotonic()
            client, _ = start_session(process, where, f"client:{asked}")
            assert closed_within(client, 15)
            assert time.monotonic() - start < (1.2 if "0.2" in asked else 12)
            client.close()
        assert process.poll() is None


def test_a_session_that_is_stopped_is_ended(server):
    process, address = server
    client, child = start_session(process, address)
    os.kill(child, signal.SIGSTOP)
    works(address)
    assert not Path(f"/proc/{child}").exists()
    client.close()


def test_a_session_that_goes_on_is_not_ended(server):
    process, address = server
    client, child = start_session(process, address)
    os.kill(child, signal.SIGSTOP)
    time.sleep(PATIENCE_S / 4)
    os.kill(child, signal.SIGCONT)
    time.sleep(PATIENCE_S * 2)
    assert children_of(process) == [child]
    client.close()
    works(address)


def test_a_session_that_hangs_without_its_client_is_ended(server, tmp_path):
    """What it started ends with it."""
    body = "{ fork(); while (true) sleep(1); }"
    source = f'#include <unistd.h>\nextern "C" int __tvm_ffi_hang(void*, const void*, int, void*) {body}'
    process, address = server
    library = tmp_path / "sleep.so"
    (tmp_path / "sleep.cc").write_text(source)
    subprocess.run(["g++", "-shared", "-fPIC", tmp_path / "sleep.cc", "-o", library], check=True)
    client = subprocess.Popen(
        [
            sys.executable, "-c",
            f"from tvm import rpc\ns = rpc.connect({address[0]!r}, {address[1]}, {KEY!r})\n"
            f"s.upload({str(library)!r})\nprint('uploaded', flush=True)\ns.load_module('sleep.so')['hang']()",
        ],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert client.stdout.readline().strip() == "uploaded"
    (child,) = children_of(process)
    wait_for(lambda: Path(f"/proc/{child}/task/{child}/children").read_text(), "the library was not called")
    grandchild = int(Path(f"/proc/{child}/task/{child}/children").read_text())
    client.kill()
    client.wait()
    client.stdout.close()
    works(address, within_s=15)
    wait_for(lambda: not Path(f"/proc/{child}").exists() and _gone(grandchild), "what it started is still there")


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_connections_of_sessions_are_kept_alive(server):
    """A peer that vanishes without a word would otherwise keep its session for good."""
    process, address = server
    client, _ = start_session(process, address)
    ends = [f"0100007F:{port:04X}" for port in (address[1], client.getsockname()[1])]
    table = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    (timer,) = [fields[5] for fields in table if fields[1:3] == ends]
    assert timer.startswith("02:"), timer  # the kernel's number for a connection whose peer will be asked
    client.close()


def test_it_goes_on_when_nobody_reads_its_log(package):
    process = subprocess.Popen([package / SERVER, "--port", "0", "--key", KEY], stdout=subprocess.PIPE, text=True)
    try:
        host, port = process.stdout.readline().removeprefix("listening on ").split(":")
        process.stdout.close()  # its next line ends nowhere
        for _ in range(3):
            works((host, int(port)))
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_it_listens_on_the_loopback_unless_it_is_told_to(package, tmp_path):
    def first_lines(*options: str) -> list[str]:
        process = subprocess.Popen([package / SERVER, "--port", "0", *options], stdout=subprocess.PIPE, text=True)
        try:
            os.set_blocking(process.stdout.fileno(), True)
            lines = [process.stdout.readline()]
            process.send_signal(signal.SIGTERM)
            return [*lines, *process.stdout.readlines()]
        finally:
            process.wait(20)
            process.stdout.close()

    (tmp_path / "key").write_text("secret\n")
    (here,) = first_lines()
    assert here.startswith("listening on 127.0.0.1:")
    everywhere = first_lines("--host", "0.0.0.0")
    assert any(line.startswith("warning:") and "--key" in line for line in everywhere)
    assert not any("warning" in line for line in first_lines("--host", "0.0.0.0", "--key-file", str(tmp_path / "key")))
    done = subprocess.run(
        [package / SERVER, "--port", "0", "--tracker", "192.0.2.1:9190", "--key", "pi"],
        capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    assert done.returncode == 2 and "--host 0.0.0.0" in done.stderr
