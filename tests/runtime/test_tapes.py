"""Tapes that no compiler writes: the reader refuses whatever could do harm."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tvm_ffi

from flexcomp import runtime_ext
from flexcomp.program.program import CUDA, PAGE
from flexcomp.program.program_bytes import PROGRAM_KIND, decode_program
from flexcomp.program.tapes import Copy, Prepare, Tapes
from tests.by_hand import by_hand, encode_program, written


@pytest.fixture(scope="module")
def create():
    runtime_ext.register()
    return tvm_ffi.get_global_func(PROGRAM_KIND + ".create")


@pytest.fixture
def encoded(tiny):
    """The tiny network with a rung's tapes changed."""

    def encode(rung: int, change, **changes) -> bytes:
        one = written(tiny.program).rungs[rung]
        program = replace(tiny.program, rungs=(replace(one, tapes=change(one.tapes)),), **changes)
        return encode_program(program, tiny.digest)

    return encode


def with_turns(tapes: Tapes, name: str, change) -> Tapes:
    tape = getattr(tapes, name)
    return replace(tapes, **{name: replace(tape, turns=tuple(change(list(tape.turns))))})


def with_operation(tapes: Tapes, index: int, **changes) -> Tapes:
    operations = list(tapes.operations)
    operations[index] = replace(operations[index], **changes)
    return replace(tapes, operations=tuple(operations))


def added(tapes: Tapes, operation, name: str, after: int) -> Tapes:
    """With one more operation at the end of a tape."""
    tapes = replace(tapes, operations=(*tapes.operations, replace(operation, load=tapes.operations[-1].load)))
    return with_turns(tapes, name, lambda turns: [*turns, (len(tapes.operations) - 1, after)])


def swapped(turns: list) -> list:
    """The first operation, which is ahead, after one that is not."""
    late = next(i for i, (_, after) in enumerate(turns) if after >= 0)
    return [*turns[1 : late + 1], turns[0], *turns[late + 1 :]]


def first_after(tapes: Tapes, name: str, after: int) -> Tapes:
    """The first operation of a tape begins after so many steps."""
    return with_turns(tapes, name, lambda turns: [(turns[0][0], after), *turns[1:]])


def copy_of(tapes: Tapes, to: int) -> Copy:
    read = tapes.operations[0]
    return Copy(0, read.to, read.nbytes, to)


# (rung, change of its tapes, what the error says): the first rung reads ahead, and the third keeps everything.
CASES = {
    "operations in two places": (2, lambda t: with_turns(t, "fill", lambda turns: 2 * turns), "more operations than there are"),
    "no such operation": (0, lambda t: with_turns(t, "fill", lambda _: [(99, 0)]), "has an operation that does not exist"),
    "before the first inference": (0, lambda t: first_after(t, "first", -1), "load 0 cannot be read ahead"),
    "ahead, but later": (0, lambda t: with_turns(t, "steady", swapped), "load 0 cannot be read ahead"),
    "too far ahead": (0, lambda t: first_after(t, "steady", -99), "load 0 waits for a step that does not exist"),
    "filling after a step": (2, lambda t: first_after(t, "fill", 1), "load 0 waits for a step that does not exist"),
    "at any time, in a steady inference": (
        0, lambda t: with_operation(t, t.steady.turns[3][0], early=True), "load 3 is read at any time"
    ),
    "what stays, in every inference": (
        2, lambda t: with_turns(with_operation(t, 0, early=False), "steady", lambda _: [(0, 0)]), "every inference writes to what"
    ),
    "what stays is not filled": (2, lambda t: with_turns(t, "fill", lambda turns: turns[1:]), "different weights stay"),
    "filled from elsewhere": (
        2, lambda t: added(with_turns(t, "fill", lambda turns: turns[1:]), replace(t.operations[0], source=PAGE), "fill", 0),
        "different weights stay",
    ),
    "at any time, where something lies": (2, lambda t: added(t, t.operations[0], "fill", 0), "in use"),
    "written over before it is used": (
        2, lambda t: added(t, replace(t.operations[0], early=False), "fill", 0), "is written over before it is used"
    ),
    "over its source": (2, lambda t: added(t, copy_of(t, t.operations[0].to + PAGE), "fill", 0), "is written over its source"),
    "a source across the border": (
        1, lambda t: added(t, Copy(0, t.operations[0].to - PAGE, 2 * PAGE, 0), "fill", 0), "lies across the border"
    ),
    "a copy of nothing": (0, lambda t: added(t, Copy(0, 0, PAGE, 2 * PAGE), "fill", 0), "from bytes that no load brings"),
    "weights that are not prepared": (0, lambda t: added(t, Prepare(0, 0, 0, 1, 0, PAGE), "fill", 0), "prepares no weights"),
    "a layer that is not there": (0, lambda t: added(t, Prepare(0, 99, 0, 1, 0, PAGE), "fill", 0), "prepares no weights"),
    "loads that do not follow each other": (0, lambda t: with_operation(t, -1, load=99), "loads do not follow each other"),
    "too few tapes": (0, lambda t: replace(t, steady=None), "holds something else than it is said to"),
    "a need too little": (
        0, lambda t: replace(t, first=replace(t.first, need=t.first.need[:-1])), "holds something else than it is said to"
    ),
    "a need of more than there is": (
        0, lambda t: replace(t, first=replace(t.first, need=(*t.first.need[:-1], 99))), "waits for a load that does not exist"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_tapes_that_could_do_harm_are_refused(encoded, create, case):
    rung, change, match = CASES[case]
    with pytest.raises(RuntimeError, match=match) as caught:
        create(encoded(rung, change))
    assert caught.value.__tvm_ffi_error__.kind == "ArtifactError"


def test_other_numbers_of_loads_are_of_no_concern(encoded, create):
    """They are for people: of one load now."""
    create(encoded(0, lambda t: replace(t, operations=tuple(replace(one, load=0) for one in t.operations))))


def test_nothing_is_copied_in_the_memory_of_a_device(encoded, create):
    create(encoded(0, lambda t: t, space=CUDA))
    with pytest.raises(RuntimeError, match="is copied or prepared in the memory of a GPU"):
        create(encoded(0, lambda t: added(t, copy_of(t, 0), "fill", 0), space=CUDA))


def test_loads_are_what_their_tapes_say(tiny):
    program = written(tiny.program)
    for plan, rung in zip(tiny.program.rungs, program.rungs, strict=True):
        assert by_hand(program, rung) == plan
        kept = [operation for operation, _ in rung.tapes.fill.turns]
        assert sum(rung.tapes.operations[operation].nbytes for operation in kept) == program.pinned_nbytes(rung)
    assert decode_program(encode_program(program, tiny.digest)) == program
