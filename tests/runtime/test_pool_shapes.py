"""Libraries of several shapes in pools, and by the runner."""

from __future__ import annotations

import json
import random
import subprocess
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest

import flexcomp
from flexcomp import runtime_ext
from flexcomp.compiler import builder
from flexcomp.compiler.padding import tried_padding
from flexcomp.errors import InputError, RefusedError
from flexcomp.runtime import ladder_of, read_info
from tests.padded import masked_encoder, masked_library
from tests.shaped import INPUTS, Nodes, encoder, pictures, sums

SLACK = 4 << 20  # bytes of a process that no budget counts


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    path = tmp_path_factory.mktemp("shapes") / "exact.so"
    shapes = {"n": [48, 16, 1]}
    flexcomp.build(encoder(), input_shapes=INPUTS, shapes=shapes, threads=1, probe=False, progress=False).export_library(path)
    return path


@pytest.fixture(scope="module")
def padded(tmp_path_factory):
    return masked_library(tmp_path_factory.mktemp("shapes") / "padded.so")


@pytest.fixture(scope="module")
def sized(tmp_path_factory):
    path = tmp_path_factory.mktemp("shapes") / "sized.so"
    shapes = [{"h": 12, "w": 20}, {"h": 12, "w": 12}]
    flexcomp.build(
        pictures(), input_shapes={"x": (1, 3, "h", "w")}, shapes=shapes, threads=1, probe=False, progress=False
    ).export_library(path)
    return path


@pytest.fixture(scope="module")
def references():
    models = {"exact": encoder(), "padded": masked_encoder(), "sized": pictures()}
    return {name: onnxruntime.InferenceSession(model.SerializeToString()) for name, model in models.items()}


def inputs(name, n, seed):
    if name == "sized":
        return {"x": np.random.default_rng(seed).standard_normal((1, 3, 12, n)).astype("f4")}
    ids = np.random.default_rng((n, seed)).integers(1, 50, (1, n))
    return {"ids": ids} if name == "exact" else {"ids": ids, "mask": np.ones_like(ids)}


def check(found, reference, given):
    for array, wanted in zip(found.values(), reference.run(None, given), strict=True):
        np.testing.assert_allclose(array, wanted, rtol=1e-4, atol=1e-5)


def test_shapes_and_budgets_in_any_order(exact, padded, sized, references):
    draw = random.Random(3)
    libraries = {"exact": exact, "padded": padded, "sized": sized}
    extents = {"exact": [48, 16, 1], "padded": range(1, 13), "sized": [12, 20]}
    ladders = [ladder_of(read_info(path)) for path in libraries.values()]
    most = sum(max(rung.nbytes for rung in ladder) for ladder in ladders)
    with flexcomp.Pool(most, threads=1) as pool:
        for name, path in libraries.items():
            pool.add(name, path)
        least = pool.plan().least_bytes
        budget = most
        for seed in range(200):
            if draw.random() < 0.3:
                budget = draw.choice([least, most, draw.randint(least, most)])
                pool.set_budget(budget)
            name = draw.choice(list(libraries))
            given = inputs(name, draw.choice(extents[name]), seed)
            check(pool.run(name, given), references[name], given)
            stats = pool.stats()
            assert stats["claimed_bytes"] <= budget and stats["resident_bytes"] <= budget + SLACK


def test_a_change_of_shape_reads_what_a_session_alone_reads(exact):
    with flexcomp.Pool("100MB", threads=1) as pool, flexcomp.load(exact, "all") as session:
        pool.add("exact", exact)
        for seed, n in enumerate((48, 48, 16, 1, 48, 16, 1, 1, 48)):
            pool.run("exact", inputs("exact", n, seed))
            session.run(inputs("exact", n, seed))
            read = pool.stats()["models"]["exact"]["total_bytes_read"]
            assert read == session.stats()["total_bytes_read"], f"after {n} of {seed}"


def test_a_state_lives_on_in_other_shapes_while_others_work_in_the_lane(padded, references, tmp_path):
    shapes = {"input_shapes": {"x": ("n", 32)}, "shapes": {"n": [4, 8]}, "state": {"total_out": "total_in"}}
    flexcomp.build(sums(), threads=1, probe=False, progress=False, **shapes).export_library(tmp_path / "sums.so")
    reference = onnxruntime.InferenceSession(sums().SerializeToString())
    total = np.zeros((1, 32), "f4")
    with flexcomp.Pool("100MB", threads=1) as pool:
        pool.add("sums", tmp_path / "sums.so")
        pool.add("padded", padded)
        for number, n in enumerate((4, 8, 8, 4, 8, 4)):
            if number in (2, 4):
                pool.set_budget(pool.plan().least_bytes if number == 2 else "100MB")
            x = np.random.default_rng(number).standard_normal((n, 32)).astype("f4")
            wanted, total = reference.run(None, {"x": x, "total_in": total})
            np.testing.assert_allclose(pool.run("sums", {"x": x})["y"], wanted, rtol=1e-4, atol=1e-4)
            given = inputs("padded", number + 1, 0)
            check(pool.run("padded", given), references["padded"], given)


def test_requests_that_wait_have_shapes_of_their_own(padded, references):
    with flexcomp.Pool("100MB", threads=1) as pool:
        pool.add("padded", padded)
        asked = [inputs("padded", n, 1) for n in range(1, 13)]
        for given, future in [(given, pool.submit("padded", given)) for given in asked]:
            check(future.result(), references["padded"], given)


def test_padded_rows_are_not_computed(tmp_path, monkeypatch):
    """The record of this library cuts nothing: rows that no kernel computed are zeros, and computed ones have the bias."""
    g = Nodes(seed=2)
    g.named("y", "Gemm", "x", g.weight(32, 32), g.weight(32))
    model = g.model([("x", 1, ["n", 32])], [("y", 1, ["n", 32])])
    options = {"input_shapes": {"x": ("n", 32)}, "shapes": {"n": [64]}, "pad": {"x": 0}}

    def cutting_nothing(*asked):
        padding, over = tried_padding(*asked)
        return replace(padding, outputs={}), over

    monkeypatch.setattr(builder, "tried_padding", cutting_nothing)
    flexcomp.build(model, threads=1, probe=False, progress=False, **options).export_library(tmp_path / "dense.so")
    with flexcomp.Pool("100MB", threads=1) as models:
        models.add("dense", tmp_path / "dense.so")
        for n in (3, 64, 17):
            given = {"x": np.ones((n, 32), "f4")}
            for found in (models.run("dense", given), models.submit("dense", given).result()):
                assert found["y"][:n].any(axis=1).all() and not found["y"][n:].any(), n


def test_times_are_those_of_the_shapes_of_requests(exact):
    of_shapes = read_info(exact)["lane_ladder"][-1]["shapes_ms"]
    with flexcomp.Pool("100MB", threads=1) as models:
        models.add("exact", exact)
        assert models.plan().models[0].predicted_ms == pytest.approx(of_shapes[0])
        deadline_ms = (of_shapes[0] + of_shapes[2]) / 2
        with pytest.raises(RefusedError, match="would end in"):
            models.submit("exact", inputs("exact", 48, 0), deadline_ms=deadline_ms)
        models.submit("exact", inputs("exact", 1, 0), deadline_ms=deadline_ms)
        for seed in range(100):
            models.run("exact", inputs("exact", 1, seed))
        assert models.plan().models[0].predicted_ms == pytest.approx(of_shapes[2], rel=0.02)


def test_shapes_that_are_not_there(exact, padded):
    with flexcomp.Pool("100MB", threads=1) as pool:
        pool.add("exact", exact)
        pool.add("padded", padded)
        with pytest.raises(InputError, match='"ids" has 17 elements along axis 1, and the library was built for 1, 16, 48'):
            pool.run("exact", inputs("exact", 17, 0))
        with pytest.raises(InputError, match='"ids" has 13 elements along axis 1, and the library was built for 12 at most'):
            pool.submit("padded", inputs("padded", 13, 0))


@pytest.mark.parametrize("budget", ["min", "all"])
def test_the_runner_takes_the_shape_of_its_files(exact, references, tmp_path, budget):
    for n in (16, 48, 1):
        given = inputs("exact", n, 0)
        np.save(tmp_path / "ids.npy", given["ids"])
        report = run(exact, "--budget", budget, "--input", f"ids={tmp_path}/ids.npy", "--output-dir", tmp_path / "out")
        check({"y": np.load(tmp_path / "out" / "y.npy")}, references["exact"], given)
        assert report["budget_bytes"] <= report["asked_bytes"]
    np.save(tmp_path / "ids.npy", inputs("exact", 17, 0)["ids"])
    refused = subprocess.run(command(exact, "--input", f"ids={tmp_path}/ids.npy"), capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and '"ids" has 17 elements along axis 1, and the library was built for 1, 16, 48' in (
        refused.stderr
    )


@pytest.mark.parametrize("budget", ["min", "all"])
def test_the_runner_pads_inputs_and_cuts_outputs(padded, references, tmp_path, budget):
    for n in (12, 3, 9):
        given = inputs("padded", n, 0)
        for name, array in given.items():
            np.save(tmp_path / f"{name}.npy", array)
        files = [word for name in given for word in ("--input", f"{name}={tmp_path}/{name}.npy")]
        run(padded, "--budget", budget, *files, "--output-dir", tmp_path / "out")
        check({name: np.load(tmp_path / "out" / f"{name}.npy") for name in ("rows", "mean")}, references["padded"], given)
    np.save(tmp_path / "mask.npy", inputs("padded", 4, 0)["mask"])
    refused = subprocess.run(command(padded, *files), capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and 'elements along axis 1: both are n' in refused.stderr
    run(padded, *files[:2], "--output-dir", tmp_path / "out")  # other inputs have the same length
    assert np.load(tmp_path / "out" / "rows.npy").shape == (1, 9, 32)


def test_the_runner_without_files_and_in_a_pool_takes_the_largest(exact, tmp_path):
    run(exact, "--output-dir", tmp_path / "one")
    assert np.load(tmp_path / "one" / "y.npy").shape == (1, 48, 64)
    run("--pool", exact, "--budget", "100MB", "--output-dir", tmp_path / "pool")
    assert np.load(tmp_path / "pool" / "exact" / "y.npy").shape == (1, 48, 64)


def command(*arguments):
    return [runtime_ext.runner(), *map(str, arguments)]


def run(*arguments):
    return json.loads(subprocess.run(command(*arguments, "--repeat", 1), capture_output=True, text=True, check=True).stdout)
