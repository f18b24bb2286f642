"""What a kernel takes is read from its code, and layers are held against it before anything is compiled."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from flexcomp.compiler.machine_code import by_symbol, signature_of
from flexcomp.passes.attributes import BOUNDS, EXCHANGED, IN_PLACE, with_scratch
from flexcomp.program import signature
from flexcomp.program.program import CountArg, FirstArg, Layer, ScratchArg, TensorType, ValueArg, WeightArg, Weights

PANEL = TensorType((4, 16, 8))
ROW = TensorType((1, 32))


def kernel(*, writes: str = "y", scratch: bool = True) -> tirx.PrimFunc:
    """A PrimFunc (x, r, panel, first, count, y, s) that writes `writes` through a view, and s."""
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        buffers = {name: T.arg(name, T.buffer(ROW.shape, "float32")) for name in "xr"}
        buffers["panel"] = T.arg("panel", T.buffer(PANEL.shape, "float32"))
        first, _ = T.arg("first", T.int64()), T.arg("count", T.int64())
        buffers["y"] = T.arg("y", T.buffer(ROW.shape, "float32"))
        buffers["s"] = T.arg("s", T.buffer((8,), "float32"))
        view = T.decl_buffer((32,), "float32", data=buffers[writes].data)
        with T.serial(8) as i:
            T.buffer_store(buffers["s"], buffers["x"][0, i] * buffers["r"][0, i], [i])
            T.buffer_store(view, buffers["s"][i] + buffers["panel"][0, 0, i] + T.Cast("float32", first), [i])
    return with_scratch(builder.get(), [(8,)] if scratch else ())


LAYER = Layer(
    "dense.0", "dense", "dense", "", "",
    (
        ValueArg(0, ROW), ValueArg(1, ROW), WeightArg(0, PANEL), FirstArg(), CountArg(),
        ValueArg(2, ROW, written=True), ScratchArg(0, TensorType((8,))),
    ),
    Weights(0, 4, 512), 64, 0,
)  # fmt: skip


def test_a_signature_says_what_the_code_does():
    plain = "r float32[32];r float32[32];p float32[4,128];first;count;w float32[32];s float32[8]"
    assert signature_of(kernel()) == signature.of_layer(LAYER) == plain
    assert signature_of(kernel(writes="x")) == plain.replace("r ", "w ", 1).replace("count;w", "count;r")
    assert signature_of(kernel(scratch=False)) == plain.replace("s float32[8]", "w float32[8]")
    assert signature_of(kernel().with_attr(IN_PLACE, [1])) == plain.replace(";r ", ";o ")
    exchanged = kernel(writes="x").with_attr(EXCHANGED, [0])
    assert signature_of(exchanged) == plain.replace("r ", "x ", 1).replace("count;w", "count;r")
    assert signature_of(kernel().with_attr(BOUNDS, [[-3, 3], [0, 2]])) == plain.replace("[32]", "[32]{-3:3,0:2}", 1)


def test_symbols_are_what_the_runtime_makes_of_the_layer():
    (symbol,) = by_symbol({"dense": kernel()}, [LAYER])
    assert symbol == "dense_" + symbol[-16:] and len(symbol) == len("dense_") + 16


@pytest.mark.parametrize(
    "args",
    [
        (replace(LAYER.args[0], written=True), *LAYER.args[1:]),
        (replace(LAYER.args[0], type=TensorType((1, 16))), *LAYER.args[1:]),
        (replace(LAYER.args[0], type=TensorType((1, 32), "int32")), *LAYER.args[1:]),
        (replace(LAYER.args[0], over=True), *LAYER.args[1:]),
        (replace(LAYER.args[0], exchanged=True), *LAYER.args[1:]),
        (replace(LAYER.args[0], bounds=((0, 2),)), *LAYER.args[1:]),
        (*LAYER.args[:2], WeightArg(0, TensorType((8, 8, 8))), *LAYER.args[3:]),
        (*LAYER.args[:3], *LAYER.args[5:]),
        LAYER.args[:-1],
    ],
)
def test_a_layer_that_gives_a_kernel_something_else_is_a_defect_of_ours(args):
    with pytest.raises(AssertionError, match=r"layer dense.0 gives its kernel dense \("):
        by_symbol({"dense": kernel()}, [replace(LAYER, args=args)])
