"""`flexcomp cache`: where machine code of kernels is kept for other builds, and how to empty the folder."""

from __future__ import annotations

from typing import Annotated

import typer

from flexcomp.cli.common import CANNOT_RUN, exit_on_error
from flexcomp.units import human_bytes


def cache(clear: Annotated[bool, typer.Option("--clear", help="Remove all kept kernels.")] = False) -> None:
    """Say how many kernels are kept for other builds, and where.

    The folder is FLEXCOMP_CACHE, or in the user's folder for caches.
    """
    from flexcomp.cache import KernelCache

    kept = KernelCache()
    with exit_on_error(CANNOT_RUN):
        count, nbytes = kept.clear() if clear else kept.size()
    typer.echo(f"{kept.folder}: {count} kernels, {human_bytes(nbytes)}{', removed' if clear else ''}")
