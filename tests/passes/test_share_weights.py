import tvm
from tvm import relax

from flexcomp.passes import ShareWeights

from .networks import calls, network

op = relax.op
WEIGHTS = {"w": (64, 128), "v": (64, 128)}


def packed(second: str, twice: bool = True) -> tvm.IRModule:
    """Two products, each with a transposed weight of its own; the second may be another one, or in another shape."""

    def body(emit, x, w, v):
        y = emit(op.matmul(x, emit(op.permute_dims(w))))
        other = {"w": w, "v": v}[second]
        return op.add(y, emit(op.matmul(x, emit(op.permute_dims(other) if twice else op.reshape(other, (128, 64))))))

    return network({"x": (4, 128)}, WEIGHTS, body)


def test_what_is_made_twice_of_a_weight_is_made_once():
    before = packed("w")
    text = before.script()
    after = ShareWeights()(before)
    assert before.script() == text, "the input module was changed"
    relax.analysis.well_formed(after)
    assert calls(before).count("relax.permute_dims") == 2
    assert calls(after) == ["relax.permute_dims", "relax.matmul", "relax.matmul", "relax.add"]


def test_other_weights_and_other_operators_are_others():
    for before in (packed("v"), packed("w", twice=False)):
        assert ShareWeights()(before).same_as(before)


def test_what_inputs_decide_is_left_alone():
    def body(emit, x, w):
        return op.add(emit(op.matmul(x, emit(op.permute_dims(w)))), emit(op.matmul(x, emit(op.permute_dims(w)))))

    before = network({"x": (4, 128), "w": (64, 128)}, {}, body)
    assert ShareWeights()(before).same_as(before)


def test_small_weights_are_left_alone():
    def body(emit, x, w):
        return op.add(emit(op.add(x, emit(op.negative(w)))), emit(op.negative(w)))

    before = network({"x": (4, 128)}, {"w": (4, 128)}, body)
    assert ShareWeights()(before).same_as(before)
