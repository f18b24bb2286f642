"""Progress of long work on stderr: bars on a terminal, one line per stage elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from flexcomp.printable import printable

# Kernels differ a hundredfold: the time left is estimated from all of the stage so far, not from the last seconds.
_REMEMBERED_S = 3600.0


class _TimeLeft(ProgressColumn):
    """The remaining time of the stage, from its progress so far; nothing if unknown."""

    def render(self, task: Task) -> Text:
        seconds = task.time_remaining
        if task.finished or seconds is None:
            return Text("")
        return Text(f"about {seconds} s left" if seconds < 100 else f"about {seconds / 60:.0f} min left")


class BuildProgress:
    """A context manager whose call `progress(stage, done, total)` suits `flexcomp.build`."""

    def __init__(
        self, title: str, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._title, self._clock = printable(title), clock
        self._console = console or Console(stderr=True)
        self._stage = ""
        self._stage_start = 0.0
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            _TimeLeft(),
            console=self._console,
            transient=True,
            get_time=clock,
            speed_estimate_period=_REMEMBERED_S,
            disable=not self._console.is_terminal,
        )
        self._task = self._bars.add_task(self._title, total=None)

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
            self._stage, self._stage_start = stage, self._clock()
            self._bars.reset(self._task)
        self._bars.update(self._task, description=f"{self._title}: {stage}", completed=done, total=total or None)

    def _finish_stage(self) -> None:
        if self._stage:
            seconds = self._clock() - self._stage_start
            self._console.print(f"{self._title}: {self._stage} ({seconds:.1f} s)", highlight=False, markup=False)
        self._stage = ""
