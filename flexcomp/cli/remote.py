"""`flexcomp remote`: run, time and measure compiled networks on devices reached by TVM's RPC."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.table import Table

from flexcomp.cli.command import Command, Group
from flexcomp.cli.common import (
    CANNOT_BUILD,
    CANNOT_RUN,
    checked_budget,
    exit_on_error,
    parse_files,
    read_input,
)
from flexcomp.cli.names import BUDGETS, completed
from flexcomp.cli.profile import show
from flexcomp.cli.rpc_options import Rpc, RpcKey, RpcTracker, RpcWaitMs, require_one_device
from flexcomp.errors import InputError
from flexcomp.files import replacing, require_folder, require_writable
from flexcomp.program import require_library
from flexcomp.report import Progress, budget_rows, median_row, new_table, stdout_console
from flexcomp.report.progress import BuildProgress
from flexcomp.runtime import Budget, made_inputs, parse_budget, resolve_in
from flexcomp.units import enough, human_bytes

if TYPE_CHECKING:
    from flexcomp.remote import Device, Measurement, RemoteNetwork, RemoteShape

app = typer.Typer(cls=Group, no_args_is_help=True, help="Run, time and measure libraries on devices behind TVM's RPC.")

Library = Annotated[Path, typer.Argument(help="A library written by `flexcomp build`, its weights next to it.")]
Memory = Annotated[
    str | None,
    typer.Option(
        callback=checked_budget,
        autocompletion=completed(BUDGETS),
        help="Memory; by default the smallest that is nearly as fast as any.",
    ),
]
Threads = Annotated[int | None, typer.Option(min=1, help="Compute threads; by default as built.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command(cls=Command)
def devices(rpc_tracker: Annotated[str, typer.Option(metavar="HOST:PORT", help="The tracker.")]) -> None:
    """List the devices that a tracker knows."""
    with exit_on_error(CANNOT_RUN):
        from flexcomp.remote import tracked_devices

        found = tracked_devices(rpc_tracker)
    for device in found:
        typer.echo(f"{device.key}  {device.address}")


@app.command(cls=Command)
def run(
    library: Library,
    rpc: Rpc = None,
    rpc_tracker: RpcTracker = None,
    rpc_key: RpcKey = None,
    rpc_wait_ms: RpcWaitMs = 30_000,
    budget: Memory = None,
    threads: Threads = None,
    repeat: Annotated[int, typer.Option(min=1, help="Number of inferences.")] = 1,
    input: Annotated[
        list[str] | None, typer.Option(metavar="NAME=FILE.npy", help="An input. Other inputs are random; integers are zero.")
    ] = None,
    output_dir: Annotated[Path | None, typer.Option(help="Write each output here as NAME.npy.")] = None,
    as_json: Json = False,
) -> None:
    """Run LIBRARY on a device."""
    files = parse_files(input or [])
    with exit_on_error(CANNOT_RUN):
        require_library(library)
        given = {name: read_input(path) for name, path in files.items()}
        if output_dir is not None:
            require_folder(output_dir)
    with exit_on_error(CANNOT_RUN), _connected(rpc, rpc_tracker, rpc_key, rpc_wait_ms) as device:
        arrays: dict[str, np.ndarray] = {}

        def check(network: RemoteNetwork) -> None:
            arrays.update(_inputs(network, given))
            network.fitted(arrays)
            resolve_in(budget, network.info)

        network = _upload(device, library, check)
        states = []
        with network.open(budget, threads) as session:
            for _ in range(repeat):
                outputs = session.run(arrays)
                states.append(session.stats())
        if output_dir is not None:
            from flexcomp.runtime import output_file

            for name, array in outputs.items():
                with replacing(output_file(output_dir, name)) as partial:
                    np.save(partial, array)
    facts = _facts(network, states, budget)
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        stdout_console().print(_run_table(str(library), facts, parse_budget(budget)))


@app.command(cls=Command)
def measure(
    library: Library,
    rpc: Rpc = None,
    rpc_tracker: RpcTracker = None,
    rpc_key: RpcKey = None,
    rpc_wait_ms: RpcWaitMs = 30_000,
    budget: Annotated[
        list[str] | None, typer.Option(help="A budget to measure, repeatable; by default all budgets of the library.")
    ] = None,
    threads: Threads = None,
    repeat: Annotated[int, typer.Option(min=1, help="Inferences for each budget.")] = 10,
    as_json: Json = False,
) -> None:
    """Time LIBRARY on a device in some or all of its budgets."""
    wanted = [checked_budget(text) for text in budget or []]
    with exit_on_error(CANNOT_RUN):
        require_library(library)
    with exit_on_error(CANNOT_RUN), _connected(rpc, rpc_tracker, rpc_key, rpc_wait_ms) as device:
        network = _upload(device, library, lambda network: [resolve_in(one, network.info) for one in wanted])
        with BuildProgress(library.name) as progress:
            found = _measured(network, wanted, threads, repeat, progress)
    if as_json:
        typer.echo(json.dumps([_measured_facts(shape, one) for shape, one in found]))
    else:
        stdout_console().print(_measured_table(str(library), found))


@app.command(cls=Command)
def profile(
    libraries: Annotated[list[Path], typer.Argument(help="Libraries written by `flexcomp build`, to be run.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The profile to write, for `build --profile`.")],
    rpc: Rpc = None,
    rpc_tracker: RpcTracker = None,
    rpc_key: RpcKey = None,
    rpc_wait_ms: RpcWaitMs = 30_000,
    threads: Threads = None,
    repeat: Annotated[int, typer.Option(min=1, help="Inferences for each budget that is run.")] = 8,
) -> None:
    """Measure a device's kernels and storage by running LIBRARIES."""
    with exit_on_error(CANNOT_RUN):
        for library in libraries:
            require_library(library)
        require_writable(output, reading=[file for path in libraries for file in (path, path.with_suffix(".weights"))])
    with exit_on_error(CANNOT_RUN), _connected(rpc, rpc_tracker, rpc_key, rpc_wait_ms) as device:
        from flexcomp.profiling import fit
        from flexcomp.remote import observe_device

        with BuildProgress(output.name) as progress:
            seen = observe_device(device, libraries, threads, repeat, progress)
        found = fit(seen)
        found.save(output)
    show(seen, found, output)


@app.command(cls=Command)
def server(
    output: Annotated[Path, typer.Option("--output", "-o", help="A new folder, or an archive NAME.tar.gz.")],
    target: Annotated[str, typer.Option(help="The device, as for build.")] = "aarch64",
    cxx: Annotated[
        str | None, typer.Option(help="The C++ compiler for the device; by default e.g. aarch64-linux-gnu-g++.")
    ] = None,
) -> None:
    """Make an RPC server for devices without TVM, to copy there."""
    with exit_on_error(CANNOT_BUILD):
        from flexcomp.remote import package_server

        names = package_server(output, target, cxx)
    typer.echo(f"{output}: {', '.join(names)}")


@contextmanager
def _connected(rpc: str | None, tracker: str | None, key: str | None, wait_ms: float) -> Iterator[Device]:
    require_one_device(rpc, tracker, key)
    from flexcomp.remote import connect

    with connect(rpc, tracker=tracker, key=key, wait_ms=wait_ms) as device:
        yield device


def _upload(device: Device, library: Path, check: Callable[[RemoteNetwork], object]) -> RemoteNetwork:
    with BuildProgress(library.name) as progress:
        return device.upload(library, progress=progress, check=check)


def _inputs(network: RemoteNetwork, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The given arrays, and random ones (integers: zero) for the other inputs."""
    if unknown := set(given) - {port.name for port in network.inputs}:
        names = ", ".join(port.name for port in network.inputs)
        raise InputError(f"the model has no input called {min(unknown)}; it has {names}")
    ports = network.ports_for(given)
    made = dict(zip((port.name for port in ports), made_inputs(ports), strict=True))
    return {**made, **given}


def _facts(network: RemoteNetwork, states: list[dict], budget: str | None) -> dict:
    """As `flexcomp run --json` prints them, but for the memory of the process, which is the server's."""
    latencies = [state["latency_ms"] for state in states]
    same = {key: states[-1][key] for key in ("budget_bytes", "arena_bytes", "threads", "direct_io")}
    larger = [rung.budget_bytes for rung in network.ladder if rung.budget_bytes > same["budget_bytes"]]
    same |= {"asked_bytes": resolve_in(budget, network.info), "next_budget_bytes": min(larger, default=None)}
    medians = {key: statistics.median_high([state[key] for state in states]) for key in ("bytes_read", "stall_ms")}
    return {
        "machine": network.machine["machine"], "latency_ms": latencies, "median_ms": statistics.median(latencies),
        **same, **medians,
    }  # fmt: skip


def _run_table(title: str, facts: dict, budget: Budget) -> Table:
    table = Table(title=title, show_header=False)
    for label, value in (
        median_row(facts),
        ("machine", f"{facts['machine']}, {facts['threads']} threads"),
        *budget_rows(budget, facts["asked_bytes"], facts["budget_bytes"], facts["next_budget_bytes"]),
        ("arena", enough(facts["arena_bytes"], budget.units)),
        ("read from storage", human_bytes(facts["bytes_read"], budget.units)),
        ("waited for storage", f"{facts['stall_ms']:.2f} ms"),
    ):
        table.add_row(label, value)
    return table


def _measured(
    network: RemoteNetwork, budgets: list[str | None], threads: int | None, repeat: int, progress: Progress
) -> list[tuple[RemoteShape, Measurement]]:
    """Of each shape in these budgets, or in all of its plans."""
    plans = [(shape, budget) for shape in network.in_shapes() for budget in budgets or shape.budgets]
    found = []
    for done, (shape, budget) in enumerate(plans):
        progress("measure", done, len(plans))
        with network.open(budget, threads) as session:
            session.use(shape.number)
            found.append((shape, session.measure(repeat)))
    return found


def _measured_facts(shape: RemoteShape, one: Measurement) -> dict:
    extents = {"extents": dict(shape.extents)} if shape.extents else {}
    return {**extents, **vars(one), "predicted_ms": shape.predicted_ms[one.budget_bytes]}


def _measured_table(title: str, found: list[tuple[RemoteShape, Measurement]]) -> Table:
    table = new_table(title)
    several = any(shape.extents for shape, _ in found)
    for name in (*["shape"] * several, "budget", "arena", "median", "predicted", "waited", "read"):
        table.add_column(name, justify="right")
    for shape, one in found:
        extents = ", ".join(f"{name}={extent}" for name, extent in shape.extents.items())
        table.add_row(
            *[extents] * several, enough(one.budget_bytes), enough(one.arena_bytes), f"{one.median_ms:.2f} ms",
            f"{shape.predicted_ms[one.budget_bytes]:.2f} ms", f"{statistics.median(one.stall_ms):.2f} ms",
            human_bytes(statistics.median_high(one.bytes_read)),
        )  # fmt: skip
    return table
