"""Calls of the driver that fail; all of them are tried by `python -m tests.cuda.driver.faults`."""

import pytest

from tests.cuda.driver import faults


@pytest.mark.parametrize("integrated", [0, 1])
@pytest.mark.parametrize("code", [faults.REFUSED, faults.USELESS])
def test_calls_that_fail_once(fake, tiny, integrated, code):
    failed = faults.try_calls(fake, tiny, code, integrated=integrated, stride=11)
    assert failed["cuLaunchKernel"] and failed.total() > 100
