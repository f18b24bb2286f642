from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flexcomp.plan import (
    ALIGN,
    PAGE,
    Buffer,
    Layer,
    Plan,
    PlanError,
    Problem,
    Segment,
    Step,
    Storage,
    Value,
    Weights,
    check,
    minimum_budget,
    plan,
    verify,
)

from .problems import problems, run_tagged


@st.composite
def plans(draw: st.DrawFn) -> tuple[Problem, Plan]:
    problem = draw(problems(6))
    budget = int(minimum_budget(problem).nbytes * draw(st.sampled_from([1, 1.2, 1.5, 2, 4])))
    try:
        return problem, plan(problem, budget, draw(st.sampled_from(["best", "flexnn"])))
    except PlanError:
        assume(False)
        raise AssertionError from None


@given(plans(), st.booleans())
def test_what_the_checker_accepts_runs(planned: tuple[Problem, Plan], eager: bool) -> None:
    assert check(*planned) == []
    assert run_tagged(*planned, eager=eager)


@pytest.mark.hypothesis
def test_the_checker_finds_every_corruption_that_goes_wrong_at_run_time() -> None:
    conflicts = 0

    @settings(max_examples=300)
    @given(plans(), st.data())
    def corrupt(planned: tuple[Problem, Plan], data: st.DataObject) -> None:
        nonlocal conflicts
        problem, good = planned
        for _ in range(10):
            broken = mutate(problem, good, data)
            if not (run_tagged(problem, broken, eager=True) and run_tagged(problem, broken, eager=False)):
                conflicts += 1
                assert check(problem, broken)

    corrupt()
    assert conflicts >= 1000


@pytest.mark.hypothesis
def test_the_checker_finds_every_alias_that_goes_wrong_at_run_time() -> None:
    conflicts = accepted = 0

    @settings(max_examples=240)
    @given(plans(), st.data())
    def corrupt(planned: tuple[Problem, Plan], data: st.DataObject) -> None:
        nonlocal conflicts, accepted
        problem, good = planned
        assume(problem.values)
        for _ in range(10):
            broken = realias(problem, data)
            if not (run_tagged(broken, good, eager=True) and run_tagged(broken, good, eager=False)):
                conflicts += 1
                assert check(broken, good)
            else:
                accepted += not check(broken, good)

    corrupt()
    assert conflicts >= 1000 and accepted >= 100


def realias(problem: Problem, data: st.DataObject) -> Problem:
    """`problem` with one or two values used otherwise, or put elsewhere."""
    values = problem.values
    count = len(problem.layers)
    for _ in range(data.draw(st.integers(1, 2))):
        index = data.draw(st.integers(0, len(values) - 1))
        value = values[index]
        layer = data.draw(st.integers(0, count - 1))
        kind = data.draw(st.sampled_from(["buffer", "buffer", "read", "written", "given", "kept", "over", "nbytes"]))
        if kind == "buffer":
            value = replace(value, buffer=data.draw(st.integers(0, len(problem.buffers))))
        elif kind in ("read", "written"):
            value = replace(value, **{kind: tuple(sorted({*getattr(value, kind)} ^ {layer}))})
        elif kind in ("given", "kept"):
            value = replace(value, **{kind: not getattr(value, kind)})
        elif kind == "over":
            value = replace(value, over=tuple(sorted({*value.over} ^ {data.draw(st.integers(0, len(values) - 1))})))
        else:
            value = replace(value, nbytes=value.nbytes + ALIGN * data.draw(st.integers(1, 9)))
        values = changed(values, value, data, [index])
    return replace(problem, values=values)


def mutate(problem: Problem, good: Plan, data: st.DataObject) -> Plan:
    """`good` with one to three fields changed."""
    broken = good
    for _ in range(data.draw(st.integers(1, 3))):
        kinds = ["arena", "working", "scratch", "need"]
        kinds += ["buffer"] * bool(problem.buffers) + ["segment"] * 4 * bool(good.segments) + ["again"] * 3 * bool(good.again)
        kind = data.draw(st.sampled_from(kinds))
        page = PAGE * data.draw(st.integers(0, max(1, good.arena // PAGE)))
        if kind in ("arena", "working"):
            broken = replace(broken, **{kind: page})
        elif kind == "buffer":
            broken = replace(broken, buffer_at=changed(broken.buffer_at, page, data))
        elif kind == "scratch":
            where = [i for i, at in enumerate(good.scratch_at) if at >= 0]
            if where:
                broken = replace(broken, scratch_at=changed(broken.scratch_at, page, data, where))
        elif kind == "again":
            pair = data.draw(st.integers(0, len(good.steps) - 1)), data.draw(st.integers(0, len(good.segments) - 1))
            at = data.draw(st.integers(0, len(broken.again)))
            broken = replace(broken, again=(*broken.again[:at], *[pair] * data.draw(st.integers(0, 1)), *broken.again[at + 1 :]))
        elif kind == "need":
            broken = replace(broken, need=changed(broken.need, data.draw(st.integers(0, len(good.segments))), data))
        else:
            index = data.draw(st.integers(0, len(good.segments) - 1))
            segment = broken.segments[index]
            kinds = ["address", "after", "pinned", "ahead", "count", "source", "form", "swap", "kept"]
            change = data.draw(st.sampled_from(kinds))
            if change == "address":
                segment = segment._replace(address=page)
            elif change == "after":
                segment = segment._replace(after=data.draw(st.integers(0, len(good.steps))))
            elif change == "pinned":
                segment = segment._replace(pinned=not segment.pinned)
            elif change == "kept":
                segment = segment._replace(kept_at=data.draw(st.sampled_from([-1, page])))
            elif change == "ahead":
                segment = segment._replace(ahead=not segment.ahead, after=data.draw(st.integers(0, len(good.steps))))
            elif change == "count":
                segment = segment._replace(count=max(1, segment.count + data.draw(st.sampled_from([-1, 1]))))
            elif change == "form":
                segment = segment._replace(form=segment.form + data.draw(st.sampled_from([-1, 1])))
            elif change == "source":
                segment = segment._replace(source=segment.source + data.draw(st.sampled_from([-PAGE, PAGE])))
            else:
                segments = list(broken.segments)
                segments[index - 1], segments[index] = segments[index], segments[index - 1]
                broken = replace(broken, segments=tuple(segments))
                continue
            broken = replace(broken, segments=changed(broken.segments, segment, data, [index]))
    return broken


def changed(values: tuple, value: object, data: st.DataObject, where: list[int] | None = None) -> tuple:
    index = data.draw(st.sampled_from(where or list(range(len(values)))))
    return (*values[:index], value, *values[index + 1 :])


def by_hand() -> tuple[Problem, Plan]:
    """Layer a in two slices, layer b; x → a → y → b → z. Pages: x 0, y 1, scratch of a 2, segments 3, 4, 3, z 0."""
    layers = (Layer("a", PAGE, Weights(64, 2, 2048), 1.0), Layer("b", 0, Weights(4160, 1, 1000), 1.0))
    buffers = (Buffer("x", PAGE, 0, 1), Buffer("y", PAGE, 0, 2), Buffer("z", PAGE, 1, 2))
    problem = Problem(layers, buffers, Storage(1e9, 0.0))
    segments = (
        Segment(0, 0, PAGE, 3 * PAGE, 0, False),
        Segment(1, 0, 2 * PAGE, 4 * PAGE, 0, False),
        Segment(2, PAGE, PAGE, 3 * PAGE, 1, False),
    )
    steps = (Step(0, 0, 1), Step(0, 1, 1), Step(1, 0, 1))
    places = ((0, PAGE, 0), (2 * PAGE, 2 * PAGE, -1))
    return problem, Plan("by hand", 6 * PAGE, 6 * PAGE, 6 * PAGE, steps, *places, segments, (1, 2, 3))


def segment(planned: Plan, index: int, **changes: object) -> Plan:
    segments = list(planned.segments)
    segments[index] = segments[index]._replace(**changes)
    return replace(planned, segments=tuple(segments))


def test_the_plan_by_hand_is_right() -> None:
    problem, planned = by_hand()
    assert verify(problem, planned) is planned


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda p: segment(p, 2, after=0),
            "load 0 (for step 0) and load 2 (for step 2) overlap in bytes and in steps 0 to 0",
        ),
        (
            lambda p: segment(p, 2, pinned=True),
            "load 0 (for step 0) and load 2 (for step 2) overlap in bytes and in steps 0 to 0",
        ),
        (lambda p: segment(p, 2, after=3), "load 2 starts after 3 steps, but step 2 waits for it"),
        (lambda p: segment(p, 0, after=1), "the waits never end: 0 of 3 loads and 0 of 3 steps done"),
        (
            lambda p: segment(p, 1, address=2 * PAGE),
            "scratch of step 0 and load 1 (for step 1) overlap in bytes and in steps 0 to 0",
        ),
        (
            lambda p: segment(p, 1, address=5 * PAGE),
            "load 1 (for step 1) at [20480, 28672): outside the arena of 24576 B or not aligned",
        ),
        (lambda p: segment(p, 1, address=4 * PAGE + 64), "load 1: address 16448 is not a multiple of 4096"),
        (lambda p: segment(p, 1, form=2), "load 1 brings weights of form 2, but step 1 needs form 0"),
        (lambda p: segment(p, 1, nbytes=PAGE), "load 1 covers [0, 4096), but step 1 needs [2112, 4160)"),
        (lambda p: segment(p, 2, nbytes=4 * PAGE), "load 2: 16384 B for 1000 B of weights"),
        (lambda p: segment(p, 2, step=1), "step 1 is loaded twice, by loads 1 and 2"),
        (lambda p: segment(p, 2, step=7), "load 2 is for step 7, which does not exist"),
        (lambda p: replace(p, need=(1, 1, 3)), "step 1 needs 1 loads, but its weights are load 1"),
        (lambda p: replace(p, need=(1, 2, 4)), "step 2 needs 4 loads of 3"),
        (lambda p: replace(p, need=(1, 2)), "need has 2 entries instead of 3"),
        (lambda p: replace(p, segments=p.segments[:2], need=(1, 2, 2)), "step 2 has weights that are never loaded"),
        (
            lambda p: replace(p, buffer_at=(0, 0, 2 * PAGE)),
            "buffer x and buffer y overlap in bytes and in steps 0 to 1",
        ),
        (lambda p: replace(p, buffer_at=(0, PAGE, PAGE)), "buffer y and buffer z overlap in bytes and in steps 2 to 2"),
        (
            lambda p: replace(p, buffer_at=(32, PAGE, 0)),
            "buffer x at [32, 4128): outside the arena of 24576 B or not aligned",
        ),
        (
            lambda p: replace(p, scratch_at=(PAGE, 2 * PAGE, -1)),
            "buffer y and scratch of step 0 overlap in bytes and in steps 0 to 0",
        ),
        (
            lambda p: replace(p, scratch_at=(-1, 2 * PAGE, -1)),
            "scratch of step 0 at [-1, 4095): outside the arena of 24576 B or not aligned",
        ),
        (lambda p: replace(p, scratch_at=(2 * PAGE, 2 * PAGE, 0)), "step 2 has no scratch, but a place for it at 0"),
        (lambda p: replace(p, budget=5 * PAGE), "arena of 24576 B exceeds the budget of 20480 B"),
        (lambda p: replace(p, arena=6 * PAGE - 64), "arena of 24512 B is not a multiple of 4096"),
        (
            lambda p: replace(p, working=7 * PAGE),
            "working range of 28672 B is no part of an arena of 24576 B in whole pages",
        ),
        (
            lambda p: replace(p, working=6 * PAGE - 64),
            "working range of 24512 B is no part of an arena of 24576 B in whole pages",
        ),
        (
            lambda p: replace(p, working=5 * PAGE),
            "load 1 (for step 1) at [16384, 24576): outside the range of what inferences work in, with the border at 20480",
        ),
        (
            lambda p: replace(p, working=PAGE),
            "buffer y at [4096, 8192): outside the range of what inferences work in, with the border at 4096",
        ),
        (
            lambda p: segment(p, 1, pinned=True),
            "load 1 (for step 1) at [16384, 24576): outside the range of what stays, with the border at 24576",
        ),
        (
            lambda p: replace(p, steps=(Step(0, 0, 1), Step(0, 0, 1), Step(1, 0, 1))),
            "step 1 is Step(layer=0, first=0, count=1); expected blocks from 1 of layer 0 (a, 2 blocks)",
        ),
        (
            lambda p: replace(p, steps=(*p.steps, Step(1, 0, 1)), need=(1, 2, 3, 3), scratch_at=(*p.scratch_at, -1)),
            "1 steps after the last layer",
        ),
    ],
)
def test_every_kind_of_fault_is_named(change, reason: str) -> None:
    problem, planned = by_hand()
    broken = change(planned)
    assert reason in check(problem, broken)
    with pytest.raises(PlanError, match="invalid plan of strategy 'by hand' for"):
        verify(problem, broken)


def read_ahead(p: Plan, **changes: object) -> Plan:
    return segment(p, 0, **{"ahead": True, "after": 3, **changes})


def test_a_load_may_start_in_the_inference_before() -> None:
    problem, planned = by_hand()
    assert check(problem, read_ahead(planned)) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda p: read_ahead(p, after=2),
            "load 0 (for step 0) and load 2 (for step 2) overlap in bytes and in steps 2 to 2",
        ),
        (
            lambda p: read_ahead(p, after=0),
            "load 0 starts after 0 steps of the inference before, which use its place",
        ),
        (
            lambda p: read_ahead(replace(p, buffer_at=(0, PAGE, 3 * PAGE))),
            "buffer z and load 0 (for step 0) overlap in bytes and between inferences",
        ),
        (lambda p: read_ahead(p, pinned=True), "load 0 is pinned and loaded ahead"),
        (lambda p: segment(p, 1, ahead=True, after=3), "load 1 is loaded ahead, but not the load before it"),
        (lambda p: segment(p, 1, count=3), "load 1 is for step 3, which does not exist"),
        (lambda p: segment(p, 1, count=2), "step 2 is loaded twice, by loads 1 and 2"),
    ],
)
def test_faults_of_what_is_loaded_ahead_and_together_are_named(change, reason: str) -> None:
    problem, planned = by_hand()
    assert reason in check(problem, change(planned))


def test_what_stays_begins_with_a_page() -> None:
    """It is carried from arena to arena by whole pages."""
    buffers = Buffer("state", PAGE, 0, 1, True), Buffer("x", ALIGN, 0, 1)
    problem = Problem((Layer("a", 0, None, 1e-3),), buffers, Storage(1e8, 0.0))
    good = plan(problem, 2 * PAGE)
    assert check(problem, good) == []
    lower = replace(good, buffer_at=(ALIGN, 0))
    assert check(problem, lower) == [
        "buffer state, which stays, at 64: not a multiple of 4096",
        "buffer state at [64, 4160): outside the range of what stays, with the border at 4096",
    ]
    for buffer in ((ALIGN, 0, 1), (PAGE, 0, 1)):
        with pytest.raises(ValueError, match="stays, but"):
            Problem((*problem.layers, *problem.layers), (Buffer("state", *buffer, True),), problem.storage)


def test_a_place_may_be_reused_as_soon_as_its_step_is_computed() -> None:
    problem, planned = by_hand()
    assert check(problem, segment(planned, 2, after=1)) == []


def aliases(*values: Value) -> list[str]:
    """What is wrong with values of the three buffers of the problem by hand."""
    problem, planned = by_hand()
    return check(replace(problem, values=values), planned)


def test_a_sum_may_be_written_over_what_it_reads_last() -> None:
    old = Value("old", PAGE, 1, (0,), (1,))
    new = Value("new", PAGE, 1, (1,), (), over=(0,))
    assert aliases(old, new) == []
    assert aliases(old, replace(new, over=())) == ["new is written over old in layer 1, which is needed until 1"]
    assert aliases(replace(old, kept=True), new) == ["new is written over old in layer 1, which is needed until 1"]
    assert aliases(old, replace(new, nbytes=PAGE - 64)) == ["new is written over old in layer 1, which is needed until 1"]
    assert aliases(replace(old, written=(0, 1)), new) == ["new is written over old in layer 1, which is needed until 1"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Value("v", PAGE, 3, (0,), (1,)), "v is in buffer 3, which does not exist"),
        (Value("v", 2 * PAGE, 1, (0,), (1,)), "v has 8192 B, buffer y only 4096 B"),
        (Value("v", PAGE, 0, (0,), (1,)), "v lives in layers [0, 2), buffer x in [0, 1)"),
        (Value("v", PAGE, 2, (0,), (1,)), "v lives in layers [0, 2), buffer z in [1, 2)"),
        (Value("v", PAGE, 1, (1,), (1,)), "v is read before a layer has written it"),
        (Value("v", PAGE, 1, (), (1,)), "v is read before a layer has written it"),
    ],
)
def test_every_fault_of_an_alias_is_named(value: Value, reason: str) -> None:
    assert aliases(value) == [reason]


def shared_by_hand() -> tuple[Problem, Plan]:
    """Layers a and c have the same weights, b others; c uses what was loaded for a. Pages: x 0, y 1, segments 2, 3."""
    same = Weights(0, 2, 2048)
    layers = (Layer("a", 0, same, 1.0), Layer("b", 0, Weights(PAGE, 1, PAGE), 1.0), Layer("c", 0, same, 1.0))
    buffers = (Buffer("x", PAGE, 0, 3), Buffer("y", PAGE, 0, 3))
    segments = (Segment(0, 0, PAGE, 2 * PAGE, 0, False), Segment(1, PAGE, PAGE, 3 * PAGE, 0, False))
    steps = (Step(0, 0, 2), Step(1, 0, 1), Step(2, 0, 2))
    places = (0, PAGE), (-1, -1, -1)
    plan = Plan("by hand", 4 * PAGE, 4 * PAGE, 4 * PAGE, steps, *places, segments, (1, 2, 1), ((2, 0),))
    return Problem(layers, buffers, Storage(1e9, 0.0)), plan


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda p: segment(p, 1, address=2 * PAGE, after=1),
            "load 0 (for step 0) and load 1 (for step 1) overlap in bytes and in steps 1 to 1",
        ),
        (lambda p: replace(p, again=()), "step 2 has weights that are never loaded"),
        (lambda p: replace(p, again=((2, 1),)), "load 1 covers [4096, 8192), but step 2, which uses it again, needs [0, 4096)"),
        (lambda p: replace(p, again=((1, 0), (2, 0))), "step 1 is loaded by load 1, and uses load 0 again"),
        (lambda p: replace(p, again=((2, 2),)), "a step or a load that does not exist is used again"),
        (lambda p: replace(p, need=(1, 2, 0)), "step 2 needs 0 loads, but its weights are load 0"),
        (
            lambda p: segment(p, 0, ahead=True, after=2),
            "load 0 starts after 2 steps of the inference before, which use its place",
        ),
    ],
)
def test_weights_that_are_used_again_must_be_there(change, reason: str) -> None:
    problem, planned = shared_by_hand()
    assert check(problem, planned) == [] and run_tagged(problem, planned, eager=True)
    assert any(found.startswith(reason) for found in check(problem, change(planned)))


def test_weights_that_are_prepared_otherwise_are_others() -> None:
    problem, planned = shared_by_hand()
    same = replace(problem.layers[0].weights, prepare_s=1e-9)
    layers = (replace(problem.layers[0], weights=same), problem.layers[1], replace(problem.layers[2], weights=same))
    assert check(replace(problem, layers=layers), planned) == []
    other = replace(layers[2], weights=replace(same, block_nbytes=PAGE, blocks=1))
    one_block = replace(planned, steps=(*planned.steps[:2], Step(2, 0, 1)))
    reasons = check(replace(problem, layers=(*layers[:2], other)), one_block)
    assert reasons == ["step 2 uses load 0 again, which prepares other weights"]
