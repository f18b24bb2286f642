"""A GPU for this process, and its tiny network."""

import numpy as np
import pytest

from tests.cuda.driver import fake as fakes
from tests.cuda.driver import tiny_cuda


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    return fakes.Fake(fakes.build(tmp_path_factory.mktemp("driver")))


@pytest.fixture
def fake(driver):
    """A fresh driver, with nothing left from before; leftovers of a test are a fault of the runtime."""
    driver.revive()
    driver.set()
    before = driver.live
    yield driver
    assert driver.fault == ""
    assert driver.live == before


@pytest.fixture(scope="session")
def device_kernels():
    return tiny_cuda.device_kernels()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory, device_kernels):
    return tiny_cuda.export(tmp_path_factory.mktemp("tiny_cuda") / "tiny.so", kernels=device_kernels)


@pytest.fixture(scope="session")
def x():
    return np.random.default_rng(1).standard_normal(256).astype("f4")
