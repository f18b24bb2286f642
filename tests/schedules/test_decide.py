"""A kernel is taken instead of the default if it is faster by more than noise."""

from flexcomp.schedules.decide import NOISE, decide


def test_the_default_stays_unless_another_is_clearly_faster():
    assert decide({"default": 1.0, "other": 1.0 - NOISE / 2}, "default") == "default"
    assert decide({"default": 1.0, "other": 1.0 - 2 * NOISE}, "default") == "other"
    assert decide({"default": 1.0, "a": 0.8, "b": 0.79}, "default") == "b"


def test_without_a_time_of_the_default_the_fastest_wins():
    assert decide({"a": 2.0, "b": 1.0}, "default") == "b"
    assert decide({}, "default") == "default"
