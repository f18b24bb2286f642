"""A program of two layers."""

from __future__ import annotations

from flexcomp.program import Load
from flexcomp.program.program import (
    PAGE,
    Layer,
    Port,
    Program,
    ScratchArg,
    TensorType,
    Value,
    ValueArg,
    WeightArg,
    Weights,
)
from tests.by_hand import Plan, Step

ROW = TensorType((1024,))


def two_layers() -> Program:
    """x → first (pinned weights, scratch) → middle → second (preloaded weights) → y."""
    layers = tuple(
        Layer(
            name,
            "dense",
            name,
            "gemv",
            "1×1 16→16",
            (ValueArg(i, ROW), WeightArg(0, ROW), ScratchArg(0, ROW), ValueArg(i + 1, ROW, True)),
            Weights(i * PAGE, 1, PAGE),
            64 if i == 0 else 0,
            1,
        )
        for i, name in enumerate(("first", "second"))
    )
    rung = Plan(
        budget=6 * PAGE,
        arena=5 * PAGE,
        working=5 * PAGE,
        value_at=(0, PAGE, 0),
        steps=(Step(0, 0, 1, 1, 2 * PAGE, 4 * PAGE), Step(1, 0, 1, 2, 3 * PAGE, -1)),
        loads=(Load(0, PAGE, 2 * PAGE, 0, True), Load(PAGE, PAGE, 3 * PAGE, 0, False)),
        seconds=0.001,
    )
    values = tuple(Value(name, PAGE) for name in ("x", "middle", "y"))
    ports = (Port("x", 0, ROW),), (Port("y", 2, ROW),)
    return Program("two", "llvm", (), 1, values, *ports, layers, (rung.rung(layers),), 2 * PAGE)
