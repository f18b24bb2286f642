"""Calls of the driver that fail; all of them are tried by `python -m tests.cuda.driver.faults`."""

import pytest

from tests.cuda.driver import faults
from tests.cuda.driver.fake import REFUSED, USELESS


@pytest.fixture(scope="module")
def subjects(tmp_path_factory, device_kernels, driver):
    return faults.subjects(tmp_path_factory.mktemp("faults"), device_kernels, driver)


# Each pair of a subject, an error and a kind of GPU; `python -m tests.cuda.driver.faults` tries all three of them together.
SUBJECTS = ("tiny", "ahead, warm", "outputs on the GPU", "states")
PAIRS = [(name, code, (i + j) % 2) for i, name in enumerate(SUBJECTS) for j, code in enumerate((REFUSED, USELESS))]


@pytest.mark.parametrize(("name", "code", "integrated"), PAIRS)
def test_calls_that_fail_once(fake, subjects, name, code, integrated):
    stride = 11 if name in ("tiny", "outputs on the GPU") else 23
    failed = faults.try_calls(fake, subjects[name], code, integrated=integrated, stride=stride)
    assert failed["cuLaunchKernel"] and failed.total() > 50
