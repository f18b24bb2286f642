"""Waits for events as plans ask for them: the model of `waits.py` is the runtime's, and sees each wait that is missing."""

import time
from dataclasses import replace

import numpy as np
import pytest

import flexcomp
from tests.by_hand import written
from tests.cuda.driver import waits
from tests.cuda.driver.pictures import pictures
from tests.decoding import Sizes, gpt2_decoder

COMPUTE, COPY = 0, 1  # who waits, for the GPU of tests
SIZES = Sizes(layers=1, width=64, heads=4, vocabulary=3000)


@pytest.fixture(scope="module")
def programs(tiny):
    decoder = waits.planned(gpt2_decoder(3, 24, SIZES), state=SIZES.state)
    return {"tiny": written(tiny.program), "pictures": waits.planned(pictures()), "decoder": decoder}


@pytest.mark.parametrize("name", ["tiny", "pictures", "decoder"])
def test_each_wait_is_needed(programs, name):
    program = programs[name]
    seen = [waits.look(program, rung) for rung in program.rungs]
    assert sum(one.waits for one in seen) > 5
    assert [(one.needless, one.loose) for one in seen] == [((), 0)] * len(seen)


def test_a_wait_that_is_missing_leaves_a_pair_in_no_order(programs):
    program = programs["tiny"]
    for rung in program.rungs:
        order = waits.order_of(program, rung)
        for field in ("of_steps", "of_loads"):
            given = getattr(order, field)
            for i in range(len(given)):
                assert waits.look(program, rung, replace(order, **{field: given[:i] + given[i + 1 :]})).loose


def test_a_wait_for_nothing_is_seen(programs):
    program = programs["tiny"]
    rung = program.rungs[0]
    order = waits.order_of(program, rung)
    needed = order.of_steps[1]
    early = replace(order, of_steps=(order.of_steps[0], waits.Wait(order.of_steps[0].at + 1, needed.behind), *order.of_steps[2:]))
    later = replace(order, of_loads=(*order.of_loads, waits.Wait(len(order.loads) - 1, order.of_loads[-1].behind)))
    assert waits.look(program, rung, later).needless and not waits.look(program, rung, early).loose


@pytest.mark.parametrize("rung", [0, 1, 2])
def test_the_runtime_waits_as_often(fake, tiny, x, rung):
    order = waits.order_of(tiny.program, written(tiny.program).rungs[rung])
    with flexcomp.load(tiny.library, tiny.program.rungs[rung].budget) as session:
        for _ in range(waits.INFERENCES):
            assert np.isfinite(session(x)).all()
        until = time.monotonic() + 10
        while fake.waits(COPY) < len(order.of_loads) and time.monotonic() < until:
            time.sleep(0.01)  # loads ahead for an inference that does not come
        assert (fake.waits(COMPUTE), fake.waits(COPY)) == (len(order.of_steps), len(order.of_loads))
