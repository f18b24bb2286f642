"""What somebody sees who waits for a build."""

import io

import pytest
from rich.console import Console

from flexcomp.report.progress import BuildProgress


class Watched:
    """Progress on a terminal whose clock stands still between reports."""

    def __init__(self) -> None:
        self.now = 0.0
        self.console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
        self.progress = BuildProgress("net.onnx", self.console, clock=lambda: self.now)

    def after(self, seconds: float, *report) -> str:
        self.now += seconds
        self.progress(*report)
        with self.console.capture() as captured:
            self.console.print(self.progress._bars.get_renderable())
        return captured.get()


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_the_time_left_of_a_phase_is_told_by_how_it_went_on(watched):
    assert "left" not in watched.after(0, "compile", 0, 100)
    assert "left" not in watched.after(2, "compile", 10, 100), "a beginning tells nothing yet"
    assert "about 16 s left" in watched.after(2, "compile", 20, 100)
    assert "about 60 s left" in watched.after(28, "compile", 40, 100)
    assert "left" not in watched.after(40, "compile", 100, 100)


def test_long_times_are_minutes(watched):
    for done in range(3):
        shown = watched.after(60, "plan", done, 10)
    assert "about 8 min left" in shown


def test_what_one_phase_took_says_nothing_of_the_next(watched):
    for done in range(4):
        watched.after(10, "plan", done, 10)
    assert "left" not in watched.after(1, "writing", 0, 5)
    watched.after(1, "writing", 1, 5)
    assert "about 3 s left" in watched.after(1, "writing", 2, 5)
