"""The search on imaginary devices: what it tries, in which order, and that its model learns."""

import math

import numpy as np
import pytest

from flexcomp.device.target import resolve_target
from flexcomp.schedules.tiles.spec import ConvSpec, MatmulSpec
from flexcomp.tuning.cost_model import expected
from flexcomp.tuning.search import Search
from flexcomp.tuning.tasks import _task

UNIT = resolve_target("llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v4").vector_unit
SPECS = [
    ConvSpec(1, 28, 28, 128, 128, (3, 3), padding=(1, 1, 1, 1)),
    ConvSpec(1, 28, 28, 128, 512),
    ConvSpec(1, 14, 14, 256, 64),
    MatmulSpec(4, 64, 64, 32),
]


@pytest.fixture
def tasks():
    return [_task(spec, count, UNIT) for spec, count in zip(SPECS, (1, 4, 1, 1), strict=True)]


def device(task, name):
    """Seconds on a device with a taste of its own: blocks of whole vectors, in pairs, do not suit it."""
    candidate = task.candidates[name]
    taste = 1.5 if candidate.tile.channels % 32 == 0 else 1.0
    return math.exp(expected(task.spec, candidate, UNIT)) * taste * 1e-11


def run(search, trials, count=8, time=device):
    tried = []
    while len(tried) < trials and (batch := search.propose(min(count, trials - len(tried)))):
        search.tell([(task, name, time(search.progress[task].task, name)) for task, name in batch])
        tried += batch
    return tried


def test_defaults_come_first_and_nothing_is_tried_twice(tasks):
    search = Search(tasks, UNIT)
    tried = run(search, 60)
    assert len(set(tried)) == len(tried) == 60
    defaults = {(i, name) for i, task in enumerate(tasks) for name in task.defaults}
    assert set(tried[: len(defaults)]) == defaults
    assert tried[0][0] == max(range(len(tasks)), key=lambda i: tasks[i].count * tasks[i].candidates[tasks[i].default].work)


def test_the_search_ends_when_everything_was_tried(tasks):
    search = Search(tasks[3:], UNIT)
    assert len(run(search, 10_000)) == len(tasks[3].candidates)
    assert search.propose(8) == []


def test_layers_that_take_longer_get_more_trials(tasks):
    tried = run(Search(tasks, UNIT), 120)
    share = [sum(task == i for task, _ in tried) for i in range(len(tasks))]
    assert share[1] > 2 * share[3]


def test_the_model_finds_in_few_trials_what_chance_does_not(tasks):
    task = tasks[1]
    best = min(device(task, name) for name in task.candidates)
    search = Search([task], UNIT)
    run(search, 30)
    found = search.progress[0].best[1]
    rng = np.random.default_rng(0)
    names = list(task.candidates)
    by_chance = np.mean([min(device(task, names[i]) for i in rng.permutation(len(names))[:30]) for _ in range(200)])
    assert found <= 1.02 * best
    assert found < by_chance
    assert found < 0.85 * device(task, task.default)


def test_failures_are_avoided_and_the_search_goes_on(tasks):
    def fails_wide(task, name):
        return None if task.candidates[name].tile.channels > 32 else device(task, name)

    search = Search([tasks[1]], UNIT)
    tried = run(search, 60, time=fails_wide)
    assert search.progress[0].best is not None
    # The default is wide, so that nothing can be compared with it, and nothing is learnt: but nothing breaks either.
    assert len(tried) == 60 or search.progress[0].default_seconds is None


def test_what_is_known_is_not_proposed_again(tasks):
    first = Search(tasks, UNIT)
    tried = run(first, 24)
    second = Search(tasks, UNIT)
    for index in range(len(tasks)):
        second.known(index, dict(first.progress[index].seconds))
    assert not set(run(second, 24)) & set(tried)
    assert math.isclose(second.progress[1].best[1], min(first.progress[1].best[1], second.progress[1].best[1]))
