"""A connection to one device: what is uploaded lives as long as it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from flexcomp.errors import ArtifactError, DeviceError, FlexcompError, InputError, TargetError
from flexcomp.program.library import ELF_MACHINES, require_library
from flexcomp.remote.address import last_line, open_direct, open_tracked
from flexcomp.remote.network import RemoteNetwork

_PIECE_NBYTES = 4 << 20
_CALL_FAILED = "Error caught from RPC call:"  # so TVM's client begins what the server's functions report
_NOT_THERE = ("cannot open shared object file", "invalid ELF header", "wrong ELF class")  # what other machines say

Progress = Callable[[str, int, int], None]


def connect(
    address: str | None = None, *, tracker: str | None = None, key: str | None = None, wait_s: float = 30.0
) -> Device:
    """Connect to the RPC server at `address` ("host:port"), or to a free device with `key` of a tracker ("host:port").

    Waits at most `wait_s` seconds for a server that is busy. Raises InputError for a wrong address, and DeviceError,
    with the reason, if there is no such device.
    """
    if (address is None) == (tracker is None):
        raise InputError("give either the address of an RPC server or a tracker")
    if address is not None:
        return Device(open_direct(address, key or "", wait_s), address)
    if not key:
        raise InputError("a tracker is asked for a key")
    return Device(open_tracked(tracker, key, wait_s), f'"{key}"')


class Device:
    """A device in use; `close` frees it for others and deletes what was uploaded."""

    def __init__(self, session: Any, name: str) -> None:
        self._session = session  # tvm.rpc.RPCSession
        self._names: set[str] = set()
        self._closed = False
        self.name = name

    def upload(
        self,
        library: str | os.PathLike[str],
        weights: str | os.PathLike[str] | None = None,
        progress: Progress = lambda stage, done, total: None,
    ) -> RemoteNetwork:
        """Bring a library and its weights, by default those beside it, to the device, in pieces of a few MB.

        Raises ArtifactError for files that are missing or no compiled network, TargetError if the device is another
        machine than the library's or lacks features that it needs, and DeviceError if the device is lost.
        """
        library = Path(library)
        weights = library.with_suffix(".weights") if weights is None else Path(weights)
        machine = require_library(library, weights)
        name = self._new_name(library.stem)
        with self.calls(ArtifactError):
            self._session.upload(str(library), f"{name}.so")
        try:
            with self.calls(ArtifactError):
                module = self._session.load_module(f"{name}.so")
        except ArtifactError as error:
            raise self._why_not_loaded(library, machine, str(error)) from None
        network = RemoteNetwork(self, module, library, f"{name}.weights")
        if missing := network.machine["missing_features"]:
            raise TargetError(f"{library} needs {', '.join(missing)}, which the processor of {self.name} lacks")
        self._send(network, weights, progress)
        return network

    def path(self, name: str) -> str:
        """Where the device keeps the file that was uploaded as `name`."""
        with self.calls(DeviceError):
            return str(self._session.get_function("tvm.rpc.server.workpath")(name))

    def memory(self) -> Any:
        """The device's memory, for tensors that its functions take: a `tvm.runtime.Device`."""
        return self._session.cpu()

    @contextmanager
    def calls(self, kind: type[FlexcompError]) -> Iterator[None]:
        """Errors that the device reports become `kind`; anything else that RPC says, DeviceError."""
        if self._closed:
            raise DeviceError(f"the connection to {self.name} is closed")
        try:
            yield
        except (RuntimeError, OSError) as error:
            _, reported, reason = str(error).partition(_CALL_FAILED)
            if reported:
                raise kind(reason.strip().splitlines()[-1]) from None
            raise DeviceError(
                f"{self.name} ended the session: it was switched off, ran out of memory, or lost its network "
                f"({last_line(error)})"
            ) from error

    def close(self) -> None:
        """End the session. Closing twice is harmless."""
        if not self._closed:
            self._closed = True
            self._session._sess.get_function("CloseRPCConnection")()

    def __enter__(self) -> Device:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _new_name(self, stem: str) -> str:
        name, number = stem, 1
        while name in self._names:
            name, number = f"{stem}-{number}", number + 1
        self._names.add(name)
        return name

    def _send(self, network: RemoteNetwork, weights: Path, progress: Progress) -> None:
        write, path = network.function("write_piece"), self.path(network.weights_name)
        total, done = weights.stat().st_size, 0
        with open(weights, "rb") as file, self.calls(DeviceError):
            while piece := file.read(_PIECE_NBYTES):
                write(path, done, piece)
                done += len(piece)
                progress("upload", done, total)
            network.function("settle_file")(path)

    def _why_not_loaded(self, library: Path, machine: str, reason: str) -> FlexcompError:
        if any(text in reason for text in _NOT_THERE):
            here = self._machine()
            if here != machine:
                is_there = f"is {here}" if here else "seems to be something else"
                return TargetError(
                    f"{library} was compiled for {machine}, {self.name} {is_there}: build it with --target"
                )
        return ArtifactError(f"{self.name} cannot load {library}: {reason}")

    def _machine(self) -> str | None:
        """The machine that the server's own program was compiled for."""
        with self.calls(DeviceError):
            try:
                header = bytes(self._session.download("/proc/self/exe")[:20])
            except RuntimeError:
                return None
        return ELF_MACHINES.get(int.from_bytes(header[18:20], "little"))
