"""Shared by the commands: exit codes, one-line errors, options in their written form."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from flexcomp.errors import BudgetError, FlexcompError, InputError
from flexcomp.printable import printable
from flexcomp.runtime import parse_budget

if TYPE_CHECKING:
    import numpy as np

FAILED = 1  # printing, or an answer that is wrong
USAGE = 2
CANNOT_BUILD = 3
CANNOT_RUN = 4
_LONGEST_MS = 1e9


_CommandLineError = typer.BadParameter.__base__.__base__  # has no name in Typer


def call(app: Callable[[], int | None]) -> None:
    """Run the command line, which returns its exit code, and exit.

    Wrong usage is one line; an error in printing is one, too, and a reader that went away is none.
    """
    for argument in sys.argv:
        if not _is_text(argument):
            typer.echo(f"error: the argument {argument!r} is not UTF-8: rename the file", err=True)
            sys.exit(USAGE)
    if sys.stdout is not None:
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may lack our ×
    try:
        try:
            code = app()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except _CommandLineError as error:
        sys.exit(_refuse(error))
    except typer.Abort:
        sys.exit(FAILED)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for the rest of the buffer
        if not isinstance(error, BrokenPipeError):
            typer.echo(f"error: cannot print the result: {_words(error)}", err=True)
        sys.exit(FAILED)
    sys.exit(code)


def _refuse(error: Exception) -> int:
    """Report the error in the command line; returns the exit code."""
    context = error.ctx
    if type(error).__name__ == "NoArgsIsHelpError" or context is None:
        error.show()
        return error.exit_code
    words = _words(error.format_message()).rstrip(".")
    commands = getattr(context.command, "commands", ())
    listed = f"commands are {', '.join(commands)}" if commands else f"see {context.command_path} --help"
    typer.echo(f"error: {words}{' ' if words.endswith('?') else '; '}{listed}", err=True)
    return error.exit_code


@contextmanager
def exit_on_error(code: int) -> Iterator[None]:
    """Turn the user's errors into one line on stderr and the exit code `code`."""
    try:
        yield
    except BrokenPipeError:
        raise
    except InputError as error:
        raise _exit(_words(error), USAGE) from None
    except (FlexcompError, OSError) as error:
        raise _exit(_words(error), code) from None
    except UnicodeEncodeError as error:
        if _is_text(str(error.object)):
            raise
        raise _exit(f"the path {error.object!r} is not UTF-8: rename it", USAGE) from None
    except MemoryError:
        raise _exit("memory ran out", code) from None


def _exit(words: str, code: int) -> typer.Exit:
    typer.echo(f"error: {words}", err=True)
    return typer.Exit(code)


def _words(error: Exception | str) -> str:
    """One line; the system's errors without their numbers."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return printable(f"{os.fsdecode(error.filename)}: {error.strerror}")
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return printable(" ".join(str(error).split()))


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # a byte that the system could not decode
        return False
    return True


def require_model(model: Path) -> None:
    """Raise OSError for a model that is no file, or that this user cannot read."""
    if model.exists() and not model.is_file():
        raise OSError(f"cannot read the model {model}: it is {'a folder' if model.is_dir() else 'no file'}")
    try:
        with open(model, "rb") as file:
            empty = not file.read(1)
    except OSError as error:
        raise OSError(f"cannot read the model {model}: {error.strerror}") from None
    if empty:
        raise OSError(f"cannot read the model {model}: it is empty")


def read_input(path: str) -> np.ndarray:
    """The array in a .npy file, which stays on disk. Raises InputError for anything else."""
    import numpy as np

    if Path(path).exists() and not Path(path).is_file():
        raise InputError(f"cannot read the input {path}: it is {'a folder' if Path(path).is_dir() else 'no file'}")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError):  # whose words are about unpickling and mmap
        raise InputError(f"the input {path} is no .npy file of numbers, or it is cut short") from None
    except OSError as error:
        raise InputError(f"cannot read the input {path}: {error.strerror}") from None
    if not isinstance(array, np.ndarray):
        raise InputError(f"the input {path} is no .npy file, but an archive of several")
    return array


def finite(ms: float) -> float:
    """Option callback: refuse times that no clock reaches."""
    if not ms < _LONGEST_MS:
        raise typer.BadParameter(f"{ms:g} ms is no time to wait for")
    return ms


def checked_budget(text: str | None) -> str | None:
    """Option callback: refuse budgets that cannot be read; their value is judged by the plan."""
    if text is not None:
        try:
            parse_budget(text)
        except BudgetError as error:
            raise typer.BadParameter(str(error)) from None
    return text


def parse_shapes(options: list[str], named: Collection[str] = ()) -> dict[str, tuple[int | str, ...]]:
    """Read `NAME:1,3,224,224` options; a name may contain colons, and an extent may be one of the names `named`."""
    shapes: dict[str, tuple[int | str, ...]] = {}
    for option in options:
        name, _, extents = option.rpartition(":")
        try:
            shape = tuple(extent if extent in named else int(extent) for extent in extents.split(","))
        except ValueError:
            shape = ()
        if not name or not shape or any(isinstance(extent, int) and extent < 1 for extent in shape):
            raise typer.BadParameter(f"'{option}' is not NAME:1,3,224,224", param_hint="'--input'")
        if name in shapes:
            raise typer.BadParameter(f"the input '{name}' is given twice", param_hint="'--input'")
        shapes[name] = shape
    return shapes


def parse_extents(options: list[str]) -> dict[str, list[int]]:
    """Read `NAME=16,64` options."""
    found: dict[str, list[int]] = {}
    for option in options:
        name, _, extents = option.partition("=")
        try:
            values = [int(extent) for extent in extents.split(",")]
        except ValueError:
            values = []
        if not name or not values or min(values) < 1:
            raise typer.BadParameter(f"'{option}' is not NAME=16,64", param_hint="'--shape'")
        if name in found:
            raise typer.BadParameter(f"'{name}' is given twice", param_hint="'--shape'")
        found[name] = values
    return found


def parse_pads(options: list[str]) -> dict[str, int | float]:
    """Read `NAME=0` options."""
    found: dict[str, int | float] = {}
    for option in options:
        name, _, text = option.rpartition("=")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not name or not math.isfinite(value):
            raise typer.BadParameter(f"'{option}' is not NAME=0", param_hint="'--pad'")
        if name in found:
            raise typer.BadParameter(f"the input '{name}' is given twice", param_hint="'--pad'")
        found[name] = int(value) if value.is_integer() else value
    return found


def parse_values(options: list[str]) -> dict[str, list | int | float | bool]:
    """Read `NAME=16000` options, with commas between several numbers."""
    words: dict[str, bool] = {"true": True, "false": False}
    found: dict[str, list | int | float | bool] = {}

    def number(text: str) -> int | float | bool:
        if text.lower() in words:
            return words[text.lower()]
        try:
            return int(text)
        except ValueError:
            return float(text)

    for option in options:
        name, _, text = option.rpartition("=")
        try:
            values = [number(one) for one in text.split(",")] if name else []
        except ValueError:
            values = []
        if not values:
            raise typer.BadParameter(f"'{option}' is not NAME=16000", param_hint="'--input-value'")
        if name in found:
            raise typer.BadParameter(f"the input '{name}' is given twice", param_hint="'--input-value'")
        found[name] = values[0] if len(values) == 1 else values
    return found


def parse_states(options: list[str]) -> dict[str, str]:
    """Read `OUTPUT=INPUT` options."""
    pairs: dict[str, str] = {}
    for option in options:
        output, separator, input = option.partition("=")
        if not (output and separator and input):
            raise typer.BadParameter(f"'{option}' is not OUTPUT=INPUT", param_hint="'--state'")
        if output in pairs:
            raise typer.BadParameter(f"the output '{output}' is given twice", param_hint="'--state'")
        pairs[output] = input
    return pairs


def parse_files(options: list[str]) -> dict[str, str]:
    """Read `NAME=FILE.npy` options."""
    files: dict[str, str] = {}
    for option in options:
        name, separator, path = option.partition("=")
        if not (name and separator and path):
            raise typer.BadParameter(f"'{option}' is not NAME=FILE.npy", param_hint="'--input'")
        if name in files:
            raise typer.BadParameter(f"the input '{name}' is given twice", param_hint="'--input'")
        files[name] = path
    return files
