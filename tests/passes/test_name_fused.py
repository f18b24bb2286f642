import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from flexcomp.passes.name_fused import NameFused


def network() -> tvm.IRModule:
    """Two fused functions, as TVM's fusion leaves them: the second makes the output."""

    @I.ir_module
    class Before:
        @T.prim_func(private=True)
        def one(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
            T.evaluate(0)

        @R.function(private=True)
        def fused(conv_1: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            R.func_attr({"Primitive": True})
            cls = Before
            with R.dataflow():
                exp_3 = R.call_tir(cls.one, (conv_1,), out_ty=R.Tensor((4,), dtype="float32"))
                gv = R.call_tir(cls.one, (exp_3,), out_ty=R.Tensor((4,), dtype="float32"))
                R.output(gv)
            return gv

        @R.function
        def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            cls = Before
            with R.dataflow():
                lv: R.Tensor((4,), dtype="float32") = cls.fused(x)
                gv: R.Tensor((4,), dtype="float32") = cls.fused(lv)
                R.output(gv)
            return gv

    return Before


def test_results_are_named_and_parameters_numbered(becomes, apply):
    before = network()
    becomes(NameFused(), before, before)  # names are no part of the structure
    after = apply(NameFused(), before)
    (block,) = after["main"].body.blocks
    assert [binding.var.name for binding in block.bindings] == ["exp_3", "gv"]
    assert [param.name for param in after["fused"].params] == ["p0"]
    assert [param.name for param in after["main"].params] == ["x"]
    assert isinstance(block.bindings[0].var, relax.DataflowVar)
