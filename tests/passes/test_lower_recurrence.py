"""LowerRecurrence: one kernel call for a recurrence, of what is read of it, with R in panels of hidden units."""

from dataclasses import replace

import numpy as np
import pytest
from tvm import relax

from flexcomp.compiler.weights import evaluate
from flexcomp.passes import LowerRecurrence
from flexcomp.passes.attributes import VALUES_OF
from flexcomp.passes.ir import shape
from flexcomp.passes.lower_recurrence import recurrence
from flexcomp.schedules.recurrent import ways
from flexcomp.schedules.recurrent.spec import RecurrentSpec
from flexcomp.schedules.tiles.narrow_panel import rounded
from flexcomp.schedules.tiles.tile import VectorUnit

from .networks import calls, network

UNIT = VectorUnit(8, 16)
SPEC = RecurrentSpec("LSTM", 3, 1, 20, 1, 0, False, (("sigmoid", 0.0, 0.0), ("tanh", 0.0, 0.0), ("tanh", 0.0, 0.0)))


def lstm(*results: int):
    """A network that reads some of the results (y, h, c)."""

    def body(emit, x, r, b):
        found = emit(recurrence(SPEC, [x, r, b]))
        return relax.Tuple([emit(relax.TupleGetItem(found, i)) for i in results])

    return network({"x": (3, 80)}, {"r": (80, 20), "b": (80,)}, body)


@pytest.mark.parametrize("results", [(0,), (1, 2), (0, 1, 2)])
def test_what_is_read_is_computed(results):
    mod = lstm(*results)
    before = mod.script()
    after = LowerRecurrence(UNIT)(mod)
    assert mod.script() == before, "the given module is left alone"
    assert [name for name in calls(after) if "lstm" in name or "packed" in name] == ["lstm_0"]
    kernel = after["lstm_0"]
    assert len(kernel.params) == 2 + len(results) + 1  # and scratch
    assert list(kernel.attrs["flexcomp.scratch"][0]) == [4 * 20]


def test_panels_hold_all_gates_of_some_units():
    lifted = relax.transform.LiftTransformParams()(LowerRecurrence(UNIT)(lstm(0)))
    r, b = np.arange(1600, dtype="f4").reshape(80, 20), np.arange(80, dtype="f4")
    (panel,) = evaluate(lifted["main_transform_params"], [r, b])
    (phase,) = ways.way(SPEC, UNIT).phases
    assert panel.shape == phase.panel.shape
    units = phase.units
    for block, first in enumerate(np.minimum(np.arange(len(panel)) * units, 20 - units)):
        for gate in range(4):
            rows = np.s_[gate * 20 + first : gate * 20 + first + units]
            np.testing.assert_array_equal(panel[block, 0, gate * units : (gate + 1) * units], b[rows])
            np.testing.assert_array_equal(panel[block, 1:21, gate * units : (gate + 1) * units], r[rows].T)


def test_types_of_weights_are_asked_for():
    asked = []

    def weight_type(names, weight):
        asked.append(weight.index)
        return "int8"

    after = LowerRecurrence(UNIT, weight_type)(lstm(0))
    (panel,) = (value for value in after["main"].body.blocks[0].bindings if getattr(value.var.ty, "dtype", "") == "int8")
    assert asked == [0] and shape(panel.var) == ways.way(replace(SPEC, weights="int8"), UNIT).phases[0].panel.shape
    lifted = relax.transform.LiftTransformParams()(LowerRecurrence(UNIT, lambda *_: VALUES_OF + "int8")(lstm(0)))
    r, b = np.random.default_rng(0).standard_normal((80, 20)).astype("f4"), np.zeros(80, "f4")
    (panel,) = evaluate(lifted["main_transform_params"], [r, b])
    (phase,) = ways.way(SPEC, UNIT).phases
    np.testing.assert_array_equal(panel[0, 1:21, : phase.units], rounded(r, "int8")[: phase.units].T)
