"""Rows written into a state in place: those of an inference that is not completed are taken back."""

from __future__ import annotations

import random
import threading
import time

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import flexcomp
from flexcomp.errors import InputError, StorageError
from tests.runtime import hooks
from tests.runtime.rings import CAPACITY, STATE, WIDTH, Rings


@pytest.fixture(scope="module")
def rings(tmp_path_factory):
    path = tmp_path_factory.mktemp("rings") / "rings.so"
    built = flexcomp.build(Rings().model(), state=STATE, threads=1)
    assert [layer.implementation for layer in built.program.layers].count("exchange") == 2
    built.export_library(path)
    return path


def inputs(count: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal((count, 1, WIDTH)).astype("f4")


def test_inferences_that_begin_anew(rings):
    """On other budgets, in the middle of what they write."""
    right, chance, stop = Rings(), random.Random(0), threading.Event()
    with flexcomp.load(rings, "all", read_bandwidth=2e8) as session:

        def switch() -> None:
            while not stop.is_set():
                session.set_budget(chance.choice(session.ladder).budget_bytes)
                time.sleep(chance.uniform(0, 2e-3))

        thread = threading.Thread(target=switch)
        thread.start()
        try:
            for step, x in enumerate(inputs(300)):
                np.testing.assert_allclose(session(x, np.int64([step])), right.run(x, step), atol=1e-4)
                assert right.agrees(session.state())
        finally:
            stop.set()
            thread.join()
        assert session.stats()["restarts"] > 20


def test_an_inference_that_fails_leaves_every_bit(rings):
    right, failed = Rings(), 0
    xs = inputs(2 * CAPACITY)
    for number in range(1, 13):
        with hooks.load(rings, "min", fail_read_at=number) as session:
            session.set_state({"c0": right.c, "d0": right.d})
            for step, x in enumerate(xs[:3]):
                before = session.state()
                try:
                    session(x, np.int64([step]))
                except StorageError:
                    failed += 1
                    after = session.state()
                    assert all(np.array_equal(before[name], after[name]) for name in STATE.values())
        right.run(xs[number % len(xs)], number)
    assert failed >= 8


def test_a_file_that_changed_is_seen_behind_the_last_step(rings, tmp_path):
    """When all rows are written."""
    library = tmp_path / "rings.so"
    library.write_bytes(rings.read_bytes())
    library.with_suffix(".weights").write_bytes(rings.with_suffix(".weights").read_bytes())
    with flexcomp.load(library, "min") as session:
        session(inputs(1)[0], np.int64([0]))
        before = session.state()
        time.sleep(0.02)
        with open(library.with_suffix(".weights"), "r+b") as file:
            first = file.read(1)
            file.seek(0)
            file.write(first)
        with pytest.raises(StorageError, match="changed"):
            session(inputs(2)[1], np.int64([1]))
        after = session.state()
        assert all(np.array_equal(before[name], after[name]) for name in STATE.values())


def test_nothing_as_large_as_the_caches_is_kept_or_copied():
    """Besides the state: an arena of less than twice its size, where copies would take as much again."""
    rows, cache = (1, 8, 2, 64), (1, 8, 2048, 64)
    info, f4 = helper.make_tensor_value_info, TensorProto.FLOAT
    two = numpy_helper.from_array(np.float32([2]), "two")
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["new"]), helper.make_node("TensorScatter", ["past", "new", "at"], ["present"]),
    ]  # fmt: skip
    given = [info("x", f4, rows), info("at", TensorProto.INT64, (1,)), info("past", f4, cache)]
    graph = helper.make_graph(nodes, "cache", given, [info("present", f4, cache)], [two])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    with flexcomp.build(model, state={"present": "past"}, threads=1).session() as session:
        assert session.stats()["arena_bytes"] < session.info["state_bytes"] + (64 << 10)
        for at in (0, 100, 2046):
            x = np.full(rows, at + 1, "f4")
            session.run({"x": x, "at": np.int64([at])})
        with pytest.raises(InputError, match="TensorScatter"):
            session.run({"x": x, "at": np.int64([2047])})
        state = session.state()["past"]
        assert {at: state[0, 7, at, 63] for at in (0, 1, 2, 100, 2047)} == {0: 2, 1: 2, 2: 0, 100: 202, 2047: 4094}
