"""Plans are decoded when they are first used: what is wrong with one is of no concern to others."""

from __future__ import annotations

import gc
import json
import struct
import threading
from dataclasses import replace

import numpy as np
import pytest
import tvm_ffi

import flexcomp
from flexcomp import runtime_ext
from flexcomp.errors import ArtifactError
from flexcomp.program.program_bytes import PROGRAM_KIND, decode_program
from flexcomp.runtime import runner
from tests.by_hand import encode_program
from tests.runtime import native
from tests.runtime.tiny import close_to


def damaged(blob: bytes, program, rung: int) -> bytes:
    """With another bit in the plan of a rung."""
    # The plan before ends where this one begins: with the places of values.
    where = len(blob)
    for plan in reversed(program.rungs[rung:]):
        where = blob.rindex(struct.pack(f"<{len(plan.value_at)}qI", *plan.value_at, len(plan.steps)), 0, where)
    changed = bytearray(blob)
    changed[where] ^= 64
    return bytes(changed)


def malformed(program, rung: int):
    """Whose plan has a load after its arena."""
    plan = program.rungs[rung]
    loads = (replace(plan.loads[0], target=1 << 40), *plan.loads[1:])
    return replace(program, rungs=(*program.rungs[:rung], replace(plan, loads=loads), *program.rungs[rung + 1 :]))


@pytest.fixture(scope="module")
def load():
    """As libraries are loaded: nobody looks at plans."""
    runtime_ext.register()
    return tvm_ffi.get_global_func(f"ffi.Module.load_from_bytes.{PROGRAM_KIND}")


@pytest.fixture(scope="module")
def bad(tiny):
    """Programs by the rung whose plan is bad, with what is said of it."""
    blob = encode_program(tiny.program, tiny.digest)
    said = "the program is damaged: the checksum of its plan for {} bytes differs"
    found = [(rung, damaged(blob, tiny.program, rung), said.format(tiny.program.rungs[rung].budget)) for rung in range(3)]
    return found + [
        (rung, encode_program(malformed(tiny.program, rung), tiny.digest), "load 0 lies outside the arena") for rung in range(3)
    ]


def opened(module, tiny, budget: int, **options):
    given = {"library_path": str(tiny.library), "budget_bytes": budget, **options}
    return module.get_function("open")(str(tiny.weights), json.dumps(given))


def run(session, x) -> np.ndarray:
    y = np.full(256, np.nan, "f4")
    session.get_function("run")(tvm_ffi.from_dlpack(x), tvm_ffi.from_dlpack(y))
    return y


def refused(match: str, function, *args, **kwargs) -> None:
    with pytest.raises(RuntimeError, match=match) as caught:
        function(*args, **kwargs)
    assert caught.value.__tvm_ffi_error__.kind == "ArtifactError"


@pytest.mark.parametrize("which", range(6))
def test_other_budgets_are_of_use(tiny, load, bad, budgets, x, which):
    rung, blob, said = bad[which]
    library = tvm_ffi.load_module(str(tiny.library))
    module = load(blob)
    assert [one["budget_bytes"] for one in json.loads(module.get_function("info")())["ladder"]] == budgets
    refused(said, opened, module, tiny, budgets[rung])
    for start in set(range(3)) - {rung}:
        session = opened(module, tiny, budgets[start])
        close_to(run(session, x), tiny.reference(x))
        for _ in range(2):
            refused(said, session.get_function("set_budget"), budgets[rung])
            assert json.loads(session.get_function("stats")())["budget_bytes"] == budgets[start]
            close_to(run(session, x), tiny.reference(x))
        last = 3 - rung - start
        session.get_function("set_budget")(budgets[last])
        close_to(run(session, x), tiny.reference(x))
    assert library is not None


@pytest.mark.parametrize("which", range(6))
def test_who_makes_programs_or_verifies_is_told(tiny, load, bad, budgets, which):
    rung, blob, said = bad[which]
    library = tvm_ffi.load_module(str(tiny.library))
    refused(said, tvm_ffi.get_global_func(PROGRAM_KIND + ".create"), blob)
    refused(said, opened, load(blob), tiny, budgets[(rung + 1) % 3], verify=True)
    if which < 3:
        with pytest.raises(ArtifactError, match=said):
            decode_program(blob)
    assert library is not None


def test_sessions_outlive_the_program_that_they_are_of(tiny, load, budgets, x):
    library = tvm_ffi.load_module(str(tiny.library))
    session = opened(load(encode_program(tiny.program, tiny.digest)), tiny, budgets[0])
    gc.collect()
    trash = [bytes(len(encode_program(tiny.program, tiny.digest))) for _ in range(50)]
    for budget in budgets[::-1]:
        session.get_function("set_budget")(budget)
        close_to(run(session, x), tiny.reference(x))
    assert library is not None and trash


def test_sessions_ask_for_the_same_plan_at_once(tiny, load, budgets, x):
    library = tvm_ffi.load_module(str(tiny.library))
    blob = encode_program(tiny.program, tiny.digest)
    for _ in range(20):
        module = load(blob)
        sessions = [opened(module, tiny, budgets[0], threads=1) for _ in range(3)]
        start = threading.Barrier(3)

        def switch(session, start=start):
            start.wait()
            session.get_function("set_budget")(budgets[1])

        threads = [threading.Thread(target=switch, args=(session,)) for session in sessions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for session in sessions:
            close_to(run(session, x), tiny.reference(x))
    assert library is not None


def test_a_process_forked_while_a_plan_is_decoded_decodes_it(tiny, tmp_path):
    """Also the one that another thread was at, which is not there."""
    path = tmp_path / "program"
    path.write_bytes(encode_program(tiny.program, tiny.digest))
    native.run(native.compile(tmp_path, "forked_plans.cc", native.READER), path)


@pytest.fixture
def library(tiny, bad, tmp_path):
    """Whose last plan is damaged, with the error."""
    raw, blob = tiny.library.read_bytes(), encode_program(tiny.program, tiny.digest)
    assert raw.count(blob) == 1
    copy = tmp_path / "damaged.so"
    copy.write_bytes(raw.replace(blob, bad[2][1]))
    copy.with_suffix(".weights").symlink_to(tiny.weights)
    return copy, bad[2][2]


def test_a_library_with_a_damaged_plan(tiny, library, budgets, x):
    path, said = library
    with flexcomp.load(path, budget="min") as session:
        with pytest.raises(ArtifactError, match=said):
            session.set_budget("all")
        assert session.budget == budgets[0]
        close_to(session(x), tiny.reference(x))
    with pytest.raises(ArtifactError, match=said):
        flexcomp.load(path, budget="all")
    with pytest.raises(ArtifactError, match=said):
        flexcomp.load(path, budget="min", verify=True)


def test_the_runner_with_a_damaged_plan(library):
    path, said = library
    runner.run(path, budget="min")
    with pytest.raises(ArtifactError, match=said):
        runner.run(path, budget="all")
    with pytest.raises(ArtifactError, match=said):
        runner.run(path, budget="min", verify=True)
