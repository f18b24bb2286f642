"""`flexcomp profile`: measure this machine, or its GPU, for plans that fit it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flexcomp.cli.common import CANNOT_RUN, exit_on_error
from flexcomp.files import require_writable
from flexcomp.report.progress import BuildProgress

if TYPE_CHECKING:
    from flexcomp.device import DeviceProfile
    from flexcomp.profiling import Observations
    from flexcomp.runtime import DeviceRates


def profile(
    libraries: Annotated[list[Path], typer.Argument(help="Libraries written by `flexcomp build`, to be run.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The profile to write, for `build --profile`.")],
    threads: Annotated[int | None, typer.Option(min=1, help="Compute threads; by default as built.")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Inferences for each budget that is run.")] = 8,
) -> None:
    """Measure this machine, or its GPU, by running LIBRARIES."""
    with exit_on_error(CANNOT_RUN):
        from flexcomp.device import cache_of_copies
        from flexcomp.profiling import Library, fit, observe
        from flexcomp.program import require_library

        for library in libraries:
            require_library(library)
        require_writable(output, reading=[file for path in libraries for file in (path, path.with_suffix(".weights"))])
        with BuildProgress(output.name) as progress:
            seen = observe([one for path in libraries for one in Library.shapes_of(path)], threads, repeat, progress)
        found = fit(seen, min(cache_of_copies(path.with_suffix(".weights")) for path in libraries))
        found.save(output)
    show(seen, found, output)


def show(seen: Observations, found: DeviceProfile, output: Path) -> None:
    """Print the measured profile."""
    from flexcomp.profiling import load_table
    from flexcomp.report import stdout_console

    console = stdout_console()
    console.print(load_table(seen.loads))
    delays = found.delays
    for line in (
        f"{len(found.kernels)} kernels in {len(found.families)} families, on {found.threads} threads",
        f"storage: {found.storage_bytes_per_s / 1e6:.0f} MB/s and {found.load_overhead_s * 1e6:.0f} us for each load",
        f"computing takes {found.load_disturbance * found.storage_bytes_per_s:.1%} longer while it loads"
        + (f" into more than {found.load_cache_bytes / 2**20:.1f} MiB" if found.load_cache_bytes else "")
        + (f"; loads are {found.load_together:.2f} times as fast while it waits and helps" if found.load_together > 1 else "")
        + (f", and {found.load_cached:.2f} times as fast into less" if found.load_cached > 1 else ""),
        *([f"weights are prepared at {found.prepare_bytes_per_s / 1e9:.1f} GB/s"] if found.prepare_bytes_per_s else []),
        *([_of_gpu(seen.device)] if seen.device else []),
        f"SwapNet's delays: alpha {delays.alpha * 1e9:.3f} ns/B, beta {delays.beta * 1e6:.1f} us, "
        f"gamma {delays.gamma * 1e12:.2f} ps/FLOP, eta {delays.eta * 1e6:.1f} us",
        f"wrote {output}",
    ):
        console.print(line, markup=False, highlight=False)


def _of_gpu(rates: DeviceRates) -> str:
    copies = f"copies at {rates.copy_bytes_per_s / 1e6:.0f} MB/s, " if rates.copy_bytes_per_s else ""
    launch = f"{rates.launch_s * 1e6:.1f} us for a launch"
    return f"GPU: {copies}{launch}, {rates.event_s * 1e6:.1f} us for one stream to wait for the other"
