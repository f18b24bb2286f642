"""Some of the random runs; `python -m tests.cuda.driver.random_runs` makes thousands."""

import pytest

from tests.cuda.driver import random_runs
from tests.cuda.driver.faults import Plain, Remembering


@pytest.mark.parametrize("kind", ["tiny", "states"])
def test_random_runs(fake, tiny, tmp_path, kind):
    subject = Plain(tiny) if kind == "tiny" else Remembering(tmp_path)
    seen = random_runs.run(fake, subject, 300)
    assert seen["right"] > 150 and seen["switches"] > 50, seen
    fake.revive()
