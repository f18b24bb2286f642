"""Some of the random runs; `python -m tests.cuda.driver.random_runs` makes thousands."""

from tests.cuda.driver import random_runs


def test_random_runs(fake, tiny):
    seen = random_runs.run(fake, tiny, 300)
    assert seen["right"] > 150 and seen["switches"] > 50, seen
    fake.revive()
