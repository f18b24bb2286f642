from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flexcomp.plan.parts.pages import highest, longest_run, lowest, span, starts, touched
from flexcomp.plan.parts.preload import earliest_place

pagesets = st.integers(0, 2**40 - 1)


@given(pagesets, st.integers(1, 42))
def test_starts(free: int, count: int) -> None:
    expected = [page for page in range(41) if all(free >> (page + i) & 1 for i in range(count))]
    assert [page for page in range(41) if starts(free, count) >> page & 1] == expected
    if expected:
        assert lowest(starts(free, count)) == expected[0]
        assert highest(starts(free, count)) == expected[-1]


@given(pagesets)
def test_longest_run(free: int) -> None:
    assert longest_run(free) == max(len(run) for run in f"{free:b}".split("0"))


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_touched(address: int, nbytes: int) -> None:
    address, nbytes = address * 64, nbytes * 64
    assert touched(address, nbytes) == sum(
        1 << page for page in {byte // 4096 for byte in range(address, address + nbytes, 64)}
    )


@given(st.lists(pagesets, min_size=1, max_size=12), st.data())
def test_earliest_place(free: list[int], data: st.DataObject) -> None:
    step = data.draw(st.integers(0, len(free) - 1))
    end = data.draw(st.integers(step + 1, len(free)))
    earliest = data.draw(st.integers(0, step))
    count = data.draw(st.integers(1, 8))
    expected = None
    for after in range(earliest, step + 1):
        window = span(0, 40)
        for time in range(after, end):
            window &= free[time]
        if starts(window, count):
            expected = (after, starts(window, count))
            break
    assert earliest_place(free, step, end, earliest, count) == expected
