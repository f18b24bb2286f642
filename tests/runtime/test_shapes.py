"""A session of a library of several shapes takes the shape that its inputs have."""

from __future__ import annotations

import json
import random
import threading
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import tvm_ffi

import flexcomp
from flexcomp import runtime_ext
from flexcomp.errors import ArtifactError, BudgetError, InputError
from flexcomp.program.program_bytes import PROGRAM_KIND, decode_shapes, encode_shapes
from flexcomp.runtime.library import read_program
from tests.shaped import INPUTS, encoder, sums

LENGTHS = (64, 16, 1)
SLACK = 4 << 20  # bytes of a process that no budget counts


def build(model, path, **options):
    flexcomp.build(model, threads=1, probe=False, progress=False, **options).export_library(path)
    return path


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The encoder in all lengths."""
    return build(encoder(), tmp_path_factory.mktemp("shapes") / "all.so", input_shapes=INPUTS, shapes={"n": LENGTHS})


@pytest.fixture(scope="session")
def alone(tmp_path_factory):
    """A library of each length."""
    folder = tmp_path_factory.mktemp("alone")
    return {n: build(encoder(), folder / f"{n}.so", input_shapes={"ids": (1, n)}) for n in LENGTHS}


def ids(n, seed=0):
    return np.random.default_rng((n, seed)).integers(0, 300, (1, n))


@pytest.mark.parametrize("budget", ["min", "all"])
def test_outputs_are_those_of_a_library_of_that_shape(library, alone, budget):
    """To the bit, where both use the same kernels: the first inference in a shape may use others than later ones."""
    reference = onnxruntime.InferenceSession(encoder().SerializeToString())
    with flexcomp.load(library, budget) as session:
        assert [dict(shape.extents) for shape in session.shapes] == [{"n": n} for n in LENGTHS]
        assert session.inputs[0].shape == (1, -1)
        for n in (1, 64, 16, 64):
            wanted = reference.run(None, {"ids": ids(n)})[0]
            with flexcomp.load(alone[n], budget) as single:
                for _ in range(3):
                    outputs = session.run({"ids": ids(n)})["y"]
                    np.testing.assert_allclose(outputs, wanted, rtol=1e-4, atol=1e-5)
                    if budget == "all":
                        np.testing.assert_array_equal(outputs, single.run({"ids": ids(n)})["y"])
            assert session.stats()["shape"] == LENGTHS.index(n)


def test_shapes_that_there_are_not(library):
    with flexcomp.load(library, "min") as session:
        before = session.run({"ids": ids(16)})["y"]
        with pytest.raises(InputError, match='"ids" has 17 elements along axis 1, and the library was built for 1, 16, 64'):
            session.run({"ids": ids(17)})
        with pytest.raises(InputError, match=r'"ids" has 2 axes; given was \[16\]'):
            session.run({"ids": ids(16)[0]})
        with pytest.raises(InputError, match='inputs must be "ids"'):
            session.run({"x": ids(16)})
        with pytest.raises(InputError, match=r"int64\[1, 16\], not int32"):
            session.run({"ids": ids(16).astype("int32")})
        with pytest.raises(InputError, match="goes to a writable array"):
            session.run({"ids": ids(16)}, outputs={"y": np.zeros((1, 64, 64), "float32")})
        np.testing.assert_array_equal(session.run(ids(16))["y"], before)


def test_a_budget_is_enough_for_every_shape(library, alone):
    smallest = {}
    for n, path in alone.items():
        with flexcomp.load(path) as single:
            smallest[n] = single.info["min_budget_bytes"]
    with flexcomp.load(library) as session:
        described = {shape["extents"]["n"]: shape for shape in session.info["shapes"]}
        for n in LENGTHS:
            assert described[n]["min_budget_bytes"] <= 1.02 * smallest[n] + 4096
        most = max(shape["min_budget_bytes"] for shape in described.values())
        assert session.info["min_budget_bytes"] == session.ladder[0].budget_bytes == most
        with pytest.raises(BudgetError):
            session.set_budget(most - 1)
        session.set_budget(most)
        for n in LENGTHS:
            session.run(ids(n))
            assert session.resident_arena() <= most


def test_memory_stays_within_budgets_that_change_with_shapes(library):
    """Another thread changes the budget; afterwards outputs are those of before, and no page is left."""
    with flexcomp.load(library, "all") as session:
        wanted = {n: session.run(ids(n))["y"] for n in LENGTHS}
        budgets = [rung.budget_bytes for rung in session.ladder]
        stop = threading.Event()

        def change():
            draw = random.Random(1)
            while not stop.is_set():
                budget = draw.choice(budgets)
                session.set_budget(budget)

        changing = threading.Thread(target=change)
        changing.start()
        draw = random.Random(0)
        try:
            for _ in range(150):
                n = draw.choice(LENGTHS)
                np.testing.assert_allclose(session.run(ids(n))["y"], wanted[n], rtol=1e-4, atol=1e-5)
        finally:
            stop.set()
            changing.join()
        session.set_budget("min")
        assert session.resident_arena() <= session.info["min_budget_bytes"]
        for n in LENGTHS:
            session.run(ids(n))
            assert session.stats()["arena_bytes"] <= session.info["min_budget_bytes"]


@pytest.mark.parametrize("kernels", ["smallest", "auto"])
def test_weights_that_both_shapes_keep_are_not_read_again(tmp_path, kernels):
    """Nor prepared: the first inference leaves that to the second, or to the change of shapes."""
    options = {"input_shapes": INPUTS, "shapes": {"n": [16, 64]}, "kernels": kernels}
    path = build(encoder(), tmp_path / "encoder.so", target="llvm -mcpu=x86-64-v3", **options)
    reference = onnxruntime.InferenceSession(encoder().SerializeToString())
    programs = decode_shapes(read_program(path))
    with flexcomp.load(path, "all") as session:
        for number, n in enumerate((64, 16, 64, 64, 16)):
            outputs = session.run({"ids": ids(n, number)})["y"]
            np.testing.assert_allclose(outputs, reference.run(None, {"ids": ids(n, number)})[0], rtol=1e-4, atol=1e-5)
            read = session.stats()["bytes_read"]
            if number:
                assert read <= missing(programs, 64 if n == 16 else 16, n)
            if kernels == "smallest" and number:
                assert read <= 32 << 10  # the rows of positions, in whole pages


def missing(programs, old, new):
    """Bytes, in whole pages, of the weights of layers that a shape's last plan uses, and another's in another form or not."""
    def forms(n):
        program = next(one for one in programs if one.inputs[0].type.shape[1] == n)
        layers = [program.layers[i] for i in program.rungs[-1].order]
        return {(one.weights.offset, one.weights.preparation): one.weights.stored_nbytes for one in layers if one.weights}

    before = forms(old)
    return sum(nbytes + 2 * 4096 for form, nbytes in forms(new).items() if form not in before)


def test_a_state_lives_on_in_other_shapes(tmp_path):
    model, total = sums(), np.zeros((1, 32), "float32")
    shapes = {"input_shapes": {"x": ("n", 32)}, "shapes": {"n": [4, 8]}}
    path = build(model, tmp_path / "sums.so", state={"total_out": "total_in"}, **shapes)
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    with flexcomp.load(path, "min") as session:
        for number, n in enumerate((4, 8, 8, 4, 8)):
            x = np.random.default_rng(number).standard_normal((n, 32)).astype("float32")
            wanted, following = reference.run(None, {"x": x, "total_in": total})
            np.testing.assert_allclose(session.run(x)["y"], wanted, rtol=1e-4, atol=1e-4)
            total = following
            if number == 2:
                session.set_budget("all")
        np.testing.assert_allclose(session.state()["total_in"], total, rtol=1e-4, atol=1e-4)
        session.reset_state()
        session.run(np.ones((4, 32), "float32"))
        np.testing.assert_array_equal(session.state()["total_in"], np.full((1, 32), 4, "float32"))


# ---------------------------------------------------------------------------------------------- programs of several shapes


@pytest.fixture(scope="session")
def blob(library):
    return read_program(library)


def create(blob):
    runtime_ext.register()
    return tvm_ffi.get_global_func(f"{PROGRAM_KIND}.create")(blob)


def test_programs_are_read_as_they_were_written(blob):
    from flexcomp.program.program_bytes import decode_weights_digest

    assert encode_shapes(decode_shapes(blob), decode_weights_digest(blob)) == blob
    create(blob)


def test_budgets_are_enough_for_the_shape_that_needs_most(blob):
    """That may be another one than the first."""
    from flexcomp.program.program_bytes import decode_weights_digest

    first, second, *others = decode_shapes(blob)
    needy = replace(second, rungs=second.rungs[-1:], metadata={**second.metadata, "minimum": "set by another layer"})
    assert needy.rungs[0].budget > first.rungs[0].budget
    made = create(encode_shapes((first, needy, *others), decode_weights_digest(blob)))
    info = json.loads(made.get_function("info")())
    assert info["ladder"][0]["budget_bytes"] == info["min_budget_bytes"] == needy.rungs[0].budget
    assert info["metadata"]["minimum"] == "set by another layer"
    assert json.loads(made.get_function("summary")())["metadata"]["minimum"] == "set by another layer"


@pytest.mark.parametrize(
    "damage",
    [
        lambda blob: blob[:10],
        lambda blob: blob[:-1],
        lambda blob: blob + b"\0",
        lambda blob: blob[:8] + (17).to_bytes(4, "little") + blob[12:],
        lambda blob: blob[:8] + (0).to_bytes(4, "little") + blob[12:],
        lambda blob: blob[:12] + b"\xff" * 8 + blob[20:],
    ],
    ids=["cut in the counts", "cut", "extended", "too many", "none", "too large"],
)
def test_damaged_shapes_are_refused(blob, damage):
    with pytest.raises(RuntimeError, match=r"malformed|cut or extended"):
        create(damage(blob))
    with pytest.raises(ArtifactError, match=r"malformed|cut or extended"):
        decode_shapes(damage(blob))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda programs: programs[:1] * 2, "have the same inputs"),
        (lambda programs: (programs[0], replace(programs[1], threads=2)), "more than extents"),
        (lambda programs: (programs[0], replace(programs[1], target="llvm")), "more than extents"),
        (
            lambda programs: (programs[0], replace(programs[1], inputs=(replace(programs[1].inputs[0], name="other"),))),
            "more than extents",
        ),
    ],
    ids=["twice", "threads", "target", "names"],
)
def test_shapes_of_different_networks_are_refused(blob, change, message):
    from flexcomp.program.program_bytes import decode_weights_digest

    with pytest.raises(RuntimeError, match=message):
        create(encode_shapes(change(decode_shapes(blob)), decode_weights_digest(blob)))
