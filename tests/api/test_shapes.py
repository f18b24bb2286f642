"""Libraries of several shapes through the C interface."""

from __future__ import annotations

import ctypes
import subprocess
from ctypes import byref, c_uint32, c_void_p

import numpy as np
import onnxruntime
import pytest

import flexcomp
from tests.api import bindings as api
from tests.api.bindings import refused
from tests.shaped import INPUTS, encoder

LENGTHS = (64, 16)


@pytest.fixture(scope="module")
def artifact():
    return flexcomp.build(encoder(), input_shapes=INPUTS, shapes={"n": LENGTHS}, threads=1, probe=False, progress=False)


@pytest.fixture(scope="module")
def library(artifact, tmp_path_factory):
    path = tmp_path_factory.mktemp("shaped") / "shaped.so"
    artifact.export_library(path)
    return path


def inference(session, n):
    """Outputs of an inference in the shape of n, compared."""
    ids, y = np.random.default_rng(n).integers(0, 300, (1, n)), np.empty((1, n, 64), "f4")
    given = api.tensor(ids, rank=2, shape=api.shape(1, n))
    assert api.call("run", session, byref(given), 1, byref(api.tensor(y)), 1) == api.OK
    wanted = onnxruntime.InferenceSession(encoder().SerializeToString()).run(None, {"ids": ids})[0]
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)


def test_an_inference_takes_the_shape_that_its_inputs_state(session):
    assert api.given("shape_count", c_uint32, session) == 2
    for n in (16, 64, 16):
        inference(session, n)
    assert api.call("set_budget", session, api.SMALLEST) == api.OK
    for n in (64, 16):
        inference(session, n)


def test_tensors_and_budgets_of_each_shape(session, artifact):
    for shape, (n, program) in enumerate(zip(LENGTHS, artifact.programs, strict=True)):
        info = api.TensorInfo()
        assert api.call("describe_tensor", session, api.OUTPUTS, 0, shape, byref(info)) == api.OK
        assert info.shape[: info.rank] == [1, n, 64] and info.nbytes == n * 64 * 4
        count = c_uint32()
        assert api.call("budget_count", session, shape, byref(count)) == api.OK and count.value == len(program.rungs)
        budget = api.BudgetInfo()
        assert api.call("describe_budget", session, shape, 0, byref(budget)) == api.OK
        assert budget.budget == program.rungs[0].budget
    refused(api.INPUT, "describe_tensor", session, api.INPUTS, 0, 2, byref(info), says="there is no shape 2: the network has 2")
    refused(api.INPUT, "budget_count", session, 2, byref(count), says="there is no shape 2")


def test_shapes_that_are_not_stated_or_not_there(session):
    ids, y = np.zeros((1, 16), "i8"), np.empty((1, 16, 64), "f4")
    run = [byref(api.tensor(ids)), 1, byref(api.tensor(y)), 1]
    refused(api.INPUT, "run", session, *run, says='"ids" is given without its shape, and the library holds 2: state it')
    run[0] = byref(api.tensor(np.zeros((1, 17), "i8"), rank=2, shape=api.shape(1, 17)))
    refused(api.INPUT, "run", session, *run, says="has 17 elements along axis 1, and the library was built for 16, 64")
    run[0], run[1] = byref(api.tensor(ids, rank=2, shape=api.shape(1, 16))), 2
    refused(api.INPUT, "run", session, *run, says="the network has 1 inputs, not 2")
    nothing = api.Callback()
    refused(api.UNSUPPORTED, "run_in_place", session, nothing, nothing, None, says="flexcomp_run_in_place knows none")


def test_a_member_of_a_pool(library):
    pool, member = c_void_p(), c_void_p()
    api.done("pool_open", byref(api.PoolOptions(budget=100 << 20)), byref(pool))
    try:
        api.done("pool_add", pool, b"encoder", str(library).encode(), None, byref(member))
        assert api.given("shape_count", c_uint32, member) == 2
        for n in (16, 64, 16):
            inference(member, n)
        ids, y = np.zeros((1, 17), "i8"), np.empty((1, 17, 64), "f4")
        run = byref(api.tensor(ids, rank=2, shape=api.shape(1, 17))), 1, byref(api.tensor(y)), 1
        refused(api.INPUT, "run", member, *run, says="has 17 elements along axis 1, and the library was built for 16, 64")
    finally:
        api.call("pool_close", pool)


def test_linked(artifact, tmp_path):
    artifact.export_library(tmp_path / "linked.o")
    command = ["cc", "-shared", "-o", tmp_path / "linked.so", tmp_path / "linked.o"]
    subprocess.run(command, check=True)
    network = ctypes.CDLL(str(tmp_path / "linked.so")).flexcomp_network_linked
    session, options = c_void_p(), api.Options(weights=str(tmp_path / "linked.weights").encode())
    pointer = ctypes.cast(network, ctypes.POINTER(api.Network))
    assert api.call("open_linked", pointer, byref(options), byref(session)) == api.OK
    for n in (64, 16):
        inference(session, n)
    api.call("close", session)
