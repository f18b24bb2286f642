"""Kernels of recurrences against NumPy in float64: vector widths, batches, threads, directions, and what ends early."""

from dataclasses import replace

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st

from flexcomp.schedules.recurrent import ways
from flexcomp.schedules.recurrent.kernel import kernel
from flexcomp.schedules.recurrent.spec import RecurrentSpec
from flexcomp.schedules.tiles.tile import VectorUnit
from tests.schedules.kernels import library, require_no_memory, runtime_calls

UNITS = (VectorUnit(4, 32, by_lane=True), VectorUnit(8, 16), VectorUnit(16, 32), VectorUnit(8, 16, threads=2))
FUNCTIONS = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}


def spec_of(cell: str, **fields) -> RecurrentSpec:
    activations = tuple((name, 0.0, 0.0) for name in FUNCTIONS[cell])
    known = dict(steps=3, batch=1, hidden=8, directions=1, direction=0, reverse=False)
    outputs = ("y", "h", "c") if cell == "LSTM" else ("y", "h")
    return RecurrentSpec(cell, **{**known, "activations": activations, "outputs": outputs, **fields})


def panels(spec: RecurrentSpec, way: ways.Recurrent, r: np.ndarray, bias: np.ndarray, p: np.ndarray) -> list[np.ndarray]:
    """R, float32[columns, hidden], its bias and the peepholes as the kernel takes them."""
    result = []
    for phase in way.phases:
        panel, order = phase.panel, ways.channels(spec, phase)
        packed = np.zeros(panel.shape, "f4")
        rows = lambda value: value[order].reshape(panel.blocks, panel.block, -1).transpose(0, 2, 1)  # noqa: B023, E731
        packed[:, :1], packed[:, 1 : 1 + panel.taps] = rows(bias), rows(r)
        if spec.peepholes:
            packed[:, 1 + panel.taps : 2 + panel.taps] = rows(p)
        result.append(packed)
    return result


def expected(spec: RecurrentSpec, inputs, r, bias, p, lengths, h0, c0) -> dict[str, np.ndarray]:
    """The definition, row by row of the batch."""
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    hidden, gates = spec.hidden, spec.gates
    own = slice(spec.direction * gates * hidden, (spec.direction + 1) * gates * hidden)
    rows = inputs.reshape(*((spec.batch, spec.steps) if spec.batch_major else (spec.steps, spec.batch)), -1).astype("f8")
    r, bias, p = (np.split(value[own].astype("f8"), gates) for value in (r, bias, p))
    y = np.zeros((*rows.shape[:2], hidden))
    last = {"h": np.zeros((spec.batch, hidden)), "c": np.zeros((spec.batch, hidden))}
    for b in range(spec.batch):
        place = (lambda t: (b, t)) if spec.batch_major else (lambda t: (t, b))  # noqa: B023
        h, c = (state[b, spec.direction] if spec.batch_major else state[spec.direction, b] for state in (h0, c0))
        times = range(lengths[b])
        for t in reversed(times) if spec.reverse else times:
            x = np.split(rows[place(t)][own], gates)
            product = [weights @ h + added for weights, added in zip(r, bias, strict=True)]
            if spec.cell == "LSTM":
                see = [value if spec.peepholes else 0 for value in p]
                i = sigmoid(x[0] + product[0] + see[0] * c)
                f = 1 - i if spec.input_forget else sigmoid(x[2] + product[2] + see[2] * c)
                c = f * c + i * np.tanh(x[3] + product[3])
                h = sigmoid(x[1] + product[1] + see[1] * c) * np.tanh(c)
            elif spec.cell == "GRU":
                z, reset = sigmoid(x[0] + product[0]), sigmoid(x[1] + product[1])
                inner = reset * product[2] if spec.linear_before_reset else r[2] @ (reset * h) + bias[2]
                h = (1 - z) * np.tanh(x[2] + inner) + z * h
            else:
                h = np.tanh(x[0] + product[0])
            y[place(t)] = h
        last["h"][b], last["c"][b] = h, c
    return {"y": y.reshape(-1, hidden), **last}


def check(spec: RecurrentSpec, unit: VectorUnit, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    way = ways.way(spec, unit)
    normal = lambda *extents: rng.standard_normal(extents).astype("f4")  # noqa: E731
    inputs, r = normal(spec.steps * spec.batch, spec.columns), normal(spec.columns, spec.hidden) / spec.hidden**0.5
    bias, p = normal(spec.columns) / 2, normal(spec.columns) / 2
    state = (spec.batch, spec.directions) if spec.batch_major else (spec.directions, spec.batch)
    h0, c0 = (normal(*state, spec.hidden) * is_given for is_given in (spec.initial_h, spec.initial_c))
    lengths = rng.integers(0, spec.steps + 1, spec.batch) if spec.has_lengths else np.full(spec.batch, spec.steps)
    given = [inputs, *panels(spec, way, r, bias, p)]
    given += [lengths.astype("i4")] * spec.has_lengths + [h0.reshape(-1)] * spec.initial_h + [c0.reshape(-1)] * spec.initial_c
    rows = {"y": spec.steps * spec.batch, "h": spec.batch, "c": spec.batch}
    results = [np.full((rows[name], spec.hidden), np.nan, "f4") for name in spec.outputs]
    tensors = [tvm.runtime.tensor(np.ascontiguousarray(value)) for value in (*given, *results)]
    scratch = tvm.runtime.tensor(np.full(way.scratch[0], np.nan, "f4"))
    library({"kernel": kernel(way, unit.width)})["kernel"](*tensors, scratch)
    wanted = expected(spec, inputs, r, bias, p, lengths, h0, c0)
    for name, found in zip(spec.outputs, tensors[len(given) :], strict=True):
        np.testing.assert_allclose(found.numpy(), wanted[name], rtol=0, atol=1e-5, err_msg=f"{name} of {spec}")


@settings(max_examples=12)
@given(
    st.sampled_from(sorted(FUNCTIONS)), st.sampled_from(UNITS), st.integers(1, 4), st.integers(1, 9),
    st.sampled_from((1, 3, 8, 15, 16, 33, 64)), st.integers(1, 2), st.lists(st.booleans(), min_size=8, max_size=8),
)  # fmt: skip
def test_random_recurrences(cell, unit, steps, batch, hidden, directions, flags):
    reverse, batch_major, has_lengths, initial_h, *special = flags
    fields = {"GRU": {"linear_before_reset": special[0]}, "RNN": {}}.get(
        cell, {"input_forget": special[0], "peepholes": special[1], "initial_c": special[2]}
    )
    spec = spec_of(
        cell, steps=steps, batch=batch, hidden=hidden, directions=directions, direction=directions - 1, reverse=reverse,
        batch_major=batch_major, has_lengths=has_lengths, initial_h=initial_h, **fields,
    )  # fmt: skip
    check(spec, unit, hidden)


@pytest.mark.parametrize("unit", UNITS[:3], ids=str)
@pytest.mark.parametrize("batch", [1, 5])
def test_long_sums_in_parts(unit, batch):
    check(spec_of("RNN", hidden=600, batch=batch, steps=2), unit)


def test_threads_share_long_steps():
    """Blocks are the same for a thread in every step: it finds their weights in its own cache."""
    spec = spec_of("LSTM", hidden=260, steps=2)
    assert spec.is_parallel and not replace(spec, hidden=64).is_parallel
    calls = [runtime_calls({"kernel": kernel(ways.way(spec, VectorUnit(8, 16, threads=threads)), 8)}) for threads in (1, 2)]
    assert calls == [set(), {"ParallelLaunch"}]
    check(spec, UNITS[3])


@pytest.mark.parametrize("unit", UNITS, ids=str)
@pytest.mark.parametrize("cell", FUNCTIONS)
def test_no_memory_is_asked_for(cell, unit):
    found = [ways.way(spec_of(cell, hidden=160, batch=batch, steps=2), unit) for batch in (1, 16)]
    require_no_memory({f"kernel{i}": kernel(way, unit.width) for i, way in enumerate(found)})
