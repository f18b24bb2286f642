"""Outputs that no input decides are returned by `main`, and not lifted away."""

import numpy as np
import tvm
from tvm import relax

from flexcomp.passes import KeepConstantOutputs

from .networks import calls, network

op = relax.op
KEPT = "relax.builtin.stop_lift_params"


def outputs(*chosen: str) -> tvm.IRModule:
    """Some of: an activation, a sum of weights, a sum of both."""

    def body(emit, x, w):
        made = {"activation": emit(op.nn.relu(x)), "weights": emit(op.add(w, w)), "both": emit(op.add(x, w))}
        return relax.Tuple([made[name] for name in chosen])

    return network({"x": (2, 8)}, {"w": (2, 8)}, body)


def test_only_what_depends_on_weights_is_kept(apply):
    after = apply(KeepConstantOutputs(), outputs("activation", "weights", "both"))
    assert calls(after) == ["relax.nn.relu", "relax.add", "relax.add", KEPT]


def test_a_kept_output_outlives_the_lifting_of_weights(apply):
    after = relax.transform.LiftTransformParams()(apply(KeepConstantOutputs(), outputs("activation", "weights")))
    relax.analysis.well_formed(after)
    assert len(after["main"].ret_ty.fields) == 2
    assert "relax.add" not in calls(after)


def test_outputs_of_inputs_stay(apply):
    assert KEPT not in calls(apply(KeepConstantOutputs(), outputs("activation", "both")))


def test_a_constant_is_an_output(apply):
    constant = relax.const(np.float32([1, 2]))
    after = apply(KeepConstantOutputs(), network({"x": (2, 8)}, {}, lambda emit, x: relax.Tuple([emit(op.nn.relu(x)), constant])))
    assert KEPT in calls(after)


def test_a_network_without_such_outputs_is_not_made_anew(apply):
    mod = outputs("activation", "both")
    assert apply(KeepConstantOutputs(), mod)["main"].same_as(mod["main"])
