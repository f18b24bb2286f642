"""Layers that write straight into the concatenation that they are parts of."""

import tvm
from tvm import relax

from flexcomp.passes import ChooseKernels, FuseLayers, PlaceParts, PretransformWeights, SliceLayers
from flexcomp.passes.attributes import decode_place
from flexcomp.schedules.tiles.place import Place
from flexcomp.schedules.tiles.tile import VectorUnit

from .networks import calls, conv, network
from .reference import assert_same_results

op = relax.op
UNIT = VectorUnit(8, 16)
IMAGE = (1, 6, 5, 8)
W = {"v": (16, 1, 1, 8), "w": (24, 3, 3, 8)}


def places(mod: tvm.IRModule) -> list[tuple[int, Place] | None]:
    """For every layer that main calls its place, if it has one."""
    attrs = [mod[name].attrs for name in calls(mod) if name.startswith("layer_")]
    return [decode_place(known["flexcomp.place"]) if "flexcomp.place" in known else None for known in attrs]


def placed(inputs: dict, weights: dict, body) -> tvm.IRModule:
    """The network after PlaceParts; checks that the input is left alone and the result is well formed."""
    fused = FuseLayers()(network(inputs, weights, body))
    text = fused.script()
    after = PlaceParts()(fused)
    assert fused.script() == text
    relax.analysis.well_formed(after)
    return after


def kernels(mod: tvm.IRModule) -> tvm.IRModule:
    return PretransformWeights(UNIT)(SliceLayers(UNIT)(ChooseKernels(UNIT)(mod)))


def called(mod: tvm.IRModule) -> list[str]:
    """The operators by which main calls kernels, in order."""
    values = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    names = [value.op.name for value in values if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op)]
    return [name.removeprefix("relax.") for name in names if "call_tir" in name]


def test_all_parts_are_layers():
    def body(emit, x, v, w):
        return op.concat([emit(op.nn.relu(emit(conv(x, v)))), emit(conv(x, w, padding=(1, 1)))], axis=3)

    after = placed({"x": IMAGE}, W, body)
    whole = (1, 6, 5, 40)
    assert [place for _, place in places(after)] == [Place(whole, 0, 40), Place(whole, 16, 40)]
    packed = kernels(after)
    relax.analysis.well_formed(packed)
    assert called(packed) == ["call_tir", "call_tir_inplace"] and "relax.concat" not in calls(packed)[-1:]
    assert_same_results(network({"x": IMAGE}, W, body), packed)


def test_the_other_parts_are_copied():
    def body(emit, x, v, w):
        first = emit(conv(x, v))
        pooled = emit(op.nn.max_pool2d(x, (3, 3), padding=(1, 1), layout="NHWC"))
        joined = emit(op.concat([x, first, pooled], axis=3))
        return op.nn.relu(joined)

    after = placed({"x": IMAGE}, W, body)
    assert [place for _, place in places(after)] == [Place((1, 6, 5, 32), 8, 32)]
    packed = kernels(after)
    assert called(packed) == ["call_tir", "call_tir_inplace"]
    assert_same_results(network({"x": IMAGE}, W, body), packed)


def test_through_reshapes_behind_a_token():
    def body(emit, x, v, w, token):
        tokens = emit(op.reshape(emit(conv(x, v)), (1, 30, 16)))
        return op.nn.relu(emit(op.concat([token, tokens], axis=1)))

    given = {"x": IMAGE}, {**W, "token": (1, 1, 16)}, body
    after = placed(*given)
    assert [place for _, place in places(after)] == [Place((1, 31, 16), 16, 16)]
    assert_same_results(network(*given), kernels(after))


def test_two_concatenations_have_two_numbers():
    def body(emit, x, v, w):
        inner = emit(op.concat([emit(conv(x, v)), x], axis=3))
        return op.concat([emit(conv(x, w, padding=(1, 1))), emit(op.nn.relu(inner))], axis=3)

    after = placed({"x": IMAGE}, W, body)
    (one, _), (other, _) = places(after)
    assert one != other
    assert_same_results(network({"x": IMAGE}, W, body), kernels(after))


def none_placed(body, inputs: dict | None = None) -> bool:
    return not any(places(placed(inputs or {"x": IMAGE}, W, body)))


def test_what_something_else_reads_stays_where_it_is():
    def read_again(emit, x, v, w):
        y = emit(conv(x, v))
        return op.add(emit(op.sum(y)), emit(op.sum(emit(op.concat([y, x], axis=3)))))

    def twice(emit, x, v, w):
        y = emit(conv(x, v))
        return op.concat([y, y], axis=3)

    def an_output(emit, x, v, w):
        y = emit(conv(x, v))
        return relax.Tuple([y, emit(op.concat([y, x], axis=3))])

    assert none_placed(read_again) and none_placed(twice) and none_placed(an_output)


def test_what_cannot_be_written_there_stays_where_it_is():
    def with_a_residual(emit, x, r, v, w):
        return op.concat([emit(op.add(emit(conv(x, v)), r)), x], axis=3)

    def images_apart(emit, x, v, w):
        y = emit(conv(x, v))
        return op.concat([y, emit(op.nn.relu(emit(op.zeros_like(y))))], axis=1)

    assert none_placed(with_a_residual, {"x": IMAGE, "r": (1, 6, 5, 16)})
    assert none_placed(images_apart, {"x": (2, 6, 5, 8)})
