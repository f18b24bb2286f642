"""`flexcomp tune`: measure which kernels are fastest on a device."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table

from flexcomp.cli.common import (
    CANNOT_BUILD,
    exit_on_error,
    finite,
    parse_extents,
    parse_shapes,
    parse_values,
    require_model,
)
from flexcomp.cli.operator_options import Operators, custom_operators
from flexcomp.cli.rpc_options import Rpc, RpcKey, RpcTracker, RpcWaitMs, require_one_device
from flexcomp.cli.supervise import last_words
from flexcomp.cli.weight_options import Calibration, MaxError, Weights, weight_types


def tune(
    model: Annotated[Path, typer.Argument(help="An .onnx file.")],
    target: Annotated[str, typer.Option(help="The device, as for build.")] = "native",
    trials: Annotated[int, typer.Option(min=1, help="Kernels to measure, at most.")] = 200,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The database: created, or continued if it exists.")
    ] = Path("tuning.jsonl"),
    input: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:1,3,224,224", help="Shape of an input with dynamic axes; extents may be names of --shape."),
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(metavar="NAME=16,64", help="Extents of a name in --input, as for build.")
    ] = None,
    input_value: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=16000", help="The value of this input in all inferences, as for build."),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Compute threads, as for build.")] = None,
    operators: Operators = None,
    weights: Weights = None,
    max_error: MaxError = None,
    calibration: Calibration = None,
    rpc: Rpc = None,
    rpc_tracker: RpcTracker = None,
    rpc_key: RpcKey = None,
    rpc_wait_ms: RpcWaitMs = 30_000,
    timeout_ms: Annotated[
        float, typer.Option(min=1000, callback=finite, help="Milliseconds for building, and for measuring, one kernel.")
    ] = 30_000,
) -> None:
    """Measure which kernels of MODEL are fastest, for builds."""
    extents = parse_extents(shape or [])
    inputs = parse_shapes(input or [], extents)
    values = parse_values(input_value or [])
    types = weight_types(weights or [])
    if (rpc, rpc_tracker, rpc_key) != (None, None, None):
        require_one_device(rpc, rpc_tracker, rpc_key)
    with exit_on_error(CANNOT_BUILD):
        require_model(model)
        added = custom_operators(operators)
        from flexcomp import tune as tune_model

        with _Display(model.name, trials) as display:
            last_words(f"interrupted: what was measured is in {output}; the same command continues")
            report = tune_model(
                str(model),
                target,
                database=output,
                trials=trials,
                input_shapes=inputs or None,
                shapes=extents or None,
                input_values=values or None,
                threads=threads,
                address=rpc,
                tracker=rpc_tracker,
                key=rpc_key,
                wait_ms=rpc_wait_ms,
                timeout_ms=timeout_ms,
                progress=display,
                weights=types,
                max_error=max_error,
                calibration=calibration,
                custom_operators=added,
            )
    from flexcomp.report import stdout_console

    console = stdout_console()
    console.print(_table(report))
    for line in _closing_lines(report):
        typer.echo(line)


class _Display:
    """Progress on stderr: a bar with the latest trial on a terminal, one line per trial elsewhere."""

    def __init__(self, title: str, trials: int) -> None:
        self._title = title
        self._first, self._stage = True, "trying"
        self._console = Console(stderr=True)
        self._bar = Progress(
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            # The rest of the line, which a narrow terminal cuts.
            TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
            console=self._console,
            transient=True,
            expand=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task(f"{title}: preparing", total=trials)

    def __enter__(self) -> _Display:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, news) -> None:
        if news.error is not None:
            result = f"failed: {news.error}"
        else:
            result = f"{_ms(news.seconds)} (best {_ms(news.best_seconds)}, untuned {_ms(news.default_seconds)})"
        line = f"{news.layer}: {news.kernel} {result}"
        stage = "comparing again " if news.stage == "comparing" else ""
        if news.stage != self._stage:
            self._stage = news.stage
            self._bar.reset(self._task, total=news.total)
        self._bar.update(self._task, completed=news.done, description=f"{stage}{line}")
        if self._first and news.earlier:
            self._print(f"{self._title}: {news.earlier} kernels are known from earlier runs")
        self._first = False
        if not self._console.is_terminal:
            self._print(f"{self._title} {stage}{news.done}/{news.total} {line}")

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def _table(report) -> Table:
    from flexcomp.report import named, new_table

    table = new_table("layers by the time saved", "the untuned kernel above the best one")
    for name in ("layer", "×", "trials", "kernels", "time", "saved"):
        left = name in ("layer", "kernels")
        table.add_column(name, justify="left" if left else "right", overflow="fold", no_wrap=not left)
    for layer in sorted(report.layers, key=lambda layer: -layer.saved):
        table.add_row(
            layer.description, str(layer.count), str(layer.trials), named(layer.default, layer.best),
            named(_ms(layer.default_seconds), _ms(layer.best_seconds)),
            _percent(layer.saved, layer.count * (layer.default_seconds or 0)),
        )  # fmt: skip
    return table


def _closing_lines(report) -> list[str]:
    saved = report.default_seconds - report.best_seconds
    return [
        f"{report.trials} trials, {report.failed} failed; records in {report.database}",
        f"these layers: {_ms(report.default_seconds)} untuned, {_ms(report.best_seconds)} with the best kernels"
        f" ({_percent(saved, report.default_seconds)} less)",
    ]


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.3f} ms"


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "–"
