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
from tests.padded import masked_encoder, masked_library, subsampled
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


def test_an_inference_in_place_uses_the_shape_in_use(session):
    ids, found = np.arange(64)[None], {}
    copied = {n: np.empty((1, n, 64), "f4") for n in LENGTHS}

    def fill(_, tensors, count):
        n = tensors[0].shape[1]
        assert (count, tensors[0].rank, tensors[0].nbytes) == (1, 2, n * 8)
        ctypes.memmove(tensors[0].data, ids[:, :n].tobytes(), n * 8)
        return api.OK

    def drain(_, tensors, count):
        n = tensors[0].shape[1]
        assert (count, tensors[0].rank, tensors[0].nbytes) == (1, 3, n * 256)
        found[n] = np.frombuffer(ctypes.string_at(tensors[0].data, n * 256), "f4").reshape(1, n, 64)
        return api.OK

    for shape, n in [(None, 64), (1, 16), (0, 64)]:
        if shape is not None:
            api.done("use_shape", session, shape)
        api.done("run_in_place", session, api.Callback(fill), api.Callback(drain), None)
        given = api.tensor(np.ascontiguousarray(ids[:, :n]), rank=2, shape=api.shape(1, n))
        api.done("run", session, byref(given), 1, byref(api.tensor(copied[n])), 1)
        np.testing.assert_array_equal(found[n], copied[n])
    refused(api.INPUT, "use_shape", session, 2, says="there is no shape 2: the network has 2")


# -------------------------------------------------------------------------------------------------------- lengths between


@pytest.fixture(scope="module")
def padded(tmp_path_factory):
    return masked_library(tmp_path_factory.mktemp("shaped") / "padded.so")


def padded_inference(session, n):
    """Outputs of an inference at a length, compared; the extents of both are asked for."""
    ids = np.random.default_rng(n).integers(0, 50, (1, n))
    mask, rows, mean = np.ones_like(ids), np.empty((1, n, 32), "f4"), np.empty((1, 32), "f4")
    given = api.tensors(*(api.tensor(array, rank=2, shape=api.shape(1, n)) for array in (ids, mask)))
    nowhere = api.tensors(*(api.Tensor(rank=2, shape=api.shape(1, n)) for _ in range(2)))
    extents = (ctypes.c_int64 * 3)()
    for inputs in (given, nowhere):
        api.done("output_shape", session, inputs, 2, 0, extents, 3)
        assert tuple(extents) == rows.shape
        assert api.given("find_shape", c_uint32, session, inputs, 2) == int(n <= 5)
    api.done("output_shape", session, given, 2, 1, extents, 2)
    assert tuple(extents)[:2] == mean.shape
    api.done("run", session, given, 2, api.tensors(rows, mean), 2)
    wanted = onnxruntime.InferenceSession(masked_encoder().SerializeToString()).run(None, {"ids": ids, "mask": mask})
    for found, array in zip((rows, mean), wanted, strict=True):
        np.testing.assert_allclose(found, array, rtol=1e-4, atol=1e-5)


def test_inputs_of_any_length_are_padded_and_outputs_cut(padded):
    session = api.opened(padded)
    for index, axes in enumerate([0b10, 0b10]):
        info = api.TensorInfo()
        api.done("describe_tensor", session, api.INPUTS, index, 1, byref(info))
        assert info.open_axes == axes and info.axis_names[: info.rank] == [None, b"n"]
    for index, axes in enumerate([0b10, 0]):
        api.done("describe_tensor", session, api.OUTPUTS, index, 0, byref(info))
        assert info.open_axes == axes and bool(info.axis_names) == bool(axes)
    for budget in (api.SMALLEST, api.ALL):
        api.done("set_budget", session, budget)
        for n in (12, 3, 5, 9, 1):
            padded_inference(session, n)
    api.done("close", session)


def test_outputs_of_a_part_of_the_length(tmp_path):
    """Their axes have a formula for a name, and flexcomp_output_shape tells the extent."""
    flexcomp.build(
        subsampled(), input_shapes={"x": (1, 8, "n")}, shapes={"n": [20]}, pad={"x": 0}, threads=1, probe=False, progress=False
    ).export_library(tmp_path / "frames.so")
    session = api.opened(tmp_path / "frames.so")
    info = api.TensorInfo()
    api.done("describe_tensor", session, api.OUTPUTS, 0, 0, byref(info))
    assert info.open_axes == 0b100 and info.axis_names[: info.rank] == [None, None, b"(n + 3) / 4"]
    extents = (ctypes.c_int64 * 3)()
    for n in (20, 9, 8, 1):
        x, y = np.ones((1, 8, n), "f4"), np.zeros((1, 4, -(-n // 4)), "f4")
        given = api.tensors(api.tensor(x, rank=3, shape=api.shape(1, 8, n)))
        api.done("output_shape", session, given, 1, 0, extents, 3)
        assert tuple(extents) == y.shape
        api.done("run", session, given, 1, api.tensors(y), 1)
        (wanted,) = onnxruntime.InferenceSession(subsampled().SerializeToString()).run(None, {"x": x})
        np.testing.assert_allclose(y, wanted, atol=1e-5)
    api.done("close", session)


def test_padded_inputs_that_do_not_fit(padded):
    session = api.opened(padded)
    extents = (ctypes.c_int64 * 3)()

    def given(*shapes):
        arrays = [np.ones(shape, "i8") for shape in shapes]
        return api.tensors(*(api.tensor(one, rank=one.ndim, shape=api.shape(*one.shape)) for one in arrays))

    for shapes, says in [
        ([(1, 13), (1, 13)], '"ids" has 13 elements along axis 1, and the library was built for 12 at most'),
        ([(1, 3), (1, 4)], '"mask" has 4 elements along axis 1, but "ids" has 3 elements along axis 1: both are n'),
        ([(1, 0), (1, 0)], '"ids" has 0 elements along axis 1, and at least 1 is needed'),
        ([(3,), (3,)], '"ids" has 2 axes; given was [3]'),
    ]:
        refused(api.INPUT, "run", session, given(*shapes), 2, None, 0, says=says)
        refused(api.INPUT, "output_shape", session, given(*shapes), 2, 0, extents, 3, says=says)
    refused(api.INPUT, "run", session, given((2, 3), (2, 3)), 2, None, 0, says='"ids" is given with 48 bytes; int64[1×3] has 24')
    two = given((1, 3), (1, 3))
    wrong = [(two, 2, 0, extents, 2), (two, 2, 2, extents, 3), (None, 2, 0, extents, 3), (two, 2, 0, None, 3)]
    for arguments in [*wrong, (given((1, 3)), 1, 0, extents, 3), (two, 2, 0, extents, -1)]:
        refused(api.INPUT, "output_shape", session, *arguments)
    rows = np.empty((1, 12, 32), "f4")
    refused(api.INPUT, "run", session, given((1, 3), (1, 3)), 2, byref(api.tensor(rows)), 1, says="has 384")
    api.done("close", session)


def test_a_member_of_a_pool(library, padded):
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
        api.done("pool_add", pool, b"padded", str(padded).encode(), None, byref(member))
        for n in (12, 3):
            padded_inference(member, n)
        refused(api.UNSUPPORTED, "use_shape", member, 0, says="a pool")
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
