"""Every call of the C interface with right arguments, and with each kind of wrong ones: a status and a message, never a crash."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from ctypes import byref, c_uint32, c_void_p
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import flexcomp
from flexcomp import runtime_ext
from flexcomp.program import PROGRAM_KIND
from flexcomp.program.program_bytes import OLDEST_VERSION, PROGRAM_VERSION
from tests.api import bindings as api
from tests.api.bindings import refused
from tests.api.network import WIDTH, expected

ZEROS = np.zeros((1, 16), "f4")


# ------------------------------------------------------------------------------------------------------- opening


def test_an_inference(session, x, n, y):
    following = np.empty(3, "i8")
    assert api.run(session, (x, n), (y, following)) == api.OK
    np.testing.assert_allclose(y, expected(x, ZEROS), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(following, n + 1)


@pytest.mark.parametrize(
    ("path", "says"),
    [("missing.so", "No such file"), ("text.so", "not a shared library"), ("plain", "does not end in .so"), (".", ".so")],
)
def test_files_that_are_no_network_are_refused(path, says, tmp_path):
    for name in ("text.so", "plain"):
        (tmp_path / name).write_text("text")
    session = c_void_p(7)
    refused(api.ARTIFACT, "open", str(tmp_path / path).encode(), None, byref(session), says=says)
    assert session.value is None


@pytest.mark.parametrize(
    ("number", "age", "way_out"), [("77", "a newer", "update flexcomp"), ("02", "an older", "build the network again")]
)
def test_a_library_of_another_version(library, number, age, way_out, tmp_path):
    """From a file, and linked."""
    other, kind = tmp_path / "other.so", f"flexcomp.program.{number}".encode()
    data = library.read_bytes()
    assert data.count(PROGRAM_KIND.encode()) > 1  # of the runtime, and of the program
    other.write_bytes(data.replace(PROGRAM_KIND.encode(), kind))
    says = f" was built by {age} version of flexcomp: its program has format {int(number)}, and flexcomp "
    says += f"{flexcomp.__version__} runs formats {OLDEST_VERSION} to {PROGRAM_VERSION}: {way_out}"
    refused(api.UNSUPPORTED, "open", str(other).encode(), None, byref(c_void_p()), says=f"{other}{says}")
    linked = api.Network(kind=kind)
    refused(api.UNSUPPORTED, "open_linked", byref(linked), None, byref(c_void_p()), says=f"the linked network{says}")
    linked.size = 8
    refused(api.INPUT, "open_linked", byref(linked), None, byref(c_void_p()), says="not one that flexcomp made")


def test_a_thread_without_memory_gets_a_message(tmp_path):
    """In a process that opened the library at run time."""
    program, source = tmp_path / "program", Path(__file__).with_name("thread_without_memory.c")
    command = ["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", source, "-o", program, "-ldl", "-lpthread"]
    subprocess.run([*command, "-Wl,--no-as-needed", "-lstdc++"], check=True)  # what exceptions have of a thread is there
    done = subprocess.run([program, runtime_ext.runtime_library()], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()) == (0, [
        f"{api.OUT_OF_MEMORY} the process is out of memory, for the reason of the failure, too",
        f"{api.CLOSED} the session is closed, or was never open",
    ]), done.stderr  # fmt: skip


def test_weights_elsewhere(library, tmp_path, x, n, y):
    weights = tmp_path / "of another name"
    shutil.copy(library.with_suffix(".weights"), weights)
    session = api.opened(library, weights=str(weights).encode(), flags=api.VERIFY | api.PAGE_CACHE)
    assert api.run(session, (x, n), (y,)) == api.OK
    assert api.given("get_stats", api.Stats, session).direct == 0
    api.done("close", session)
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 1
    weights.write_bytes(damaged)
    wrong = api.Options(weights=str(weights).encode(), flags=api.VERIFY)
    refused(api.ARTIFACT, "open", str(library).encode(), byref(wrong), byref(c_void_p()), says="damaged")
    missing = api.Options(weights=b"/nowhere/at all")
    refused(api.ARTIFACT, "open", str(library).encode(), byref(missing), byref(c_void_p()), says="/nowhere/at all")


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"size": 0}, api.INPUT), ({"size": 8}, api.INPUT), ({"size": 2**40}, api.INPUT), ({"flags": 1 << 20}, api.INPUT),
        ({"threads": -1}, api.INPUT), ({"threads": 10**6}, api.INPUT), ({"read_bandwidth": float("nan")}, api.INPUT),
        ({"read_bandwidth": -1.0}, api.INPUT), ({"compute_cpus": b"one"}, api.INPUT), ({"loader_cpus": b"99999"}, api.INPUT),
        ({"budget": 2}, api.BUDGET),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(library, options, status):
    session = c_void_p(7)
    refused(status, "open", str(library).encode(), byref(api.Options(**options)), byref(session))
    assert session.value is None


def test_null_is_refused(library, session):
    name = str(library).encode()
    refused(api.INPUT, "open", None, None, byref(c_void_p()), says='"library" is NULL')
    refused(api.INPUT, "open", name, None, None, says='"session" is NULL')
    for call, arguments in {
        "shape_count": (), "tensor_count": (api.INPUTS,), "describe_tensor": (api.INPUTS, 0, 0), "budget_count": (0,),
        "describe_budget": (0, 0), "current_budget": (), "get_stats": (), "get_state": (0,), "set_state": (0,),
        "describe_session": (), "find_shape": (api.tensors(ZEROS, ZEROS), 2), "measure_storage": (4096, 4096),
    }.items():  # fmt: skip
        refused(api.INPUT, call, session, *arguments, None, says="is NULL")
    refused(api.INPUT, "find_tensor", session, api.INPUTS, None, byref(c_uint32()), says='"name" is NULL')
    refused(api.INPUT, "find_tensor", session, api.INPUTS, b"x", None, says='"index" is NULL')
    refused(api.INPUT, "run", session, None, 2, None, 0, says='"inputs" is NULL')
    refused(api.INPUT, "get_text", session, api.TEXT_STATS, api.OnText(0), None, says='"give" is NULL')
    assert api.call("close", None) == api.OK


# ------------------------------------------------------------------------------------------------------- handles

_EACH = {
    "shape_count": (None,), "tensor_count": (0, None), "describe_tensor": (0, 0, 0, None), "find_tensor": (0, None, None),
    "run": (None, 0, None, 0), "run_in_place": (api.Callback(0), api.Callback(0), None), "cancel": (), "warm": (),
    "budget_count": (0, None),
    "describe_budget": (0, 0, None), "set_budget": (1,), "current_budget": (None,), "get_state": (0, None),
    "set_state": (0, None), "reset_states": (), "get_stats": (None,), "close": (), "describe_session": (None,),
    "find_shape": (None, 0, None), "get_text": (api.TEXT_STATS, api.OnText(0), None), "measure_storage": (1, 1, None),
}  # fmt: skip


@pytest.mark.parametrize("name", _EACH)
def test_a_session_that_is_closed_or_never_was_is_refused(library, name):
    closed = api.opened(library)
    api.done("close", closed)
    for handle in (closed, c_void_p(2**40), *([] if name == "close" else [None])):
        refused(api.CLOSED, name, handle, *_EACH[name])


def test_handles_are_not_used_again(library):
    first = api.opened(library)
    api.done("close", first)
    second = api.opened(library)
    assert second.value != first.value
    assert api.call("warm", first) == api.CLOSED and api.call("warm", second) == api.OK
    api.done("close", second)


def test_a_forked_process_is_told(session):
    child = os.fork()
    if child == 0:
        os._exit(api.call("warm", session) * 16 + api.call("close", session))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == api.EXECUTION * 16 + api.OK
    assert api.call("warm", session) == api.OK


def test_messages_are_a_threads_own(library):
    api.call("warm", None)
    mine = api.message()
    others = []

    def other():
        others.append(api.message())
        api.call("open", None, None, byref(c_void_p()))
        others.append(api.message())

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert others[0] == "" and others[1] != mine == api.message()
    long = "x" * 3000 + ".so"
    api.call("open", long.encode(), None, byref(c_void_p()))
    assert len(api.message()) == 1023
    accents = "é" * 1500  # two bytes each, after an odd number of bytes
    api.call("open", accents.encode(), None, byref(c_void_p()))
    assert len(api.message().encode()) in (1022, 1023)


def test_closing_while_others_run(library, x, n):
    session = api.opened(library)
    outcomes = set()

    def work():
        y = np.empty((1, WIDTH), "f4")
        while (status := api.run(session, (x, n), (y,))) == api.OK:
            pass
        outcomes.add(status)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    api.done("close", session)
    for thread in threads:
        thread.join()
    assert outcomes <= {api.CLOSED, api.EXECUTION}  # the latter: it had begun to wait


# --------------------------------------------------------------------------------------------------- descriptions


def test_descriptions(session):
    assert api.given("shape_count", c_uint32, session) == 1
    assert [api.given("tensor_count", c_uint32, session, kind) for kind in range(3)] == [2, 2, 1]
    found = {}
    for kind in range(3):
        for index in range(api.given("tensor_count", c_uint32, session, kind)):
            info = api.given("describe_tensor", api.TensorInfo, session, kind, index, 0)
            found[info.name] = (kind, info.dtype, info.shape[: info.rank], info.nbytes)
            assert api.given("find_tensor", c_uint32, session, kind, info.name) == index
    assert found == {
        b"x": (api.INPUTS, api.FLOAT32, [1, 16], 64), b"n": (api.INPUTS, api.INT64, [3], 24),
        b"y": (api.OUTPUTS, api.FLOAT32, [1, WIDTH], 4 * WIDTH), b"next": (api.OUTPUTS, api.INT64, [3], 24),
        b"h_in": (api.STATES, api.FLOAT32, [1, 16], 64),
    }  # fmt: skip


def test_unknown_indices_are_refused(session):
    info, number, budget = api.TensorInfo(), c_uint32(), api.BudgetInfo()
    for kind, index, shape in ((3, 0, 0), (-1, 0, 0), (0, 2, 0), (0, 2**32 - 1, 0), (0, 0, 1)):
        refused(api.INPUT, "describe_tensor", session, kind, index, shape, byref(info))
    assert info.name is None and not info.nbytes
    refused(api.INPUT, "tensor_count", session, 3, byref(number))
    refused(api.INPUT, "find_tensor", session, 0, b"z", byref(number), says='"z"')
    refused(api.INPUT, "find_tensor", session, 9, b"x", byref(number))
    refused(api.INPUT, "budget_count", session, 1, byref(number))
    refused(api.INPUT, "describe_budget", session, 0, 10**6, byref(budget))
    refused(api.INPUT, "describe_budget", session, 1, 0, byref(budget))
    for call in ("get_state", "set_state"):
        refused(api.INPUT, call, session, 1, byref(api.tensor(ZEROS)))


@pytest.mark.parametrize("kind", [api.TensorInfo, api.BudgetInfo, api.Stats, api.SessionInfo])
def test_structures_of_other_sizes(session, kind):
    """A caller of a later version gets zeros; one who did not set the size is told."""
    calls = {api.TensorInfo: ("describe_tensor", 0, 0, 0), api.BudgetInfo: ("describe_budget", 0, 0), api.Stats: ("get_stats",)}
    calls[api.SessionInfo] = ("describe_session",)
    call = calls[kind]
    own = api.given(call[0], kind, session, *call[1:])
    size = ctypes.sizeof(kind)
    larger = (ctypes.c_char * (size + 24))(*b"\xff" * (size + 24))
    later = ctypes.cast(larger, ctypes.POINTER(kind))
    later.contents.size = size + 16
    api.done(call[0], session, *call[1:], later)
    assert later.contents.size == size + 16
    assert larger.raw[size : size + 16] == bytes(16) and larger.raw[size + 16 :] == b"\xff" * 8
    assert larger.raw[8:size] == ctypes.string_at(byref(own), size)[8:]
    for wrong in (0, 8, 5000):
        refused(api.INPUT, call[0], session, *call[1:], byref(kind(size=wrong)), says='"size"')


@pytest.mark.parametrize(
    ("kind", "call", "member"),
    [(api.TensorInfo, ("describe_tensor", 0, 0, 0), "open_axes"), (api.Stats, ("get_stats",), "read_s")],
)
def test_structures_of_the_first_header(session, kind, call, member):
    first = getattr(kind, member).offset
    given = kind(size=first)
    api.done(call[0], session, *call[1:], byref(given))
    assert given.size == first and not bytes(given)[first:].strip(b"\0")
    refused(api.INPUT, call[0], session, *call[1:], byref(kind(size=first - 1)), says='"size"')


# -------------------------------------------------------------------------------------------------------- running


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"size": 0}, '"size"'), ({"size": 39}, '"size"'), ({"size": 2**33}, '"size"'), ({"data": None}, "NULL"),
        ({"nbytes": 63}, "63 bytes"), ({"nbytes": 65}, "65 bytes"), ({"nbytes": 0}, "0 bytes"), ({"dtype": api.INT64}, "int64"),
        ({"dtype": 99}, "99"), ({"dtype": -1}, "-1"), ({"rank": 2}, "no shape"),
        ({"rank": -1, "shape": api.shape(1, 16)}, "rank of -1"), ({"rank": 2, "shape": api.shape(16, 1)}, "float32[1×16]"),
        ({"rank": 1, "shape": api.shape(16)}, "float32[16]"),
        ({"rank": 2, "shape": api.shape(-1, 16)}, "-1"),
    ],
)  # fmt: skip
def test_wrong_inputs_are_refused(session, x, n, y, change, says):
    refused(api.INPUT, "run", session, api.tensors(api.tensor(x, **change), n), 2, api.tensors(y), 1, says=says)
    assert api.run(session, (x, n), (y,)) == api.OK


def test_arrays_of_another_length_or_size_are_refused(session, x, n, y):
    refused(api.INPUT, "run", session, api.tensors(x), 1, api.tensors(y), 1, says="2 inputs, not 1")
    refused(api.INPUT, "run", session, api.tensors(x, n, n), 3, api.tensors(y), 1, says="2 inputs, not 3")
    refused(api.INPUT, "run", session, api.tensors(x, n), 2, api.tensors(y, n.copy(), y), 3, says="no output 2")
    refused(api.INPUT, "run", session, api.tensors(x, n), 2, None, 1, says='"outputs" is NULL')
    for size in (0, 32, 96):
        refused(api.INPUT, "run", session, api.tensors(x, api.tensor(n, size=size)), 2, None, 0, says="first tensor")
    refused(api.INPUT, "run", session, api.tensors(x, n), 2, api.tensors(api.tensor(y, nbytes=4)), 1, says='"y"')


def test_arrays_of_a_later_version(session, x, n, y):
    """Larger elements are as far apart as their size says; members that nobody knows here must be zero."""
    size = ctypes.sizeof(api.Tensor) + 8
    array = (ctypes.c_char * (2 * size))()
    for i, one in enumerate((x, n)):
        ctypes.memmove(byref(array, i * size), byref(api.tensor(one, size=size)), size - 8)
    later = ctypes.cast(array, ctypes.POINTER(api.Tensor))
    assert api.call("run", session, later, 2, api.tensors(y), 1) == api.OK
    np.testing.assert_allclose(y, expected(x, ZEROS), rtol=1e-4, atol=1e-5)
    array[2 * size - 1] = b"\1"
    refused(api.UNSUPPORTED, "run", session, later, 2, api.tensors(y), 1, says="does not know")


def test_outputs_that_nobody_wants(session, x, n):
    following = np.empty(3, "i8")
    assert api.run(session, (x, n), (api.Tensor(), following)) == api.OK
    np.testing.assert_array_equal(following, n + 1)
    assert api.run(session, (x, n), ()) == api.OK


def test_stated_types_and_shapes(session, x, n, y):
    stated = api.tensor(x, dtype=api.FLOAT32, rank=2, shape=api.shape(1, 16))
    assert api.run(session, (stated, n), (api.tensor(y, dtype=api.FLOAT32),)) == api.OK


def test_in_place(session, x, n, y):
    """Callbacks see memory of the session, with types and shapes, and may end the inference."""
    seen = []

    def fill(context, tensors, count):
        assert count == 2 and tensors[0].dtype == api.FLOAT32 and tensors[0].shape[: tensors[0].rank] == [1, 16]
        ctypes.memmove(tensors[0].data, x.ctypes.data, tensors[0].nbytes)
        ctypes.memmove(tensors[1].data, n.ctypes.data, tensors[1].nbytes)
        return api.OK

    def drain(context, tensors, count):
        seen.append(ctypes.string_at(tensors[0].data, tensors[0].nbytes))
        return context or api.OK

    fill, drain = api.Callback(fill), api.Callback(drain)
    api.done("run_in_place", session, fill, drain, None)
    np.testing.assert_allclose(np.frombuffer(seen[0], "f4")[None], expected(x, ZEROS), rtol=1e-4, atol=1e-5)
    refused(api.STORAGE, "run_in_place", session, fill, drain, api.STORAGE, says="callback")
    refused(-5, "run_in_place", session, api.Callback(lambda *_: -5), drain, None, says="callback")
    api.done("run_in_place", session, api.Callback(0), api.Callback(0), None)
    api.done("reset_states", session)
    assert api.run(session, (x, n), (y,)) == api.OK
    np.testing.assert_allclose(y, expected(x, ZEROS), rtol=1e-4, atol=1e-5)


def test_a_callback_does_not_wait_for_itself(session, library):
    other = api.opened(library)
    found = []

    def fill(context, tensors, count):
        for name in ("run", "run_in_place", "warm", "set_budget", "get_state", "set_state", "reset_states", "close"):
            found.append(api.call(name, session, *_EACH[name]))
        found.append(api.call("warm", other))
        found.append(api.call("get_stats", session, byref(api.Stats())))
        return api.OK

    api.done("run_in_place", session, api.Callback(fill), api.Callback(0), None)
    assert found == [api.INPUT] * 8 + [api.OK] * 2
    api.done("close", other)
    api.done("warm", session)


# --------------------------------------------------------------------------------------------------------- cancel


@pytest.mark.parametrize("budget", [api.SMALLEST, api.ALL])
def test_cancelling(session, x, n, y, budget):
    """From a callback, where the moment is known: while the inputs are written, and when the inference is at its end."""
    api.done("cancel", session)  # nothing is in progress
    api.done("set_budget", session, budget)
    for _ in range(2):
        assert api.run(session, (x, n), (y,)) == api.OK
    h = np.empty((1, 16), "f4")
    before = api.given("get_stats", api.Stats, session)
    cancel = api.Callback(lambda *_: api.call("cancel", session))
    refused(api.CANCELLED, "run_in_place", session, cancel, api.Callback(0), None, says="cancelled")
    api.done("get_state", session, 0, byref(api.tensor(h)))
    np.testing.assert_allclose(h, 2 * x, rtol=1e-6)
    after = api.given("get_stats", api.Stats, session)
    assert (after.resident, after.runs, after.restarts) == (before.resident, before.runs, 0)
    assert api.run(session, (x, n), (y,)) == api.OK
    np.testing.assert_allclose(y, expected(x, 2 * x), rtol=1e-4, atol=1e-5)
    assert api.given("get_stats", api.Stats, session).bytes_read == before.bytes_read  # what stays is not read again
    api.done("run_in_place", session, api.Callback(0), cancel, None)
    api.done("reset_states", session)
    assert api.run(session, (x, n), (y,)) == api.OK
    np.testing.assert_allclose(y, expected(x, ZEROS), rtol=1e-4, atol=1e-5)
    assert api.given("get_stats", api.Stats, session).restarts == 0


# -------------------------------------------------------------------------------------------------------- budgets


def test_budgets(session, x, n, y):
    count = api.given("budget_count", c_uint32, session, 0)
    ladder = [api.given("describe_budget", api.BudgetInfo, session, 0, i) for i in range(count)]
    assert count > 1 and all(a.budget < b.budget for a, b in pairwise(ladder))
    for index in (0, count - 1, *range(count)):
        api.done("set_budget", session, ladder[index].budget)
        assert api.given("current_budget", c_uint32, session) == index
        api.done("reset_states", session)
        assert api.run(session, (x, n), (y,)) == api.OK
        np.testing.assert_allclose(y, expected(x, ZEROS), rtol=1e-4, atol=1e-5)
        assert api.given("get_stats", api.Stats, session).resident <= -(-ladder[index].arena // 4096) * 4096
    refused(api.BUDGET, "set_budget", session, ladder[0].budget - 1, says=str(ladder[0].budget))
    for budget, index in ((api.SMALLEST, 0), (api.ALL, count - 1)):
        api.done("set_budget", session, budget)
        assert api.given("current_budget", c_uint32, session) == index
    api.done("warm", session)
    stats = api.given("get_stats", api.Stats, session)
    assert stats.runs == count + 2 and stats.threads == 1 and stats.total_bytes_read > 0
    api.done("set_budget", session, api.DEFAULT)


# ---------------------------------------------------------------------------------------------------------- states


def test_states(session, x, n, y):
    h = np.empty((1, 16), "f4")
    for expected_h in (ZEROS, x, 2 * x):
        api.done("get_state", session, 0, byref(api.tensor(h)))
        np.testing.assert_allclose(h, expected_h, rtol=1e-6)
        assert api.run(session, (x, n), (y,)) == api.OK
    np.testing.assert_allclose(y, expected(x, 2 * x), rtol=1e-4, atol=1e-5)
    api.done("set_state", session, 0, byref(api.tensor(-x, dtype=api.FLOAT32)))
    assert api.run(session, (x, n), (y,)) == api.OK
    np.testing.assert_allclose(y, 0 * y, atol=1e-5)
    for call in ("get_state", "set_state"):
        refused(api.INPUT, call, session, 0, byref(api.tensor(h, nbytes=60)), says='"h_in"')
        refused(api.INPUT, call, session, 0, byref(api.tensor(h, data=None)), says="NULL")
        refused(api.INPUT, call, session, 0, byref(api.tensor(h, dtype=api.INT64)), says="int64")
    api.done("reset_states", session)
    api.done("get_state", session, 0, byref(api.tensor(h)))
    np.testing.assert_array_equal(h, ZEROS)


def test_storage_that_fails_is_an_error_of_its_own(library, tmp_path, x, n, y):
    weights = tmp_path / "weights"
    shutil.copy(library.with_suffix(".weights"), weights)
    session = api.opened(library, weights=str(weights).encode(), budget=api.SMALLEST)
    os.truncate(weights, 8192)
    refused(api.STORAGE, "run", session, api.tensors(x, n), 2, api.tensors(y), 1, says=str(weights))
    api.done("close", session)
