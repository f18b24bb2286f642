import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from flexcomp.plan.placement.recursion import recursion


def deep(calls: int) -> int:
    return calls and 1 + deep(calls - 1)


def test_who_is_done_leaves_others_their_room() -> None:
    """The interpreter's limit is one for all threads."""
    before = sys.getrecursionlimit()
    first, second = recursion(100), recursion(3 * before)
    first.__enter__()
    with ThreadPoolExecutor(1) as thread:
        thread.submit(second.__enter__).result()
        first.__exit__(None, None, None)
        assert thread.submit(deep, 2 * before).result() == 2 * before
        thread.submit(second.__exit__, None, None, None).result()
    assert sys.getrecursionlimit() == before


def test_the_limit_is_as_it_was_after_an_error() -> None:
    before = sys.getrecursionlimit()
    with pytest.raises(ValueError), recursion(0), recursion(50):
        raise ValueError
    assert sys.getrecursionlimit() == before
