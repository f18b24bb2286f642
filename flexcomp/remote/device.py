"""A device in use: uploads live as long as the connection."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flexcomp.arguments import checked_milliseconds
from flexcomp.errors import ArtifactError, DeviceError, FlexcompError, InputError, TargetError
from flexcomp.program import ELF_MACHINES, require_library
from flexcomp.remote.address import open_direct, open_tracked
from flexcomp.remote.connection import Connection
from flexcomp.remote.network import RemoteNetwork
from flexcomp.renamed import Renamed, milliseconds, renamed

_PIECE_NBYTES = 4 << 20
_NOT_THERE = ("cannot open shared object file", "invalid ELF header", "wrong ELF class")  # errors of other machines

Progress = Callable[[str, int, int], None]


@renamed(wait_s=Renamed("wait_ms", milliseconds))
def connect(
    address: str | None = None, *, tracker: str | None = None, key: str | None = None, wait_ms: float = 30_000
) -> Device:
    """Connect to the RPC server at `address` ("host:port"), or to a free device with `key` of a tracker ("host:port").

    Waits at most `wait_ms` milliseconds for a server that is busy. Raises InputError for a wrong address, and DeviceError,
    with the reason, if there is no such device.
    """
    wait_s = checked_milliseconds(wait_ms, "wait_ms") / 1e3
    if (address is None) == (tracker is None):
        raise InputError("give either the address of an RPC server or a tracker")
    if address is not None:
        return Device(open_direct(address, key or "", wait_s), address)
    if not key:
        raise InputError("a tracker is asked for a key")
    return Device(open_tracked(tracker, key, wait_s), f'"{key}"')


class Device(Connection):
    """A device in use; `close` frees the device for others and deletes uploads."""

    def __init__(self, session: Any, name: str) -> None:
        super().__init__(session, name)
        self._names: set[str] = set()

    def upload(
        self,
        library: str | os.PathLike[str],
        weights: str | os.PathLike[str] | None = None,
        progress: Progress = lambda stage, done, total: None,
        check: Callable[[RemoteNetwork], object] = lambda network: None,
    ) -> RemoteNetwork:
        """Bring a library and its weights, by default those next to the library, to the device, in pieces of a few MB.

        `check` looks at the network before its weights are sent, and may raise an error that prevents this.
        Raises ArtifactError for files that are missing or no compiled network, TargetError if the device is another
        machine than the library's or lacks needed features, and DeviceError if the device is lost.
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
        check(network)
        self._send(network, weights, progress)
        return network

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
