"""Each wait for an event that the runtime asks for is one that the answer needs."""

from dataclasses import replace

import numpy as np
import pytest

import flexcomp
from flexcomp.program import PAGE, Program
from tests.cuda.driver import tiny_cuda

RUNS = 3
# One stream is late, as the other does not wait for it.
LATE = ({"copy_delay_us": 1500}, {"compute_delay_us": 1500})


def ring_alone(program: Program) -> Program:
    """Its smallest rung, with the page pinned that has a place of its own, where a load brings what is there already. It is not read
    early: what comes long before it must would not be missed.
    """
    rung = program.rungs[0]
    *ring, page = rung.loads
    assert page.target + PAGE == rung.arena
    return replace(program, rungs=(replace(rung, working=page.target, loads=(*ring, replace(page, pinned=True, after=1))),))


@pytest.fixture(scope="module")
def ring(tmp_path_factory, device_kernels):
    return tiny_cuda.export(tmp_path_factory.mktemp("ring") / "ring.so", "ring_", kernels=device_kernels, plan=ring_alone)


def waits_of(fake, ring, x) -> int | None:
    """How many waits some inferences asked for, of whose results another one is the last to show; None: an answer is wrong."""
    with flexcomp.load(ring.library) as session:
        for factor in range(1, RUNS + 2):
            waits = fake.waits
            if not np.allclose(session(factor * x), ring.reference(factor * x), rtol=1e-4, atol=1e-5):
                return None
    return waits


@pytest.mark.parametrize("integrated", [0, 1])
def test_each_wait_that_is_left_out_is_missed(fake, ring, x, integrated):
    waits = []
    for late in LATE:
        fake.set(**late, integrated=integrated)
        waits.append(waits_of(fake, ring, x))
    unnoticed = []
    for number in range(1, min(waits) + 1):
        for seed, late in enumerate(LATE * 4):
            fake.set(**late, integrated=integrated, seed=seed, skip_at=number)
            if waits_of(fake, ring, x) is None:
                break
        else:
            unnoticed.append(number)
    assert min(waits) > 10 * RUNS and not unnoticed
