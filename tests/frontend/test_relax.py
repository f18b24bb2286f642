"""Relax modules through the frontend."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from flexcomp.errors import InputError, ModelError, UnsupportedModelError
from flexcomp.frontend import load_model

TABLE = np.arange(8, dtype="float32").reshape(2, 4)


def with_constants() -> tvm.IRModule:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((2, 4), "float32")) -> R.Tensor((2, 4), "float32"):
            with R.dataflow():
                a = R.add(x, R.const(TABLE))
                b = R.multiply(a, R.const(2.0, "float32"))
                c = R.subtract(b, R.const(TABLE.copy()))
                R.output(c)
            return c

    return Module


def with_weights() -> tvm.IRModule:
    @I.ir_module
    class Module:
        @R.function
        def main(
            x: R.Tensor((2, 4), "float32"), w: R.Tensor((4, 3), "float32"), b: R.Tensor((3,), "float32")
        ) -> R.Tensor((2, 3), "float32"):
            with R.dataflow():
                a = R.matmul(x, w)
                c = R.add(a, b)
                R.output(c)
            return c

    return Module


W, B = np.ones((4, 3), "float32"), np.zeros(3, "float32")


def test_constants_become_weights():
    before = with_constants()
    text = before.script()
    imported = load_model(before)
    assert before.script() == text
    relax.analysis.well_formed(imported.mod)

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((2, 4), "float32"), t: R.Tensor((2, 4), "float32")) -> R.Tensor((2, 4), "float32"):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                a = R.add(x, t)
                b = R.multiply(a, R.const(2.0, "float32"))
                c = R.subtract(b, t)
                R.output(c)
            return c

    assert tvm_ffi.structural_equal(imported.mod, Expected)
    assert [np.array_equal(w, TABLE) for w in imported.weights] == [True]
    assert (imported.input_names, imported.output_names) == (("x",), ("output",))


@pytest.mark.parametrize(
    "params",
    [
        [W, B],
        (tvm.runtime.tensor(W), tvm.runtime.tensor(B)),
        {"b": B, "w": W},
        {"main": [tvm.runtime.tensor(W), tvm.runtime.tensor(B)]},
    ],
    ids=["list", "tensors", "by name", "detach_params"],
)
def test_weights_beside_the_module(params):
    imported = load_model(with_weights(), params=params)
    assert int(imported.mod["main"].attrs["num_input"]) == 1
    assert [w.shape for w in imported.weights] == [(4, 3), (3,)]


def test_weights_in_the_attribute_of_main():
    mod = with_weights()
    attached = mod["main"].with_attrs({"num_input": 1, "params": [tvm.runtime.tensor(W), tvm.runtime.tensor(B)]})
    imported = load_model(tvm.IRModule({"main": attached}))
    assert [w.shape for w in imported.weights] == [(4, 3), (3,)]
    assert "params" not in imported.mod["main"].attrs


def test_inputs_come_first():
    imported = load_model(with_weights(), params={"w": W})
    assert [p.name for p in imported.mod["main"].params] == ["x", "b", "w"]
    assert imported.input_names == ("x", "b")


def test_module_without_weights():
    imported = load_model(with_weights())
    assert imported.input_names == ("x", "w", "b")
    assert imported.weights == ()


def test_private_functions_are_inlined():
    @I.ir_module
    class Module:
        @R.function(private=True)
        def twice(x: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
            with R.dataflow():
                y = R.add(x, x)
                R.output(y)
            return y

        @R.function
        def main(x: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
            cls = Module
            with R.dataflow():
                y = cls.twice(x)
                R.output(y)
            return y

    imported = load_model(Module)
    assert [gv.name_hint for gv in imported.mod.get_global_vars()] == ["main"]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ([W, B, B, B], "params holds 4 weights, but main takes 3 parameters"),
        ({"v": W}, "params names v; main's parameters are x, w, b"),
        ([W.T, B], r"weight 'w' must be float32\(4, 3\); given was float32\(3, 4\)"),
        ([W.astype("float64"), B], r"weight 'w' must be float32\(4, 3\); given was float64"),
    ],
)
def test_wrong_params(params, message):
    with pytest.raises(InputError, match=message):
        load_model(with_weights(), params=params)


def test_num_input_without_the_weights():
    mod = with_weights()
    mod = tvm.IRModule({"main": mod["main"].with_attr("num_input", 1)})
    with pytest.raises(InputError, match="main declares 1 inputs and 2 weights, but 0 weights were given in params"):
        load_model(mod)


def test_no_main():
    mod = tvm.IRModule({"other": with_weights()["main"].with_attr("global_symbol", "other")})
    with pytest.raises(ModelError, match="no Relax function main; it holds other"):
        load_model(mod)


def test_dynamic_shape():
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
            with R.dataflow():
                y = R.nn.relu(x)
                R.output(y)
            return y

    with pytest.raises(UnsupportedModelError, match="input 'x' has a dynamic shape"):
        load_model(Module)


def test_control_flow():
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((4,), "float32"), c: R.Tensor((), "bool")) -> R.Tensor((4,), "float32"):
            if c:  # noqa: SIM108 - TVMScript
                y = R.exp(x)
            else:
                y = R.negative(x)
            return y

    with pytest.raises(UnsupportedModelError, match="control flow"):
        load_model(Module)


def test_options_of_the_other_kind_of_model():
    with pytest.raises(InputError, match="input_shapes is for ONNX models"):
        load_model(with_weights(), input_shapes={"x": (1, 4)})
    with pytest.raises(InputError, match="params is for Relax modules"):
        load_model("net.onnx", params=[])
