"""`flexcomp package`: everything a device needs to run a library."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flexcomp.cli.common import CANNOT_RUN, exit_on_error


def package(
    library: Annotated[Path, typer.Argument(help="A library written by `flexcomp build`, its weights next to it.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A new folder, or an archive NAME.tar.gz.")],
    cxx: Annotated[
        str | None, typer.Option(help="The C++ compiler for the device; by default e.g. aarch64-linux-gnu-g++.")
    ] = None,
) -> None:
    """Pack LIBRARY and a device's runner into one archive."""
    with exit_on_error(CANNOT_RUN):
        from flexcomp.packaging import package as make

        names = make(library, output, cxx)
    typer.echo(f"{output}: {', '.join(names)}")
