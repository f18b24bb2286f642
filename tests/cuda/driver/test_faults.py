"""Calls of the driver that fail; all of them are tried by `python -m tests.cuda.driver.faults`."""

import pytest

from tests.cuda.driver import faults
from tests.cuda.driver.fake import REFUSED, USELESS


@pytest.fixture(scope="module")
def subjects(tmp_path_factory, device_kernels, driver):
    return faults.subjects(tmp_path_factory.mktemp("faults"), device_kernels, driver)


@pytest.mark.parametrize("integrated", [0, 1])
@pytest.mark.parametrize("code", [REFUSED, USELESS])
@pytest.mark.parametrize("name", ["tiny", "ahead, warm", "outputs on the GPU", "states"])
def test_calls_that_fail_once(fake, subjects, name, code, integrated):
    stride = 11 if name in ("tiny", "outputs on the GPU") else 23
    failed = faults.try_calls(fake, subjects[name], code, integrated=integrated, stride=stride)
    assert failed["cuLaunchKernel"] and failed.total() > 50
