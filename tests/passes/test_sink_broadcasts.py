"""Constants that are broadcast for elementwise operators, and constants that stay operators."""

import tvm
from tvm.script import ir as I
from tvm.script import relax as R

from flexcomp.passes import KeepSpreading, SinkBroadcasts


@I.ir_module
class Expanded:
    @R.function
    def main(x: R.Tensor((1, 1, 8, 8), "float32"), w: R.Tensor((16, 1, 1), "float32")):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            b = R.broadcast_to(w, R.shape([1, 16, 8, 8]))
            n = R.negative(b)
            y = R.multiply(x, n)
            R.output(y)
        return y


@I.ir_module
class Sunk:
    @R.function
    def main(x: R.Tensor((1, 1, 8, 8), "float32"), w: R.Tensor((16, 1, 1), "float32")):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            b = R.reshape(w, R.shape([1, 16, 1, 1]))
            n = R.negative(b)
            y = R.multiply(x, n)
            R.output(y)
        return y


def test_what_depends_on_a_broadcast_is_computed_before_it():
    tvm.ir.assert_structural_equal(SinkBroadcasts()(Expanded), Sunk)


@I.ir_module
class GivesTheShape:
    @R.function
    def main(x: R.Tensor((1, 1, 8), "float32"), w: R.Tensor((16, 1, 1), "float32")):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            b = R.broadcast_to(w, R.shape([16, 4, 8]))
            y = R.multiply(x, b)
            R.output(y)
        return y


def test_an_operand_that_gives_the_result_its_shape_stays():
    tvm.ir.assert_structural_equal(SinkBroadcasts()(GivesTheShape), GivesTheShape)


@I.ir_module
class Mask:
    @R.function
    def main(x: R.Tensor((256, 256), "float32"), w: R.Tensor((1,), "float32")):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            b = R.broadcast_to(w, R.shape([256, 256]))
            t = R.triu(b, 1)
            y = R.add(x, t)
            R.output(y)
        return y


def test_only_what_is_spread_far_stays_an_operator():
    kept = KeepSpreading()(Mask)
    assert "stop_lift_params" in kept.script()
    small = tvm.IRModule.from_expr(_with_extent(64)["main"].with_attr("global_symbol", "main"))
    tvm.ir.assert_structural_equal(KeepSpreading()(small), small)


def _with_extent(extent: int) -> tvm.IRModule:
    return tvm.script.from_source(Mask.script().replace("256", str(extent)))
