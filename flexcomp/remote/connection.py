"""A connection to a device: calls whose errors are told apart, files there, its memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

from flexcomp.errors import DeviceError, FlexcompError
from flexcomp.remote.address import last_line

_CALL_FAILED = "Error caught from RPC call:"  # TVM's client puts this before errors of the server's functions
Self = TypeVar("Self", bound="Connection")


class Connection:
    """An RPC session with the device called `name`."""

    def __init__(self, session: Any, name: str) -> None:
        self._session = session  # tvm.rpc.RPCSession
        self._closed = False
        self.name = name

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

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
