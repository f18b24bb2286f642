"""What the runtime refuses although every address is inside the arena: plans that overwrite what is needed, and layers
that give their kernels what these were not compiled for. Each case is the tiny network's program with a right checksum."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tvm_ffi

from flexcomp import runtime_ext
from flexcomp.errors import ArtifactError
from flexcomp.program import Load, program_bytes
from flexcomp.program.program import (
    PAGE,
    Interleaved,
    Layer,
    Port,
    RowsArg,
    ScratchArg,
    State,
    Strided,
    TensorType,
    Value,
    ValueArg,
    WeightArg,
    Weights,
)
from flexcomp.program.program_bytes import PROGRAM_KIND
from tests.by_hand import Step, encode_program
from tests.runtime import tiny as builder

PLACE = builder.SLICE_NBYTES


@pytest.fixture(scope="module")
def create():
    runtime_ext.register()
    return tvm_ffi.get_global_func(PROGRAM_KIND + ".create")


@pytest.fixture(scope="module")
def opened(tiny, create):
    """Opens a session of a program with the tiny network's kernels and weights."""
    library = tvm_ffi.load_module(str(tiny.library))

    def open_session(program):
        module = create(encode_program(program, tiny.digest))
        return module.get_function("open")(str(tiny.weights), f'{{"library_path": "{tiny.library}"}}')

    assert library is not None and open_session(tiny.program)
    return open_session


def changed(items, index, **changes):
    """The tuple with one item changed."""
    index %= len(items)
    return (*items[:index], replace(items[index], **changes), *items[index + 1 :])


def with_rung(program, **changes):
    return replace(program, rungs=(replace(program.rungs[0], **changes), *program.rungs[1:]))


def with_args(program, layer, change):
    """`change(args)` gives other arguments of a layer."""
    return replace(program, layers=changed(program.layers, layer, args=tuple(change(program.layers[layer].args))))


def refused(create, program, digest, match):
    with pytest.raises(RuntimeError, match=match) as caught:
        create(encode_program(program, digest))
    assert caught.value.__tvm_ffi_error__.kind == "ArtifactError"


# (part of the first rung, index, changes, what the error says). Steps 0 to 11 are slices of six layers in a ring of three
# places, step 12 has the weights of a page, step 13 none; loads 0 to 2 are read ahead.
PLANS = [
    ("steps", 0, {"weights_at": builder.RING + PAGE}, "no load that step 0 waits for brings its weights .layer mv0"),
    ("steps", 0, {"need": 0}, "no load that step 0 waits for"),
    ("steps", 3, {"need": 3}, "no load that step 3 waits for"),
    ("loads", 3, {"source": 2 * PLACE}, "no load that step 3 waits for"),
    ("loads", 3, {"source": 3 * PLACE + PAGE}, "no load that step 3 waits for"),
    ("loads", 3, {"target": builder.RING + PLACE}, "no load that step 3 waits for|in use"),
    ("loads", 3, {"nbytes": PLACE - PAGE}, "no load that step 3 waits for"),
    ("loads", 3, {"after": 0}, "are in use when step 0 begins"),
    ("loads", 4, {"after": 1}, "are in use when step 1 begins"),
    ("loads", 2, {"after": 11}, "load 2 is read ahead while step 11 uses it|in use when step 11"),
    ("loads", -1, {"target": 0}, "no load that step 12 waits for|in use"),
    ("steps", 13, {"scratch_at": builder.X}, "are in use when step 13 begins"),
    ("steps", 13, {"scratch_at": builder.OUT}, "are in use when step 13 begins"),
    ("steps", 13, {"scratch_at": builder.RING}, "are in use when step 1[123] begins"),  # read ahead again
    ("steps", 13, {"weights_at": 0}, "has a place for weights that layer add does not have"),
    ("steps", 12, {"scratch_at": 0}, "has a place for scratch that layer mul does not have"),
    ("steps", 1, {"first": 0}, "step 1 comes before blocks from 4 of layer mv0"),
    ("steps", 1, {"count": 3}, "step 2 comes before blocks from 7 of layer mv0"),
    ("steps", 2, {"layer": 2}, "step 3 comes before|reads of value"),
]


@pytest.mark.parametrize(("part", "index", "changes", "match"), PLANS)
def test_plans_that_overwrite_what_is_needed_are_refused(tiny, create, part, index, changes, match):
    items = changed(getattr(tiny.program.rungs[0], part), index, **changes)
    refused(create, with_rung(tiny.program, **{part: items}), tiny.digest, match)


@pytest.mark.parametrize(
    "value_at", [(0, 1024, 1024, 3072), (0, 64, 2048, 3072), (0, 1024, 2048, 0), (0, 1024, 2048, 4096)]
)
def test_values_that_share_bytes_are_refused(tiny, create, value_at):
    refused(create, with_rung(tiny.program, value_at=value_at), tiny.digest, "are in use when step")


def test_values_that_are_not_live_together_may_share_bytes(tiny, create):
    """The last step, which writes `out`, reads one of `a` and `b`; the other is over."""
    over = 3 - tiny.program.layers[-1].args[0].value
    value_at = list(tiny.program.rungs[0].value_at)
    value_at[3] = value_at[over]
    create(encode_program(with_rung(tiny.program, value_at=tuple(value_at)), tiny.digest))


@pytest.mark.parametrize(
    ("gone", "match"),
    [
        (range(13, 14), "output out is not written"),
        (range(12, 13), "no step uses load 12"),
        (range(4, 6), "no step uses load 4"),
        (range(11, 12), "step 11 comes before blocks from 4 of layer mv5"),
    ],
)
def test_missing_steps_are_refused(tiny, create, gone, match):
    rung = tiny.program.rungs[0]
    steps = tuple(step for i, step in enumerate(rung.steps) if i not in gone)
    loads = tuple(replace(load, after=min(load.after, len(steps))) for load in rung.loads)
    refused(create, with_rung(tiny.program, steps=steps, loads=loads), tiny.digest, match)


def test_what_stays_shares_no_byte(tiny, create):
    """Nor with what stays, too: the second slice in the place of the first, where everything is resident."""
    rung = tiny.program.rungs[2]
    loads = changed(rung.loads, 1, target=rung.working)
    steps = changed(rung.steps, 1, weights_at=rung.working)
    program = replace(tiny.program, rungs=(*tiny.program.rungs[:2], replace(rung, loads=loads, steps=steps)))
    refused(create, program, tiny.digest, "are in use")


def test_loads_that_nobody_uses_are_refused(tiny, create):
    rung = tiny.program.rungs[2]
    loads = (*rung.loads, Load(0, PAGE, rung.arena, 0, True))
    wide = replace(rung, loads=loads, arena=rung.arena + PAGE, budget=rung.budget + PAGE)
    program = replace(tiny.program, rungs=(*tiny.program.rungs[:2], wide))
    refused(create, program, tiny.digest, f"no step uses load {len(loads) - 1}")


def over(program, *, allowed: bool, also_read: bool = False, kept: bool = False):
    """The last layer's result in the place of its first operand."""

    def args(given):
        operand = replace(given[0], over=allowed)
        return (operand, replace(given[1], value=operand.value) if also_read else given[1], *given[2:])

    program = with_args(program, -1, args)
    operand = program.layers[-1].args[0].value
    if kept:
        program = replace(program, outputs=(*program.outputs, Port("too", operand, builder.VECTOR)))
    at = lambda rung: (*rung.value_at[:3], rung.value_at[operand])  # noqa: E731
    return replace(program, rungs=tuple(replace(rung, value_at=at(rung)) for rung in program.rungs))


def test_a_result_may_be_written_over_its_operand_only_where_the_kernel_allows_it(tiny, create):
    create(encode_program(over(tiny.program, allowed=True), tiny.digest))
    refused(create, over(tiny.program, allowed=False), tiny.digest, "are in use when step 13 begins")
    refused(create, over(tiny.program, allowed=True, also_read=True), tiny.digest, "are in use when step 13 begins")
    refused(create, over(tiny.program, allowed=True, kept=True), tiny.digest, "are in use when step 13 begins")


def test_what_is_read_was_written(tiny, create):
    def half(args):
        return (*args[:-1], replace(args[-1], part=0.5))

    refused(create, with_args(tiny.program, 0, half), tiny.digest, "reads of value a what no layer has written")
    refused(
        create,
        with_args(tiny.program, 6, lambda args: (replace(args[0], value=3), *args[1:])),
        tiny.digest,
        "value out",
    )
    refused(
        create,
        with_args(tiny.program, 6, lambda args: (*args[:2], replace(args[2], value=0))),
        tiny.digest,
        "is an input",
    )
    refused(
        create,
        with_args(tiny.program, 6, lambda args: (*args[:2], replace(args[2], value=args[0].value))),
        tiny.digest,
        "uses what it writes",
    )
    twice = replace(tiny.program, inputs=(*tiny.program.inputs, Port("too", 0, builder.VECTOR)))
    refused(create, twice, tiny.digest, "inputs x and too are one value|are one value")


def with_state(program, **changes):
    """Its output becomes its input."""
    place, x, out = len(program.values), program.inputs[0], program.outputs[0]
    state = replace(State(x.name, out.name, x.type, place, 0, out.value), **changes)

    def moved(arg):
        return replace(arg, value=place) if isinstance(arg, ValueArg) and arg.value == x.value else arg

    return replace(
        program,
        values=(*program.values, Value("state", PAGE)),
        layers=tuple(replace(layer, args=tuple(map(moved, layer.args))) for layer in program.layers),
        inputs=(),
        outputs=(),
        states=(state,),
        rungs=tuple(
            replace(rung, value_at=(*rung.value_at, rung.arena), arena=rung.arena + PAGE, budget=rung.budget + PAGE)
            for rung in program.rungs
        ),
    )


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"value": 99}, "the state x does not lie where states do"),
        ({"value": 1}, "the state x does not lie where states do"),
        ({"offset": 1}, "the state x lies in another one, or outside"),
        ({"offset": PAGE - 64}, "the state x lies in another one, or outside"),
        ({"type": TensorType((0,))}, "the state x lies in another one, or outside"),
        ({"result": 99}, "the state x becomes nothing that has its size"),
        ({"result": 0}, "what state x becomes is not written"),
        ({"type": TensorType((512,)), "result": 3}, "the state x becomes nothing that has its size"),
    ],
)
def test_states_that_are_none(tiny, create, changes, match):
    create(encode_program(with_state(tiny.program), tiny.digest))
    refused(create, with_state(tiny.program, **changes), tiny.digest, match)


def test_what_stays_is_of_nobody_else(tiny, create):
    program = with_state(tiny.program)
    (state,) = program.states
    place = state.value
    twice = replace(state, input="y", output="z")
    refused(create, replace(program, states=(state, twice)), tiny.digest, "the state y lies in another one, or outside")
    named = replace(program, states=(state, replace(twice, input="x", offset=1024)))
    refused(create, named, tiny.digest, "two inputs are called x")
    refused(create, replace(program, inputs=(Port("i", place, builder.VECTOR),)), tiny.digest, "port i lies where states do")
    outside = "lies outside the range of what stays"
    for at, match in ((builder.RING, outside), (program.rungs[0].arena - PAGE + 64, "do not begin with a page")):
        value_at = (*program.rungs[0].value_at[:place], at)
        wide = with_rung(program, value_at=value_at, arena=program.rungs[0].arena + PAGE, budget=program.rungs[0].budget + PAGE)
        refused(create, wide, tiny.digest, match)
    resident = program.rungs[2]
    resident = replace(resident, value_at=(*resident.value_at[:place], resident.working))
    refused(create, replace(program, rungs=(*program.rungs[:2], resident)), tiny.digest, "load 0 lies over states")
    written = with_args(program, 6, lambda args: (*args[:2], replace(args[2], value=place)))
    refused(create, written, tiny.digest, "writes to value state, which is an input or complete")


PAGE_OF = Weights(0, 1, 1024)


def exchanging(program, *, args=None, layer=None, at=None):
    """Its input is a state, bytes of which a layer, the last, exchanges with the output."""
    program = with_state(program)
    (state,) = program.states
    rows = ValueArg(3, builder.VECTOR, exchanged=True)
    own = ValueArg(state.value, state.type, exchanged=True)
    made = args(own, rows) if args else (own, rows)
    exchange = Layer("exchange", "scatter", "exchange", "", "", made, None, 0, 0)
    exchange = replace(exchange, **(layer or {}))
    step = Step(len(program.layers), 0, 1, 0, -1, -1)

    def longer(rung):
        steps = (*rung.steps[: at or len(rung.steps)], step, *rung.steps[at or len(rung.steps) :])
        return replace(rung, steps=steps)

    return replace(
        program,
        states=(replace(state, result=state.value),),
        layers=(*program.layers, exchange),
        rungs=tuple(map(longer, program.rungs)),
    )


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"args": lambda own, rows: (own,)}, "exchanges something else than parts of a state"),
        ({"args": lambda own, rows: (own, rows, replace(rows, value=1))}, "exchanges something else than parts"),
        ({"args": lambda own, rows: (rows, replace(rows, value=1))}, "exchanges something else than parts"),
        ({"args": lambda own, rows: (own, own)}, "exchanges something else than parts"),
        ({"args": lambda own, rows: (replace(own, type=TensorType((128,))), rows)}, "exchanges something else than parts"),
        ({"args": lambda own, rows: (own, rows, replace(own, exchanged=False))}, "layer exchange uses what it writes"),
        ({"args": lambda own, rows: (own, rows, replace(rows, exchanged=False))}, "layer exchange uses what it writes"),
        ({"args": lambda own, rows: (own, rows, WeightArg(0, builder.VECTOR)), "layer": {"weights": PAGE_OF}}, "does not stay"),
        ({"args": lambda own, rows: (own, rows, ValueArg(1, builder.VECTOR, written=True))}, "takes what does not stay"),
        ({"args": lambda own, rows: (own, rows, ValueArg(1, builder.VECTOR, over=True))}, "takes what does not stay"),
        ({"args": lambda own, rows: (own, replace(rows, part=2.0))}, "no byte of it, or more than it has"),
        ({"args": lambda own, rows: (own, replace(rows, value=0))}, "lies outside the arena|reads of value x"),
        ({"at": 13}, "reads of value out what no layer has written"),
    ],
)
def test_exchanges_that_are_none(tiny, create, changes, match):
    create(encode_program(exchanging(tiny.program), tiny.digest))
    refused(create, exchanging(tiny.program, **changes), tiny.digest, match)


def test_what_takes_an_exchange_back_stays(tiny, create):
    """To the end of the inference, where its place could be the last result's."""
    over = 3 - tiny.program.layers[-1].args[0].value
    shared = exchanging(tiny.program, args=lambda own, rows: (own, replace(rows, value=over)), at=13)
    create(encode_program(shared, tiny.digest))
    value_at = list(shared.rungs[0].value_at)
    value_at[3] = value_at[over]
    refused(create, with_rung(shared, value_at=tuple(value_at)), tiny.digest, "are in use when step 14 begins")


def lanes(rows, block_nbytes=4096, *parts):
    """Blocks of interleaved rows."""
    return Interleaved(rows, block_nbytes, tuple(Strided(*part) for part in parts or ((0, 4, 64),)))


def fetching(program, numbers=None, rows=None, more=()):
    """With a layer in front that takes rows of the file by numbers, which are an input."""
    ids, place = len(program.values), program.rungs[0].arena
    given = ValueArg(ids, TensorType((4,), "int64"))
    given = replace(given, **(numbers or {}))
    fetched = replace(RowsArg(0, TensorType((4, 64)), 64, 100), **(rows or {}))
    layer = Layer("take", "take", "rows", "", "", (given, fetched, *more), None, (1 + len(more) // 2) * fetched.room_nbytes, 0)
    step = Step(len(program.layers), 0, 1, 0, -1, place + 64)
    room = PAGE * (2 + (1 + len(more) // 2) * fetched.room_nbytes // PAGE)

    def longer(rung):
        above = rung.arena  # of what stays there is nothing here
        return replace(
            rung, value_at=(*rung.value_at, above), steps=(*rung.steps, replace(step, scratch_at=above + 64)),
            arena=above + room, working=above + room, budget=rung.budget + room,
        )  # fmt: skip

    return replace(
        program,
        values=(*program.values, Value("ids", 64)),
        inputs=(*program.inputs, Port("ids", ids, TensorType((4,), "int64"))),
        layers=(*program.layers, layer),
        rungs=(longer(program.rungs[0]),),
    )


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"rows": {"rows": 0}}, "the table of layer take lies outside the file"),
        ({"rows": {"rows": 10**9}}, "the table of layer take lies outside the file"),
        ({"rows": {"rows": 2**63}}, "the table of layer take lies outside the file"),
        ({"rows": {"table": 2**40}}, "the table of layer take lies outside the file"),
        ({"rows": {"table": 2**63}}, "the table of layer take lies outside the file"),
        ({"rows": {"table": 65}}, "the table of layer take lies outside the file"),
        ({"rows": {"type": TensorType((3, 64))}}, "layer take fetches rows by no numbers"),
        ({"rows": {"type": TensorType((256,))}}, "there are no rows to fetch"),
        ({"numbers": {"type": TensorType((4,), "float64")}}, "layer take fetches rows by no numbers"),
        ({"numbers": {"written": True}}, "layer take fetches rows by no numbers"),
        ({"rows": {"interleaved": lanes(16, 0)}}, "the table of layer take lies outside the file"),
        ({"rows": {"interleaved": lanes(16, 2**60 + 1)}}, "there are no rows to fetch"),
        ({"rows": {"interleaved": lanes(0)}}, "there are no rows to fetch"),
        ({"rows": {"interleaved": lanes(101, 4096 * 7)}}, "layer take fetches rows of no table"),
        ({"rows": {"interleaved": lanes(16, 4095)}}, "layer take fetches rows of no table"),
        ({"rows": {"interleaved": lanes(16, 4096, (1, 4, 64))}}, "layer take fetches rows of no table"),
        ({"rows": {"interleaved": lanes(16, 4096, (0, 4, 63))}}, "layer take fetches rows of no table"),
        ({"rows": {"interleaved": lanes(16, 4096, (0, 4, 63), (0, 4, 2))}}, "layer take fetches rows of no table"),
        ({"rows": {"interleaved": lanes(16, 4096, (0, 4, 64), (0, 0, 1))}}, "layer take fetches rows of no table"),
        ({"rows": {"interleaved": lanes(16, 4096, (0, 4, 2**62 + 64))}}, "layer take fetches rows of no table"),
        ({"rows": {"interleaved": lanes(1, 4096), "rows": 2**62}}, "the table of layer take lies outside the file"),
        ({"more": (ValueArg(4, TensorType((4,), "int64")), RowsArg(13312, TensorType((4, 64)), 0, 1))}, "two tables"),
    ],
)
def test_rows_that_cannot_be_fetched(tiny, create, changes, match):
    for rows in ({}, {"interleaved": lanes(16)}, {"interleaved": lanes(20, 5184, (64, 2, 120), (5024, 8, 1), (4944, 4, 2))}):
        create(encode_program(fetching(tiny.program, rows=rows), tiny.digest))
    with pytest.raises((RuntimeError, ValueError), match=match):
        create(encode_program(fetching(tiny.program, **changes), tiny.digest))


def test_parts_of_a_value_by_several_layers(tiny, create):
    """Two layers that each write a half of every pixel make a whole; one does not, and three are too many."""
    program, whole = tiny.program, len(tiny.program.values)
    *before, mul, last = program.layers
    half = replace(mul, args=(*mul.args[:-1], replace(mul.args[-1], value=whole, part=0.5)))
    last = replace(last, args=(replace(last.args[0], value=whole), *last.args[1:]))
    rungs = tuple(
        replace(builder.with_page(rung), value_at=(*rung.value_at, rung.working)) for rung in program.rungs
    )
    program = replace(
        program, values=(*program.values, Value("whole", 1024)), layers=(*before, half, last), rungs=rungs
    )

    def with_halves(count):
        def repeated(rung):
            return replace(rung, steps=(*rung.steps[:12], *[rung.steps[12]] * count, rung.steps[13]))

        return replace(program, rungs=tuple(map(repeated, program.rungs)))

    create(encode_program(with_halves(2), tiny.digest))
    refused(create, with_halves(1), tiny.digest, "layer add reads of value whole what no layer has written")
    refused(create, with_halves(3), tiny.digest, "layer mul writes to value whole, which is an input or complete")


FEWER = TensorType((builder.BLOCKS // 2, builder.N, builder.NR * 2))
SIGNATURES = {
    "another type": (6, lambda args: (replace(args[0], type=TensorType((256,), "int32")), *args[1:])),
    "fewer elements": (6, lambda args: (replace(args[0], type=TensorType((128,))), *args[1:])),
    "an argument less": (7, lambda args: (args[0], *args[2:])),
    "an argument more": (7, lambda args: (*args[:2], args[1], *args[2:])),
    "weights in place of a value": (
        7,
        lambda args: (args[0], WeightArg(0, builder.VECTOR), *args[2:]),
        "weights of step 13",
    ),
    "scratch that is a result": (
        7,
        lambda args: (*args[:3], ValueArg(1 + (args[0].value == 1), builder.VECTOR, True)),
        "place for scratch",
    ),
    "written where it reads": (7, lambda args: (replace(args[0], value=3 - args[0].value, written=True), *args[1:])),
    "other blocks": (0, lambda args: (args[0], WeightArg(0, FEWER), *args[2:]), "more blocks than layer mv0"),
    "no blocks": (0, lambda args: (args[0], args[1], args[4]), "more blocks than layer mv0"),
    "may be written over": (7, lambda args: (replace(args[0], over=True), *args[1:])),
}


@pytest.mark.parametrize("case", SIGNATURES)
def test_layers_that_do_not_agree_with_their_kernel_are_refused(tiny, opened, case):
    """At load, or when the plan does not fit any more; what gets as far as the library finds no such kernel there."""
    layer, change, *instead = SIGNATURES[case]
    match = (
        instead[0]
        if instead
        else f"no kernel first_\\w+ that takes what layer {tiny.program.layers[layer].name} gives it"
    )
    if layer == 0 and not instead:
        match = "holds a kernel first_mv that takes what layer mv0 gives it"
    program = with_args(tiny.program, layer, change)
    args = program.layers[layer].args
    if any(isinstance(arg, WeightArg) for arg in args) != (program.layers[layer].weights is not None):
        source = program.layers[6].weights.offset
        program = replace(program, layers=changed(program.layers, layer, weights=Weights(source, 1, 1024)))
    if not any(isinstance(arg, ScratchArg) for arg in args):
        program = replace(program, layers=changed(program.layers, layer, scratch_nbytes=0))
    if case == "other blocks":
        program = replace(program, layers=changed(program.layers, 0, weights=Weights(0, 4, 2 * builder.BLOCK_NBYTES)))
    if case == "no blocks":
        program = replace(program, layers=changed(program.layers, 0, weights=Weights(0, 1, 8 * builder.BLOCK_NBYTES)))
    with pytest.raises(RuntimeError, match=match) as caught:
        opened(program)
    assert caught.value.__tvm_ffi_error__.kind == "ArtifactError"


@pytest.mark.parametrize("layer", [0, 7])
def test_the_error_names_layer_and_kernel(tiny, opened, layer):
    def fewer(args):
        return (replace(args[0], type=TensorType((16, 8))), *args[1:])

    program = with_args(tiny.program, layer, fewer)
    kernel, name = ("first_mv", "mv0") if layer == 0 else ("first_halve_add", "add")
    with pytest.raises(RuntimeError, match=f"kernel {kernel} that takes what layer {name} gives it"):
        opened(program)


@pytest.mark.parametrize("name", ["_library_bin", "_library_bin\0", "first_mul", "first_mv\0", "", "first_halve_add"])
def test_programs_that_name_other_symbols_are_refused(tiny, opened, name):
    program = replace(tiny.program, layers=changed(tiny.program.layers, 6, kernel=name))
    if name == "first_mul":
        program = replace(tiny.program, layers=changed(tiny.program.layers, 0, kernel=name))
    with pytest.raises(RuntimeError, match=r"that takes what layer (mul|mv0) gives it") as caught:
        opened(program)
    assert caught.value.__tvm_ffi_error__.kind == "ArtifactError"


@pytest.mark.parametrize(("pinned", "streamed", "says"), [(64, 0, "to keep"), (0, 64, "to read")])
def test_a_head_that_says_other_bytes_than_its_plan_is_refused(tiny, create, monkeypatch, pinned, streamed, says):
    so = program_bytes._weights_nbytes

    def said(program, rung):
        is_first = rung.budget == program.rungs[0].budget
        kept, read = so(program, rung)
        return kept + pinned * is_first, read + streamed * is_first

    monkeypatch.setattr(program_bytes, "_weights_nbytes", said)
    blob = encode_program(tiny.program, tiny.digest)
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match=f"it is said {says}") as caught:
        create(blob)
    assert caught.value.__tvm_ffi_error__.kind == "ArtifactError"
    with pytest.raises(ArtifactError, match="has other weights than it is said to"):
        program_bytes.decode_program(blob)
