"""KeepIntegers: no conversion to integers between what makes integers in float32 and what reads them so."""

from __future__ import annotations

import tvm
from tvm import relax

from flexcomp.passes import KeepIntegers

from .networks import calls, network

op = relax.op
IMAGE = (1, 4, 6, 6)


def number(value: float) -> relax.Expr:
    return relax.const(value, "float32")


def rounded(emit, x, low: float = -3.0, high: float = 252.0):
    return emit(op.clip(emit(op.round(x)), low, high))


def quantised(emit, x, zero: float = 3.0):
    return emit(op.astype(emit(op.add(rounded(emit, x), number(zero))), "uint8"))


def integers(emit, q, zero: float = 3.0):
    return emit(op.subtract(emit(op.astype(q, "float32")), number(zero)))


def operators(mod: tvm.IRModule) -> list[str]:
    return [name.removeprefix("relax.").removeprefix("nn.") for name in calls(mod)]


def after(apply, body) -> list[str]:
    return operators(apply(KeepIntegers(), network({"x": IMAGE}, {}, body)))


def test_there_and_back_is_nothing(apply):
    assert after(apply, lambda emit, x: integers(emit, quantised(emit, x))) == ["round", "clip"]


def test_what_moves_integers_moves_floats(apply):
    def body(emit, x):
        q = quantised(emit, x)
        pooled = emit(op.nn.max_pool2d(q, (2, 2)))
        return integers(emit, emit(op.concat([pooled, pooled], axis=1)))

    assert after(apply, body) == ["round", "clip", "max_pool2d", "concat"]


def test_another_zero_point_is_subtracted(apply):
    assert after(apply, lambda emit, x: integers(emit, quantised(emit, x), 4.0)) == ["round", "clip", "add", "subtract"]


def test_what_is_returned_stays_an_integer(apply):
    def body(emit, x):
        q = quantised(emit, x)
        return relax.Tuple([q, integers(emit, q)])

    mod = apply(KeepIntegers(), network({"x": IMAGE}, {}, lambda emit, x: emit(op.multiply(body(emit, x)[1], number(2.0)))))
    assert operators(mod) == ["round", "clip", "multiply"]
    assert after(apply, lambda emit, x: op.nn.max_pool2d(quantised(emit, x), (2, 2))) == [
        "round", "clip", "add", "astype", "max_pool2d",
    ]  # fmt: skip


def test_what_does_not_fit_the_type_is_converted(apply):
    def body(emit, x):
        wide = emit(op.add(rounded(emit, x), number(4.0)))  # up to 256
        return op.astype(emit(op.astype(wide, "uint8")), "float32")

    assert after(apply, body) == ["round", "clip", "add", "astype", "astype"]


def test_fractions_are_converted(apply):
    def body(emit, x):
        return op.astype(emit(op.astype(emit(op.clip(x, 0.0, 255.0)), "uint8")), "float32")

    # What was 8 bits wide is not rounded, though.
    assert after(apply, lambda emit, x: op.round(emit(body(emit, x)))) == ["clip", "astype", "astype"]


def test_integers_are_not_rounded_again(apply):
    def body(emit, x):
        return op.clip(emit(op.round(rounded(emit, x))), -10.0, 260.0)

    assert after(apply, body) == ["round", "clip"]
    assert after(apply, lambda emit, x: op.clip(emit(op.round(rounded(emit, x))), -1.0, 260.0)) == ["round", "clip", "clip"]
