"""What a soak counts against memory, and what makes it fail."""

from __future__ import annotations

import pytest

from benchmarks.soak.__main__ import GROWTH, LIMIT, Tally
from benchmarks.soak.memory import Allowance, Share


def test_calls_that_overlap_count_as_the_largest_until_one_is_alone():
    allowance = Allowance()
    share, other = Share(allowance, 100), Share(allowance, 7)
    with share.changing(50):
        assert allowance.peak() == 107
    allowance.begin()
    assert allowance.peak() == 57
    with share.changing(200):
        with share.changing(10):
            pass
        allowance.begin()
        assert allowance.peak() == 207  # the smaller one may have come first
    allowance.begin()
    assert allowance.peak() == 207
    with share.changing(20):
        pass
    with share.changing(30, settles=False):  # a watch may do nothing
        pass
    share.end()
    other.end()
    allowance.begin()
    assert allowance.peak() == 0


def test_a_call_that_fails_settles_nothing():
    allowance = Allowance()
    share = Share(allowance, 100)
    with pytest.raises(RuntimeError), share.changing(50):
        raise RuntimeError
    allowance.begin()
    assert allowance.peak() == 100


def told(rounds: int, idle: int, over: int = 0, failures: int = 0) -> dict:
    return {"round": rounds, "idle_rss_bytes": idle, "over_bytes": over, "counts": {"run": rounds}, "failures": failures}


@pytest.mark.parametrize(
    ("second_half", "over", "failures", "trouble", "good"),
    [
        ([100, 100 + GROWTH], LIMIT, 0, "", True),
        ([100, 101 + GROWTH], 0, 0, "", False),
        ([101 + GROWTH, 100], 0, 0, "", False),
        ([100, 100], LIMIT + 1, 0, "", False),
        ([100, 100], 0, 1, "", False),
        ([100, 100], 0, 0, "the worker was ended by Segmentation fault", False),
    ],
)
def test_what_is_good(second_half, over, failures, trouble, good):
    tally = Tally(trouble=trouble)
    for number, idle in enumerate([10, 50 << 20, *second_half]):  # the first half may grow
        tally.add(1800.0 * (number + 0.5), told(number + 1, idle, over if number == 1 else 0, failures))
    assert tally.summary(120, seed=1)["good"] == good
    assert tally.summary(120, seed=1)["rounds"] == 4


def test_a_soak_in_which_nothing_ran_is_not_good():
    assert not Tally().summary(120, seed=1)["good"]
