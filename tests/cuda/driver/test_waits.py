"""Each wait for an event that the runtime asks for is one that the answer needs."""

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import flexcomp
from flexcomp.program import PAGE, Program
from tests.cuda.driver import tiny_cuda

RUNS = 3
_SEEDS = 6
COPY_LATE, COMPUTE_LATE = ({f"{stream}_delay_us": 1500, "least_delay_us": 1000} for stream in ("copy", "compute"))
VERY_LATE = {"copy_delay_us": 6000, "least_delay_us": 5000}
# (integrated, who waits): which stream is late, as the other streams do not wait for that.
WAITS = {(0, 0): COPY_LATE, (0, 1): COMPUTE_LATE, (0, 2): VERY_LATE, (1, 2): COMPUTE_LATE}


def ring_alone(program: Program) -> Program:
    """Its smallest rung, with the page pinned that has a place of its own, where a load reads bytes that are there already.

    The page is not read early: a missing wait for an early load would not be noticed.
    """
    rung = program.rungs[0]
    *ring, page = rung.loads
    assert page.target + PAGE == rung.arena
    return replace(program, rungs=(replace(rung, working=page.target, loads=(*ring, replace(page, pinned=True, after=1))),))


@pytest.fixture(scope="module")
def ring(tmp_path_factory, device_kernels):
    return tiny_cuda.export(tmp_path_factory.mktemp("ring") / "ring.so", "ring_", kernels=device_kernels, plan=ring_alone)


@pytest.fixture(scope="module")
def long(device_kernels):
    """One inference reads more than the ring of pinned memory holds, and faster than copies."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield tiny_cuda.export(Path(folder) / "long.so", "long_", 20, kernels=device_kernels, plan=ring_alone)


def waits_of(fake, ring, x, kind: int, runs: int) -> int | None:
    """How many waits some inferences asked for, of whose results another one is the last to show; None: an answer is wrong."""
    with flexcomp.load(ring.library) as session:
        for factor in range(1, runs + 2):
            waits = fake.waits(kind)
            if not np.allclose(session(factor * x), ring.reference(factor * x), rtol=1e-3, atol=1e-4):
                return None
    return waits


@pytest.mark.parametrize(("integrated", "kind"), WAITS)
def test_each_wait_that_is_left_out_is_missed(fake, ring, long, x, integrated, kind):
    late = WAITS[integrated, kind]
    network, runs = (long, 1) if (integrated, kind) == (0, 2) else (ring, RUNS)
    fake.set(**late, integrated=integrated)
    waits = waits_of(fake, network, x, kind, runs)
    unnoticed = []
    for number in range(1, waits + 1):
        for seed in range(_SEEDS):
            # On a busy machine everybody is late: by more and more until it shows.
            later = {name: delay << seed for name, delay in late.items()}
            fake.set(**later, integrated=integrated, seed=seed, skip_at=number, skip_kind=kind)
            if waits_of(fake, network, x, kind, runs) is None:
                break
        else:
            unnoticed.append(number)
    assert waits >= 5 and not unnoticed
