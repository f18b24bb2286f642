"""Progress of long work on stderr: bars on a terminal, one line per stage elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class BuildProgress:
    """A context manager whose call `progress(stage, done, total)` suits `flexcomp.build`."""

    def __init__(self, title: str, console: Console | None = None) -> None:
        self._title = title
        self._console = console or Console(stderr=True)
        self._stage = ""
        self._stage_start = 0.0
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bars.add_task(title, total=None)

    def __enter__(self) -> BuildProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finish_stage()
        self._bars.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage != self._stage:
            self._finish_stage()
            self._stage, self._stage_start = stage, time.monotonic()
            self._bars.reset(self._task)
        self._bars.update(self._task, description=f"{self._title}: {stage}", completed=done, total=total or None)

    def _finish_stage(self) -> None:
        if self._stage:
            seconds = time.monotonic() - self._stage_start
            self._console.print(f"{self._title}: {self._stage} ({seconds:.1f} s)", highlight=False, markup=False)
        self._stage = ""
