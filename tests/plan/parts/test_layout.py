"""Layouts of buffers, scratch and finest segments."""

from hypothesis import given
from hypothesis import strategies as st

from flexcomp.plan import PAGE, fits
from flexcomp.plan.parts.layout import smallest_layout
from tests.plan.problems import problems


@given(problems(), st.integers(-3, 3), st.integers(0, PAGE - 1))
def test_what_fits_is_what_the_smallest_layout_needs(problem, pages, rest):
    least = smallest_layout(problem).nbytes
    arena = max(0, least + pages * PAGE + rest)
    assert fits(problem, arena) == (least <= arena)
