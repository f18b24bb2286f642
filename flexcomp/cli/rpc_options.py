"""Options of `remote` and `tune` that name a device behind TVM's RPC."""

from __future__ import annotations

from typing import Annotated

import typer

from flexcomp.cli.common import finite

Rpc = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="The device's RPC server.")]
RpcTracker = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Or: a tracker that knows the device.")]
RpcKey = Annotated[
    str | None, typer.Option(metavar="KEY", help="The device's name at the tracker; with --rpc, the server's key.")
]
RpcWaitMs = Annotated[float, typer.Option(min=100, callback=finite, help="Milliseconds to wait for a device that is busy.")]


def require_one_device(rpc: str | None, tracker: str | None, key: str | None) -> None:
    """Raise BadParameter unless the options name one server, or one key of one tracker."""
    if (rpc is None) == (tracker is None):
        raise typer.BadParameter("give --rpc, or --rpc-tracker and --rpc-key", param_hint="'--rpc'")
    if tracker is not None and key is None:
        raise typer.BadParameter("--rpc-tracker needs --rpc-key", param_hint="'--rpc-key'")
