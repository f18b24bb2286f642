import pytest

from .brief import brief_tuning


@pytest.fixture(scope="module", autouse=True)
def brief():
    with brief_tuning():
        yield
