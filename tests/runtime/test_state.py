"""What stays from one inference to the next: carried from budget to budget, and untouched by inferences that do not end well."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import flexcomp
from flexcomp import runtime_ext
from flexcomp.compiler.builder import prepare
from flexcomp.compiler.options import options_of
from flexcomp.errors import ExecutionError, InputError, StorageError
from flexcomp.runtime.runner import run as run_process
from tests.operators.recurrent import Case
from tests.runtime import hooks

HIDDEN = 96
CELL = Case(steps=1, width=48, hidden=HIDDEN, optional=("B", "initial_h", "initial_c"), outputs=("Y", "Y_h", "Y_c"))
PAIRS = {"Y_h": "initial_h", "Y_c": "initial_c"}
BANDWIDTH = 8e7  # bytes per second: an inference that reads all weights takes some 3 ms
SHAPE = (48, 1024)  # of the largest state of `delays`, 192 KiB


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    path = tmp_path_factory.mktemp("cell") / "cell.so"
    flexcomp.build(CELL.model(), state=PAIRS, threads=1).export_library(path)
    return path


def sequence(x: np.ndarray) -> np.ndarray:
    """What the cell makes of a whole sequence, from a clear state."""
    whole = replace(CELL, steps=len(x), optional=("B",), outputs=("Y",)).model()
    return onnxruntime.InferenceSession(whole.SerializeToString()).run(None, {"X": x})[0].reshape(len(x), -1)


def inputs(count: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal((count, 1, CELL.width)).astype("f4")


def test_an_input_that_stays_is_set_once(tmp_path):
    """It lies among states, and no inference or change of the budget changes it; the whole state is set to zeros by a reset."""
    info, f4 = helper.make_tensor_value_info, TensorProto.FLOAT
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((64, 64)).astype("f4"), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Add", ["m", "kept"], ["y"]),
        helper.make_node("Add", ["x", "sum"], ["next"]),
    ]  # fmt: skip
    ports = [[info(name, f4, (1, 64)) for name in names.split()] for names in ("x kept sum", "y next")]
    model = helper.make_model(helper.make_graph(nodes, "kept", *ports, [weight]), ir_version=8)
    path, options = tmp_path / "kept.so", {"threads": 1, "probe": False, "progress": False}
    flexcomp.build(model, state={"next": "sum", "kep*": "kep*"}, **options).export_library(path)
    x, kept = np.random.default_rng(1).standard_normal((2, 1, 64)).astype("f4")
    product = x @ numpy_helper.to_array(weight)
    with flexcomp.load(path, budget="min") as session:
        assert [port.name for port in session.inputs] == ["x"]
        session.set_state({"kept": kept})
        for budget in ("min", "all", "min"):
            session.set_budget(budget)
            np.testing.assert_allclose(session.run({"x": x})["y"], product + kept, rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(session.state()["kept"], kept)
        np.testing.assert_allclose(session.state()["sum"], 3 * x, rtol=1e-6)
        session.reset_state()
        np.testing.assert_allclose(session.run({"x": x})["y"], product, rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match='no input that matches "z\\*"; there are x, kept, sum'):
        flexcomp.build(model, state={"z*": "z*"}, **options)


def delays(shape=SHAPE):
    """y = W · (x + b); a becomes x + 1, b what a was, n one more, and the large one half of itself and x's first element."""
    node = helper.make_node
    f4, i8 = TensorProto.FLOAT, TensorProto.INT64
    weight = np.random.default_rng(0).standard_normal((64, 256)).astype("f4")
    constants = {"w": weight, "one": np.float32([1]), "half": np.float32([0.5]), "step": np.int64([1]), "zero": np.int64([0])}
    nodes = [
        node("Add", ["x", "b_in"], ["sum"]), node("MatMul", ["sum", "w"], ["y"]),
        node("Add", ["x", "one"], ["a_out"]), node("Identity", ["a_in"], ["b_out"]), node("Add", ["n_in", "step"], ["n_out"]),
        node("Gather", ["x", "zero"], ["first"], axis=1),
        node("Mul", ["large_in", "half"], ["less"]), node("Add", ["less", "first"], ["large_out"]),
    ]  # fmt: skip
    given = [("x", f4, (1, 64)), ("a_in", f4, (1, 64)), ("b_in", f4, (1, 64)), ("n_in", i8, (1,)), ("large_in", f4, shape)]
    made = [("y", f4, (1, 256)), *((name.replace("_in", "_out"), *rest) for name, *rest in given[1:])]
    values = [[helper.make_tensor_value_info(*one) for one in ports] for ports in (given, made)]
    graph = helper.make_graph(nodes, "delays", *values, [numpy_helper.from_array(v, n) for n, v in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), weight


DELAYS = {f"{name}_out": f"{name}_in" for name in ("a", "b", "n", "large")}


class Delays:
    """The same in NumPy."""

    def __init__(self, weight: np.ndarray) -> None:
        self.weight = weight
        self.a, self.b, self.n, self.large = np.zeros((1, 64), "f4"), np.zeros((1, 64), "f4"), 0, np.zeros(SHAPE, "f4")

    def run(self, x: np.ndarray) -> np.ndarray:
        y = (x + self.b) @ self.weight
        self.a, self.b, self.n, self.large = x + 1, self.a, self.n + 1, self.large * np.float32(0.5) + x[0, 0]
        return y

    def agrees(self, state: dict[str, np.ndarray]) -> bool:
        same = (np.array_equal(getattr(self, name), state[f"{name}_in"]) for name in ("a", "b", "large"))
        return all(same) and state["n_in"].tolist() == [self.n]


def test_a_thousand_steps_are_the_whole_sequence(cell):
    """Whatever budgets another thread sets meanwhile, and from wherever the state was cleared."""
    x, chance, stop = inputs(1000), random.Random(0), threading.Event()
    starts = [0, *sorted(chance.sample(range(1, len(x)), 5))]
    want = np.concatenate([sequence(x[a:b]) for a, b in zip(starts, [*starts[1:], len(x)], strict=True)])
    with flexcomp.load(cell, "all", read_bandwidth=BANDWIDTH) as session:

        def switch() -> None:
            while not stop.is_set():
                session.set_budget(chance.choice(session.ladder).budget_bytes)
                time.sleep(chance.uniform(0, 4e-3))

        thread = threading.Thread(target=switch)
        thread.start()
        try:
            for step, one in enumerate(x):
                if step in starts:
                    session.reset_state()
                np.testing.assert_allclose(session(one[None]).reshape(-1), want[step], atol=1e-5)
        finally:
            stop.set()
            thread.join()
        assert session.stats()["restarts"] > 20


def test_every_budget_carries_it_to_every_other():
    model, weight = delays()
    rng = np.random.default_rng(1)
    with flexcomp.build(model, state=DELAYS, threads=1).session("all") as session:
        assert [port.name for port in session.inputs] == ["x"] and [port.name for port in session.outputs] == ["y"]
        assert session.info["state_bytes"] % 4096 == 0 and session.info["state_bytes"] >= 4 * np.prod(SHAPE)
        assert all(rung.arena_bytes > session.info["state_bytes"] for rung in session.ladder) and len(session.ladder) > 2
        right, count = Delays(weight), len(session.ladder)
        assert right.agrees(session.state())
        for turn in range(count * count):
            x = rng.standard_normal((1, 64)).astype("f4")
            np.testing.assert_allclose(session(x), right.run(x), atol=1e-4)
            session.set_budget(session.ladder[turn // count].budget_bytes)
            session.set_budget(session.ladder[turn % count].budget_bytes)
            assert right.agrees(session.state())
            assert session.resident_arena() <= session.ladder[turn % count].arena_bytes
        session.read_rate(1 << 20, 1 << 20)
        assert right.agrees(session.state())
        session.reset_state()
        assert not any(array.any() for array in session.state().values())


def test_it_grows_where_two_arenas_have_no_room(tmp_path):
    """The larger one takes the place of the smaller."""
    model, _ = delays((3072, 1024))
    flexcomp.build(model, state=DELAYS, threads=1).export_library(tmp_path / "large.so")
    script = f"""
        import resource
        import numpy as np
        import flexcomp
        session = flexcomp.load({str(tmp_path / "large.so")!r}, "min")
        x = np.arange(64, dtype="f4")[None] + 3
        for _ in range(3):
            session(x)
        before, small = session.state(), session.stats()["arena_bytes"]
        mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + (8 << 20), -1))
        assert small > 24 << 20 and session.set_budget("all").arena_bytes > small
        resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
        assert session.stats()["arena_bytes"] > small
        after = session.state()
        assert all(np.array_equal(before[name], after[name]) for name in before) and before["large_in"][5, 5] == 5.25
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_inference_that_fails_leaves_it_as_it_was(cell):
    x = inputs(12)
    want = sequence(x)
    failed = 0
    for number in range(1, 24, 2):
        with hooks.load(cell, "min", fail_read_at=number) as session:
            step = 0
            while step < len(x):
                before = session.state()
                try:
                    y = session(x[step][None])
                except StorageError:
                    failed += 1
                    after = session.state()
                    assert all(np.array_equal(before[name], after[name]) for name in before)
                    continue
                np.testing.assert_allclose(y.reshape(-1), want[step], atol=1e-5)
                step += 1
    assert failed == 12


def test_it_waits_for_nobody_and_is_set_by_name(cell):
    x = inputs(4)
    with flexcomp.load(cell, "min") as session, flexcomp.load(cell) as other:
        for one in x[:2]:
            session(one[None])
        state = session.state()
        assert list(state) == ["initial_h", "initial_c"] and state["initial_h"].shape == (1, 1, HIDDEN)
        other.set_state(state)
        np.testing.assert_allclose(other(x[2][None]), session(x[2][None]), atol=1e-6)
        other.set_state({"initial_c": state["initial_c"]})
        now = other.state()
        assert np.array_equal(now["initial_c"], state["initial_c"]) and not np.array_equal(now["initial_h"], state["initial_h"])
        for wrong, said in (
            ({"h": state["initial_h"]}, 'keeps no state "h"; there is "initial_h", "initial_c"'),
            ({"initial_h": state["initial_h"].astype("f8")}, r'"initial_h" must be float32\[1, 1, 96\]'),
            ({"initial_h": np.zeros((1, 96), "f4")}, '"initial_h" must be'),
            ([state["initial_h"]], "a dict of arrays by name, not list"),
        ):
            with pytest.raises(InputError, match=said):
                other.set_state(wrong)
        assert np.array_equal(other.state()["initial_h"], now["initial_h"])
    with pytest.raises(ExecutionError, match="closed"):
        session.state()


@pytest.mark.parametrize("axis, count", [(0, 1), (2, 7), (2, HIDDEN)])
def test_the_first_elements_along_an_axis(cell, axis, count):
    with flexcomp.load(cell) as session:
        drawn = np.random.default_rng(4).standard_normal((2, 1, 1, HIDDEN)).astype("f4")
        session.set_state(dict(zip(PAIRS.values(), drawn, strict=True)))
        whole = session.state()
        parts = session.state_parts(count, axis)
        first = (slice(None),) * axis + (slice(count),)
        for name, array in parts.items():
            np.testing.assert_array_equal(array, whole[name][first])
        session.set_state_parts({"initial_c": parts["initial_c"] + 1})
        whole["initial_c"][first] += 1
        for name, array in session.state().items():
            np.testing.assert_array_equal(array, whole[name])
        with pytest.raises(InputError, match="initial_h"):
            session.set_state_parts({"initial_h": np.zeros((1, 1, HIDDEN + 1), "f4")})
        with pytest.raises(InputError, match="contiguous"):
            session.set_state_parts({"initial_h": np.zeros((1, 1, 2 * HIDDEN), "f4")[:, :, :HIDDEN:2]})


def test_a_network_may_have_nothing_but_state():
    """It counts."""
    n, m = (helper.make_tensor_value_info(name, TensorProto.INT64, (1,)) for name in "nm")
    one = numpy_helper.from_array(np.int64([1]), "one")
    graph = helper.make_graph([helper.make_node("Add", ["n", "one"], ["m"])], "counter", [n], [m], [one])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with flexcomp.build(model, state={"m": "n"}, threads=1).session() as session:
        assert [session.run() for _ in range(5)] == [{}] * 5
        assert session.state()["n"].tolist() == [5]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"h": "initial_h"}, 'no output "h"; there are Y, Y_h, Y_c'),
        ({"Y_h": "h"}, 'no input "h"; there are X, initial_h, initial_c'),
        ({"Y_h": "initial_h", "Y_c": "initial_h"}, 'two outputs, "Y_h" and "Y_c", would become the input "initial_h"'),
        ({"Y": "initial_h"}, r'"Y" is float32\[1×1×1×96\], the input "initial_h" that it becomes is float32\[1×1×96\]'),
        (["initial_h"], "state must be a dict of inputs by output"),
        ({"Y_h": 3}, "state must be a dict"),
    ],
)
def test_pairs_that_are_none(state, said):
    with pytest.raises(InputError, match=said):
        prepare(CELL.model(), options=options_of(state=state, threads=1))


def test_pairs_that_never_change_or_hold_nothing():
    model, _ = delays((0, 1024))
    with pytest.raises(InputError, match=r'the input "large_in" is float32\[0×1024\], which holds nothing'):
        prepare(model, options=options_of(state=DELAYS, threads=1))
    with pytest.raises(InputError, match='"b_out" is the input "a_in" itself'):
        prepare(model, options=options_of(state={"b_out": "a_in"}, threads=1))
    with pytest.raises(InputError, match=r'"n_out" is int64\[1\], the input "a_in" that it becomes is float32'):
        prepare(model, options=options_of(state={"n_out": "a_in"}, threads=1))


def test_the_runner_goes_on_or_begins_anew(cell, tmp_path):
    x = inputs(1)
    np.save(tmp_path / "x.npy", x)
    want = sequence(np.repeat(x, 3, axis=0))
    options = {"inputs": {"X": tmp_path / "x.npy"}, "repeat": 2, "warmup": 1, "output_dir": tmp_path}
    for reset in (False, True):
        run_process(cell, reset_state=reset, **options)
        np.testing.assert_allclose(np.load(tmp_path / "Y.npy").reshape(-1), want[0 if reset else 2], atol=1e-5)
    command = [str(runtime_ext.runner()), str(cell), "--switch-budgets", "3", "--callers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "depend on its state" in done.stderr
