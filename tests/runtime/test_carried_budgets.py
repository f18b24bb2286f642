"""A change of budget begins with the weights that are in the arena: only others are read."""

from __future__ import annotations

import random
import threading
import time
from itertools import pairwise

import numpy as np
import onnxruntime
import pytest

import flexcomp
from tests.by_hand import as_loads
from tests.network.variants import network


@pytest.fixture(scope="module")
def library(variants, tmp_path_factory):
    path = tmp_path_factory.mktemp("carried") / "variants.so"
    variants.export_library(path)
    return path, as_loads(variants.program)


@pytest.fixture(scope="module")
def data():
    model = network()
    shape = [one.dim_value for one in model.graph.input[0].type.tensor_type.shape.dim]
    inputs = {model.graph.input[0].name: np.random.default_rng(3).standard_normal(shape).astype("f4")}
    return inputs, onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)[0]


def check(session, data):
    inputs, expected = data
    np.testing.assert_allclose(next(iter(session.run(inputs).values())), expected, rtol=1e-3, atol=1e-4)


def units(program, load):
    """Pages of the file, or blocks that a kernel prepares, which a load leaves in the arena."""
    if load.prepared and not load.kept:
        weights = program.layers[load.prepared.layer].weights
        return {
            (str(weights), block) for block in range(load.prepared.first, load.prepared.first + load.prepared.count)
        }
    return set(range(load.source, load.source + load.nbytes, 4096))


def missing_nbytes(program, old, new):
    """Bytes that an inference reads for itself, and for what stays and `old` does not keep."""
    there = set().union(*(units(program, load) for load in old.loads if load.pinned or load.kept))
    stays = [load for load in new.loads if load.pinned or load.kept]
    streamed = sum(load.nbytes for load in new.loads if not load.pinned and not load.kept)
    return streamed + sum(load.nbytes for load in stays if not units(program, load) <= there)


def settle(session, data):
    for _ in range(2):  # the second inference prepares what the first one left
        check(session, data)


@pytest.mark.parametrize("direct", [True, False])
def test_only_what_is_missing_is_read(library, data, direct):
    path, program = library
    rungs = program.rungs
    saved = 0
    with flexcomp.load(path, direct=direct) as session:
        for old, new in [*pairwise(rungs), *pairwise(reversed(rungs)), (rungs[-1], rungs[0]), (rungs[0], rungs[-1])]:
            session.set_budget(old.budget)
            settle(session, data)
            session.set_budget(new.budget)
            check(session, data)
            missing = missing_nbytes(program, old, new)
            assert session.stats()["bytes_read"] <= missing, (old.budget, new.budget)
            saved += sum(load.nbytes for load in new.loads) - missing
    assert saved > 0


def test_a_budget_that_returns_reads_only_what_left(library, data):
    """Also when an inference was interrupted: the memory goes, except weights that the smaller plan keeps."""
    path, program = library
    small, large = program.rungs[-2], program.rungs[-1]
    with flexcomp.load(path, large.budget, start="warm") as session:
        for _ in range(3):
            session.set_budget(small.budget)
            check(session, data)
            assert session.stats()["bytes_read"] <= missing_nbytes(program, large, small)
            session.set_budget(large.budget)
            session.warm()
            check(session, data)
            assert session.stats()["bytes_read"] == 0


def test_random_changes_while_inferences_run(library, data):
    path, program = library
    draw = random.Random(7)
    with flexcomp.load(path, read_bandwidth=200e6) as session:
        stop = threading.Event()

        def change():
            while not stop.is_set():
                budget = draw.choice(program.rungs).budget
                session.set_budget(budget)
                time.sleep(draw.choice((0, 1e-4, 2e-3)))

        changing = threading.Thread(target=change)
        changing.start()
        try:
            for _ in range(30):
                check(session, data)
        finally:
            stop.set()
            changing.join()
        session.set_budget("min")
        assert session.resident_arena() <= program.rungs[0].arena
        for _ in range(300):
            session.set_budget(draw.choice(program.rungs).budget)
            if draw.random() < 0.3:
                session.warm()
            check(session, data)
            assert session.resident_arena() <= session.stats()["arena_bytes"]
