"""Relax operators through LegalizeOps, FuseOps and FuseTIR: scheduled and unscheduled functions agree."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx

from flexcomp.schedules.generic import audit
from flexcomp.schedules.generic import schedule as generic
from flexcomp.schedules.generic.parse import parse
from flexcomp.schedules.nests.stages import contains
from tests.schedules.kernels import library as build

from .cases import CASES, FLOAT, TVM_TARGET, legalised, random_array


class Machine:
    """The attributes of a target that the scheduler reads."""

    def __init__(self, lanes=8, cores=2):
        self.vector_width, self.vector_registers, self.num_cores = lanes, 16 if lanes < 16 else 32, cores
        self.half = ""


@pytest.fixture(scope="module")
def originals():
    """Functions by name, and their library without any schedule."""
    functions = {f"{name}_{i}": function for name, case in CASES.items() for i, function in enumerate(legalised(*case))}
    return functions, build(functions, references=True)


@pytest.mark.parametrize(("lanes", "cores"), [(8, 2), (4, 1), (16, 3)])
def test_scheduled_functions_agree(originals, lanes, cores):
    functions, library = originals
    scheduled = {name: generic.schedule(function, Machine(lanes, cores)) for name, function in functions.items()}
    kernels = build({name: kernel.func for name, kernel in scheduled.items()})
    rng = np.random.default_rng(0)
    for name, function in functions.items():
        arguments = [random_array(rng, parameter) for parameter in function.params]
        expected = [tvm.runtime.tensor(a) for a in arguments]
        actual = [tvm.runtime.tensor(a) for a in arguments]
        scratch = [tvm.runtime.tensor(np.full(s.shape, 7, s.dtype)) for s in scheduled[name].scratch]
        library[name](*expected)
        kernels[name](*actual, *scratch)
        for a, e in zip(actual, expected, strict=True):
            np.testing.assert_allclose(a.numpy(), e.numpy(), rtol=2e-5, atol=2e-5, err_msg=name)


def scheduled_case(name, lanes=8, cores=2):
    (function,) = legalised(*CASES[name])
    return generic.schedule(function, Machine(lanes, cores))


@pytest.mark.parametrize("name", ["gelu", "silu_chain", "concat_last", "heads", "transpose_odd", "mean_spatial"])
def test_no_intermediate_tensor_remains(name):
    assert scheduled_case(name).scratch == ()


def test_row_statistics_are_the_only_scratch():
    assert sum(s.nbytes for s in scheduled_case("softmax_last").scratch) == 2 * 4 * 3 * 19


def test_conditions_of_a_concatenation_are_resolved():
    script = scheduled_case("concat_last").func.script()
    assert "if_then_else" not in script and "vectorized" in script


def test_reshapes_need_no_division():
    for name in ("heads", "channel_shuffle"):
        script = scheduled_case(name, cores=1).func.script()
        assert "//" not in script and "%" not in script


def test_shared_expressions_are_bound_once():
    assert len(scheduled_case("silu_chain").func.script()) < 40_000


@pytest.mark.parametrize("name", ["gelu", "silu_chain", "mean_mish", "log_softmax"])
def test_no_value_of_a_variable_has_values_of_variables_in_it(name):
    """TVM's analyzers write each out wherever it is read: 15 of them took 20 seconds."""
    lets = []
    tvm_ffi.structural_walk(scheduled_case(name).func.body, (tirx.Let, lambda let: lets.append(let.value)))
    assert not any(contains(value, tirx.Let) for value in lets)


def test_work_is_shared_only_if_it_is_worth_it():
    assert "T.parallel" in scheduled_case("add_parallel").func.script()
    assert "T.parallel" not in scheduled_case("add_parallel", cores=1).func.script()
    assert "T.parallel" not in scheduled_case("add_short").func.script()


@pytest.mark.parametrize(("steps", "at_once"), [(1, True), (60, False)])
def test_only_sums_of_short_terms_are_computed_several_at_once(steps, at_once):
    x, index = tvm.te.placeholder((100,), name="x"), tvm.te.placeholder((64, 3), "int32", name="index")
    tap = tvm.te.reduce_axis((0, 3), "tap")

    def value(i):
        term = x[index[i, tap]]
        for _ in range(steps):
            term = tvm.te.sqrt(term + 1)
        return tvm.te.sum(term, axis=tap)

    function = tvm.te.create_prim_func([x, index, tvm.te.compute((64,), value)])
    assert ("registers = T.alloc_buffer((8,))" in generic.schedule(function, Machine()).func.script()) == at_once


def test_floats_are_rounded_to_bytes_in_vectors_and_bytes_are_left_to_llvm():
    """It rounds them one by one: 12 times the time. Bytes alone it puts into wider vectors than these."""
    function, bytes_ = legalised(*CASES["quantize"])[0], tvm.te.placeholder((640,), "uint8", name="bytes")
    doubled = tvm.te.create_prim_func([bytes_, tvm.te.compute((640,), lambda i: bytes_[i] + bytes_[i])])
    assert "T.vectorized" in generic.schedule(function, Machine(16, 1)).func.script()
    assert "T.vectorized" not in generic.schedule(doubled, Machine(16, 1)).func.script()


def test_every_kernel_passes_the_audit():
    for name in ("softmax_middle", "conv2d", "argmax", "transpose_inner"):
        audit.check(scheduled_case(name).func, TVM_TARGET)
        assert audit.hidden_bytes(scheduled_case(name).func, TVM_TARGET) == 0


def test_input_is_not_changed():
    (function,) = legalised(*CASES["softmax_last"])
    before = tvm_ffi.structural_hash(function)
    generic.schedule(function, Machine())
    assert tvm_ffi.structural_hash(function) == before


def test_schedules_are_deterministic():
    first, second = (scheduled_case("softmax_middle").func for _ in range(2))
    assert tvm_ffi.structural_equal(first, second)


def test_packed_calls_are_refused():
    a = tvm.te.placeholder((8,), name="a")
    out = tvm.te.extern(
        (8,), [a], lambda i, o: tirx.call_packed("tvm.contrib.sort.sort", i[0], o[0]), name="sorted", dtype=FLOAT
    )
    function = tvm.te.create_prim_func([a, out])
    with pytest.raises(generic.UnsupportedKernelError, match=r"the kernel calls tvm\.contrib\.sort\.sort, which only"):
        generic.schedule(function, Machine())


def test_parse_rejects_other_forms():
    (function,) = legalised(*CASES["argmax"])
    assert parse(function) is None
