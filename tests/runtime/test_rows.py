"""Rows of tables that are read from the file by their numbers."""

from __future__ import annotations

import os
import random
import threading
import time

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import flexcomp
from flexcomp.errors import InputError, StorageError
from tests.runtime import hooks

ROWS, WIDTH, COUNT, WIDE = 4000, 90, 3, 256
RNG = np.random.default_rng(0)
TABLE = RNG.standard_normal((ROWS, WIDTH)).astype("f4")
DENSE = (RNG.standard_normal((WIDTH, WIDE)) / 10).astype("f4")


def model(ids=TensorProto.INT64, count=COUNT):
    """y = relu(table[ids] · w) and the rows themselves."""
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Gather", ["t", "ids"], ["x"]), helper.make_node("MatMul", ["x", "w"], ["z"]),
        helper.make_node("Relu", ["z"], ["y"]),
    ]  # fmt: skip
    made = [info("y", TensorProto.FLOAT, (count, WIDE)), info("x", TensorProto.FLOAT, (count, WIDTH))]
    constants = [numpy_helper.from_array(TABLE, "t"), numpy_helper.from_array(DENSE, "w")]
    graph = helper.make_graph(nodes, "table", [info("ids", ids, (count,))], made, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def looking_up(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "table.so"
    flexcomp.build(model(), threads=1).export_library(path)
    return path


def require_right(session, ids: np.ndarray, tolerance: float = 0.0) -> None:
    y, x = session(ids)
    np.testing.assert_allclose(x, TABLE[ids], rtol=0, atol=tolerance)
    np.testing.assert_allclose(y, np.maximum(x @ DENSE, 0), rtol=1e-4, atol=max(1e-4, 3 * tolerance))


def some_ids(number: int = COUNT) -> np.ndarray:
    return np.random.default_rng(number).integers(-ROWS, ROWS, number)


def test_only_rows_are_read_where_the_table_has_no_room(looking_up):
    with flexcomp.load(looking_up, "min") as session:
        assert session.info["min_budget_bytes"] < TABLE.nbytes / 10
        for ids in ([0, 1, ROWS - 1], [5, 5, 5], [-1, -ROWS, 17]):
            require_right(session, np.array(ids))
            stats = session.stats()
            # Two pages for a row, and as many around what a load wants.
            assert stats["reads"] >= COUNT and stats["bytes_read"] - DENSE.nbytes <= 2 * stats["reads"] * 4096
        assert stats["total_bytes_read"] < TABLE.nbytes / 2
        for wrong in (ROWS, -ROWS - 1):
            with pytest.raises(InputError, match=rf"index {wrong} at position 1 is outside"):
                session(np.array([0, wrong, 0]))
        require_right(session, some_ids())


def test_where_it_has_it_stays(looking_up):
    with flexcomp.load(looking_up, "all") as session:
        assert session.stats()["arena_bytes"] > TABLE.nbytes
        for _ in range(2):
            require_right(session, some_ids())
        assert session.stats()["bytes_read"] == session.stats()["stall_ms"] == 0


@pytest.mark.parametrize(("weights", "tolerance"), [("float16", 2e-3), ("bfloat16", 2e-2), ("int8", 2e-2)])
def test_narrow_rows(weights, tolerance):
    artifact = flexcomp.build(model(TensorProto.INT32), threads=1, weights=weights)
    assert "rows" in [layer.implementation for layer in artifact.program.layers]
    with artifact.session("min") as session, artifact.session("all") as resident:
        ids = np.random.default_rng(1).integers(-ROWS, ROWS, COUNT, "int32")
        require_right(session, ids, tolerance)
        for streamed, held in zip(session(ids), resident(ids), strict=True):
            np.testing.assert_array_equal(streamed, held)


def test_many_rows_are_a_table():
    """To read a quarter of it row by row would take longer than to stream it."""
    layers = flexcomp.build(model(count=ROWS // 8), threads=1).program.layers
    assert [layer.implementation for layer in layers if layer.op == "take"] == ["embedding"]


@pytest.mark.parametrize("options", [{}, {"direct": False}, {"verify": True}, {"verify": True, "direct": False}])
def test_budgets_that_change_meanwhile(looking_up, options):
    chance, stop = random.Random(0), threading.Event()
    with flexcomp.load(looking_up, "all", read_bandwidth=1e8, **options) as session:

        def switch() -> None:
            while not stop.is_set():
                session.set_budget(chance.choice(session.ladder).budget_bytes)
                time.sleep(chance.uniform(0, 2e-3))

        thread = threading.Thread(target=switch)
        thread.start()
        try:
            for _ in range(40):
                require_right(session, RNG.integers(-ROWS, ROWS, COUNT))
        finally:
            stop.set()
            thread.join()


def test_a_read_that_fails_is_an_error_and_the_next_inference_is_right(looking_up):
    failed = []
    for number in range(1, 9):
        with hooks.load(looking_up, "min", fail_read_at=number) as session:
            for _ in range(4):
                try:
                    require_right(session, some_ids())
                except StorageError as error:
                    failed.append(str(error))
    assert len(failed) == 8 and any("(load " not in text for text in failed), "some were of rows"


def test_rows_that_changed_under_the_session_are_seen(looking_up, tmp_path):
    library = tmp_path / "table.so"
    library.write_bytes(looking_up.read_bytes())
    weights = library.with_suffix(".weights")
    weights.write_bytes(looking_up.with_suffix(".weights").read_bytes())
    for verify in (False, True):
        with flexcomp.load(library, "min", verify=verify) as session:
            require_right(session, some_ids())
            time.sleep(0.02)
            content = weights.read_bytes()
            weights.open("r+b").write(content[: len(content) // 2])
            with pytest.raises(StorageError, match="was changed while the session had it open"):
                session(some_ids())


@pytest.mark.parametrize("hidden", [False, True])
def test_a_change_is_seen_where_nothing_but_rows_is_read(looking_up, tmp_path, hidden):
    """By the time that the file system notes, or, with `verify`, by what is read."""
    library = tmp_path / "table.so"
    library.write_bytes(looking_up.read_bytes())
    weights = library.with_suffix(".weights")
    weights.write_bytes(looking_up.with_suffix(".weights").read_bytes())
    with flexcomp.load(library, verify=hidden) as session:
        rung = max((one for one in session.ladder if one.budget_bytes < TABLE.nbytes), key=lambda one: one.budget_bytes)
        session.set_budget(rung.budget_bytes)
        for _ in range(2):
            require_right(session, some_ids())
        assert session.stats()["reads"] == COUNT
        time.sleep(0.02)
        before = weights.stat()
        with weights.open("r+b") as file:
            file.write(bytes(before.st_size) if hidden else file.read(1))
        if hidden:
            os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
        said = "no longer holds what was verified" if hidden else "was changed while the session had it open"
        with pytest.raises(StorageError, match=said):
            session(some_ids())


def test_the_plan_counts_what_a_row_costs(looking_up):
    """Three reads of a device that needs some ten microseconds for each."""
    with flexcomp.load(looking_up) as session:
        first, *_, last = session.ladder
        assert first.predicted_ms - last.predicted_ms > 0.05
