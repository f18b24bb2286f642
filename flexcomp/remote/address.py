"""Finding servers and trackers, and saying which of them is away."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flexcomp.arguments import checked_text
from flexcomp.errors import DeviceError, InputError

_KNOCK_S = 10.0


@dataclass(frozen=True)
class TrackedDevice:
    """A device that a tracker knows, busy or free."""

    key: str
    address: str  # "host:port"


def parse_address(text: str, what: str) -> tuple[str, int]:
    """Host and port of "host:port". Raises InputError about the address of `what`."""
    host, _, port = checked_text(text, f"the address of {what}").rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise InputError(f'"{text}" is not HOST:PORT of {what}')
    return host, int(port)


def open_tracker(address: str):
    """A `tvm.rpc.TrackerSession`. Raises InputError, or DeviceError if none answers there."""
    from tvm import rpc

    host, port = parse_address(address, "a tracker")
    try:
        socket.create_connection((host, port), _KNOCK_S).close()  # TVM would knock for a minute
        return within(_KNOCK_S, lambda: rpc.connect_tracker(host, port), f"what listens at {address} is no tracker")
    except (OSError, RuntimeError) as error:
        raise DeviceError(
            f"no tracker answers at {address}: {last_line(error)}; start one with python -m tvm.exec.rpc_tracker"
        ) from error


def tracked_devices(tracker: str, key: str | None = None) -> list[TrackedDevice]:
    """The devices that the tracker at "host:port" knows, with `key` or all. Raises InputError or DeviceError."""
    session = open_tracker(tracker)
    try:
        servers = session.summary()["server_info"]
    except (OSError, RuntimeError) as error:
        raise DeviceError(f"the tracker at {tracker} is gone: {last_line(error)}") from error
    found = [
        TrackedDevice(server["key"].removeprefix("server:"), ":".join(map(str, server["addr"]))) for server in servers
    ]
    return sorted((d for d in found if key in (None, d.key)), key=lambda device: (device.key, device.address))


def open_direct(address: str, key: str, wait_s: float):
    """A `tvm.rpc.RPCSession` with the server at an address. Raises InputError or DeviceError."""
    from tvm import rpc

    host, port = parse_address(address, "an RPC server")
    silence = f"no answer from {address} within {wait_s:g} s: it is away, serves another client, or is no RPC server"
    try:
        return within(wait_s, lambda: rpc.connect(host, port, key), silence)
    except RuntimeError as error:
        raise DeviceError(_refusal(address, key, str(error))) from error


def open_tracked(tracker: str, key: str, wait_s: float):
    """A `tvm.rpc.RPCSession` with a free device of a tracker. Raises InputError or DeviceError."""
    known = tracked_devices(tracker)
    count = sum(device.key == key for device in known)
    if not count:
        others = ", ".join(sorted({f'"{device.key}"' for device in known}))
        raise DeviceError(
            f'the tracker at {tracker} knows no device with the key "{key}"'
            + (f", but {others}" if others else ": start an RPC server on the device")
        )
    session = open_tracker(tracker)
    try:
        busy = f'all {count} devices with the key "{key}" were busy for {wait_s:g} s'
        return within(wait_s, lambda: session.request(key, max_retry=1), busy)
    except DeviceError:
        session.close()  # the tracker forgets the request
        raise
    except (OSError, RuntimeError) as error:
        raise DeviceError(_refusal(f"the device that the tracker at {tracker} named", key, str(error))) from error


def within(seconds: float, call: Callable[[], Any], otherwise: str) -> Any:
    """The result or error of `call`, or DeviceError if that takes too long; the call then goes on in its own thread."""
    results: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            results.put((call(), None))
        except Exception as error:  # handed to the caller
            results.put((None, error))

    threading.Thread(target=work, daemon=True).start()
    try:
        result, error = results.get(timeout=seconds)
    except queue.Empty:
        raise DeviceError(otherwise) from None
    if error is not None:
        raise error
    return result


def last_line(error: BaseException) -> str:
    """The last line of an error's text, where TVM's errors name the cause."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def _refusal(server: str, key: str, reason: str) -> str:
    """TVM's reasons in our words."""
    if "cannot find server that matches key" in reason:
        return f'{server} has another key than "{key}"; a device behind a tracker is reached through that only'
    if "is not TVM RPC server" in reason:
        return f"what listens at {server} is no RPC server of TVM"
    if "protocol version mismatch" in reason:
        return f"{server} runs another version of TVM: flexcomp works with servers of TVM 0.27"
    return f"no RPC server answers at {server}: {last_line(RuntimeError(reason))}"
