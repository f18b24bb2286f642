"""What a session computes and what it accepts."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tvm_ffi

import flexcomp
from flexcomp.errors import BudgetError, ExecutionError, InputError
from flexcomp.program.program_bytes import decode_program
from flexcomp.runtime.library import load_program, read_info, read_program
from tests.by_hand import written
from tests.runtime import hooks
from tests.runtime.tiny import close_to


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize("rung", [0, 1, 2])
def test_every_rung_computes_the_same(tiny, x, rung, threads):
    planned = tiny.program.rungs[rung]
    with flexcomp.load(tiny.library, planned.budget, threads) as session:
        expected = tiny.reference(x)
        for run in range(4):
            close_to(session(x), expected)
            stats = session.stats()
            loads = [load for load in planned.loads if run == 0 or not load.pinned]
            assert stats["bytes_read"] == sum(load.nbytes for load in loads)
            assert stats["arena_bytes"] == planned.arena and stats["threads"] == threads
        close_to(session(-x), tiny.reference(-x))


def test_interface(tiny, x, budgets):
    with flexcomp.load(str(tiny.library)) as session:
        assert [(p.name, p.shape, p.dtype) for p in session.inputs] == [("x", (256,), "float32")]
        assert [p.name for p in session.outputs] == ["out"]
        assert [rung.budget_bytes for rung in session.ladder] == budgets
        assert session.budget == session.info["default_budget_bytes"] == tiny.program.default_budget
        assert session.set_budget("all").budget_bytes == budgets[-1] == session.info["resident_bytes"]
        assert decode_program(session.program_bytes()) == written(tiny.program)
        expected = tiny.reference(x)
        close_to(session.run({"x": x})["out"], expected)
        close_to(session.run(x)["out"], expected)
        close_to(session(x=x), expected)
        readonly = x.copy()
        readonly.flags.writeable = False
        close_to(session(readonly), expected)
        close_to(session(np.repeat(x, 2)[::2]), expected)


def test_inputs_may_be_tensors(tiny, x):
    with flexcomp.load(tiny.library) as session:
        close_to(session(tvm_ffi.from_dlpack(x)), tiny.reference(x))


def test_inputs_need_no_alignment(tiny, x):
    raw = np.empty(x.nbytes + 4, "u1")
    odd = raw[4:].view("f4") if raw.ctypes.data % 8 == 0 else raw[:-4].view("f4")
    odd[:] = x
    with flexcomp.load(tiny.library, "min") as session:
        close_to(session(odd), tiny.reference(x))


@pytest.mark.parametrize(
    ("inputs", "match"),
    [
        (lambda x: {"y": x}, 'inputs must be "x", not "y"'),
        (lambda x: {}, 'inputs must be "x", not none'),
        (lambda x: {"x": x[:-1]}, r'input "x" must be float32\[256\], not float32\[255\]'),
        (lambda x: {"x": x.astype("f8")}, r'input "x" must be float32\[256\], not float64\[256\]'),
        (lambda x: {"x": x.reshape(1, 256)}, r"not float32\[1, 256\]"),
        (lambda x: {"x": x.astype(">f4")}, "must be float32"),
    ],
)
def test_wrong_inputs(tiny, x, inputs, match):
    with flexcomp.load(tiny.library) as session:
        with pytest.raises(ValueError, match=match):
            session.run(inputs(x))
        with pytest.raises(InputError, match="1 inputs are needed, 2 given"):
            session(x, x)
        close_to(session(x), tiny.reference(x))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"threads": "2"}, "threads must be a whole number, not '2'"),
        ({"threads": 1.5}, "threads must be a whole number, not 1.5"),
        ({"direct": "yes"}, "direct must be True or False, not 'yes'"),
        ({"trace": 1}, "trace must be True or False, not 1"),
        ({"read_bandwidth": -1}, "read_bandwidth"),
        ({"threads": 0}, "at least 1"),
        ({"threads": 10**6}, "cannot run on"),
    ],
)
def test_wrong_options(tiny, options, match):
    with pytest.raises(InputError, match=match):
        flexcomp.load(tiny.library, **options)


@pytest.mark.parametrize("name", ["colour", "library_path", "fail_read_at", "sysfs_cpus"])
def test_unknown_options(tiny, name):
    """Test hooks are unknown, too."""
    with pytest.raises(TypeError, match=name):
        flexcomp.load(tiny.library, **{name: 1})
    with flexcomp.Pool("1MB") as pool, pytest.raises(InputError, match=f'no option "{name}"; there are "verify", "direct", '):
        pool.add("model", tiny.library, **{name: 1})


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ("[]", "session options must be a JSON object"),
        ('{"colour": 1}', 'unknown option "colour"'),
        ('{"threads": "two"}', 'option "threads" is of the wrong type'),
        ('{"lane_bytes": -1}', 'option "lane_bytes" must not be negative, but is -1'),
        ('{"read_bandwidth": -1.5}', 'option "read_bandwidth" must be a number of bytes per second'),
    ],
)
def test_wrong_options_of_other_languages(tiny, options, match):
    program, _ = load_program(tiny.library)
    with pytest.raises(RuntimeError, match=match) as caught:
        program.get_function("open")(str(tiny.weights), options)
    assert caught.value.__tvm_ffi_error__.kind == "InputError"


def test_the_native_interface_checks_for_itself(tiny, x):
    """C++ callers do not come through session.py."""
    with flexcomp.load(tiny.library) as session:
        call = session._run
        out = np.empty(256, "f4")
        for wrong in [(x,), (x[:128], out), (x.astype("i4"), out), (np.zeros(512, "f4")[::2], out), (x, out[:9]), (3, out)]:
            with pytest.raises(RuntimeError) as caught:
                call(*wrong)
            assert caught.value.__tvm_ffi_error__.kind == "InputError"


def test_budgets(tiny, x, budgets):
    least = f"the smallest feasible budget is {budgets[0]:,} B, set by layer mv0: 3,072 B"
    with pytest.raises(BudgetError, match=f"^a budget of 1,000 B is too small: {least}"):
        flexcomp.load(tiny.library, 1000)
    with flexcomp.load(tiny.library, budgets[1] + 5) as session:
        assert session.budget == budgets[1]
        assert session.set_budget(budgets[1] - 1).budget_bytes == budgets[0]
        close_to(session(x), tiny.reference(x))
        assert session.set_budget("all").budget_bytes == budgets[2]
        close_to(session(x), tiny.reference(x))
        with pytest.raises(BudgetError):
            session.set_budget(budgets[0] - 1)
        with pytest.raises(RuntimeError, match="the smallest that tiny was built for"):
            session._set_budget(1)
        assert session.set_budget("min").budget_bytes == budgets[0]
        close_to(session(x), tiny.reference(x))


def test_pinned_weights_are_read_again_after_a_switch(tiny, x, budgets):
    with flexcomp.load(tiny.library) as session:
        for budget in (budgets[2], budgets[1], budgets[2], budgets[2]):
            before = session.budget
            session.set_budget(budget)
            fresh = before != budget or session.stats()["runs"] == 0
            close_to(session(x), tiny.reference(x))
            assert (session.stats()["bytes_read"] > 0) == (fresh or budget == budgets[1])


def test_closed_sessions(tiny, x):
    session = flexcomp.load(tiny.library)
    session.close()
    session.close()
    for call in (lambda: session(x), session.stats, lambda: session.set_budget(None)):
        with pytest.raises(ExecutionError, match="closed"):
            call()


def test_info_is_json(tiny):

    info = read_info(tiny.library)
    assert json.loads(json.dumps(info))["target"] == "llvm"
    assert decode_program(read_program(tiny.library)) == written(tiny.program)


@pytest.mark.parametrize("rung", [0, 1, 2])
def test_a_warm_start_leaves_the_first_inference_nothing_to_do(tiny, x, rung):
    budget = tiny.program.rungs[rung].budget
    with flexcomp.load(tiny.library, budget, start="warm") as session, flexcomp.load(tiny.library, budget) as cold:
        assert session.stats()["runs"] == 0
        filled = session.stats()["total_bytes_read"]
        stays = sum(load.nbytes for load in tiny.program.rungs[rung].loads if load.pinned or load.kept)
        ahead = sum(load.nbytes for load in tiny.program.rungs[rung].loads if load.ahead)
        assert stays <= filled <= stays + ahead
        for _ in range(2):
            np.testing.assert_array_equal(session(x), cold(x))
        assert session.stats()["bytes_read"] == cold.stats()["bytes_read"]
        assert session.warm() < 0.1  # it is warm


def test_loading_that_fails_opens_nothing(tiny, x):
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(flexcomp.StorageError, match="reading the weights file"):
        hooks.load(tiny.library, "all", start="warm", fail_read_at=1)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    with pytest.raises(InputError, match="start must be 'cold' or 'warm', not 'hot'"):
        flexcomp.load(tiny.library, start="hot")
    with hooks.load(tiny.library, "all", fail_read_at=1) as session:
        with pytest.raises(flexcomp.StorageError):
            session.warm()
        session.warm()
        np.testing.assert_allclose(session(x), tiny.reference(x), rtol=1e-4, atol=1e-5)


def test_a_smaller_budget_is_seen_while_weights_are_loaded(tiny, x):
    with flexcomp.load(tiny.library, "all", read_bandwidth=20e6) as session:
        with ThreadPoolExecutor() as pool:
            warming = pool.submit(session.warm)
            time.sleep(0.02)  # of 80 ms
            assert session.set_budget("min").budget_bytes == tiny.program.rungs[0].budget
            warming.result()
        assert session.stats()["restarts"] == 1 and session.stats()["runs"] == 0
        np.testing.assert_allclose(session(x), tiny.reference(x), rtol=1e-4, atol=1e-5)
