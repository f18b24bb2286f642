"""Weights from a descriptor, from memory and from a reader: the outputs of the file, and what goes wrong is a status."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import threading
import time
from ctypes import byref, c_uint32, c_void_p

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import flexcomp
from tests.api import bindings as api
from tests.api.network import WIDTH

PAGE = 4096


class Weights:
    """A weights file as a reader gives it; `acts[n]` is called instead of the n-th call that copies."""

    def __init__(self, path):
        self.bytes = path.read_bytes()
        self.most = len(self.bytes)  # bytes that a call copies
        self.calls, self.running, self.overlaps, self.acts = 0, 0, 0, {}
        self.threads = set()
        self.function = api.Reader(self._read)  # lives as long as the session
        self.source = api.Source(kind=api.READER, nbytes=len(self.bytes), read=self.function)

    def copy(self, offset, target, nbytes):
        part = self.bytes[offset : offset + min(nbytes, self.most)]
        ctypes.memmove(target, part, len(part))
        return len(part)

    def _read(self, _context, offset, target, nbytes):
        self.running += 1
        self.overlaps += self.running > 1
        self.threads.add(threading.get_ident())
        act = self.acts.get(self.calls, self.copy)
        self.calls += 1
        result = act(offset, target, nbytes)
        self.running -= 1
        return result


@pytest.fixture(scope="module")
def path(library):
    return library.with_suffix(".weights")


@pytest.fixture
def reader(path):
    return Weights(path)


@contextlib.contextmanager
def packed(path, folder, offset):
    """The weights in the middle of a file: a source that has a descriptor, which is closed at the end."""
    data = path.read_bytes()
    file = folder / "packed"
    file.write_bytes(os.urandom(offset) + data + os.urandom(PAGE + 5))
    descriptor = os.open(file, os.O_RDONLY)
    try:
        yield api.Source(kind=api.DESCRIPTOR, descriptor=descriptor, offset=offset, nbytes=len(data))
    finally:
        os.close(descriptor)


def memory(path, shift=0):
    data = path.read_bytes()
    kept = ctypes.create_string_buffer(b"\1" * shift + data)
    source = api.Source(kind=api.MEMORY, data=ctypes.addressof(kept) + shift, nbytes=len(data))
    source.kept = kept
    return source


def ladder(session, x, n):
    """The outputs at every budget, downwards and upwards, and what was read."""
    budgets = [
        api.given("describe_budget", api.BudgetInfo, session, 0, i).budget
        for i in range(api.given("budget_count", c_uint32, session, 0))
    ]
    outputs = []
    for budget in [*budgets[::-1], *budgets]:
        api.done("set_budget", session, budget)
        api.done("reset_states", session)
        y = np.empty((1, WIDTH), "f4")
        assert api.run(session, (x, n), (y,)) == api.OK, api.message()
        outputs.append((budget, y.tobytes(), api.given("get_stats", api.Stats, session).bytes_read))
    return outputs


@pytest.fixture(scope="module")
def wanted(library):
    """By the flags of options."""
    random = np.random.default_rng(1)
    x, n = random.standard_normal((1, 16)).astype("f4"), np.int64([1, 2, 3])
    found = {}
    for flags in (0, api.VERIFY):
        session = api.opened(library, flags=flags)
        found[flags] = ladder(session, x, n), api.given("get_stats", api.Stats, session).direct
        api.done("close", session)
    return found


@pytest.mark.parametrize("flags", [0, api.VERIFY], ids=["plain", "verified"])
@pytest.mark.parametrize("offset", [0, PAGE, 3 * PAGE + 512, 7])
def test_a_descriptor(library, path, wanted, offset, flags, tmp_path, x, n):
    with packed(path, tmp_path, offset) as source:
        session = api.opened(library, source=source, flags=flags)
    (tmp_path / "packed").unlink()  # its name is not needed, either
    outputs, direct = wanted[flags]
    assert ladder(session, x, n) == outputs
    assert api.given("get_stats", api.Stats, session).direct == (direct if offset % PAGE == 0 else 0)
    api.done("close", session)


@pytest.mark.parametrize("flags", [0, api.VERIFY, api.NO_WORK_STEALING], ids=["plain", "verified", "alone"])
@pytest.mark.parametrize("shift", [0, 1])
def test_memory(library, path, wanted, shift, flags, x, n):
    source = memory(path, shift)
    session = api.opened(library, source=source, flags=flags)
    assert ladder(session, x, n) == wanted[flags & api.VERIFY][0]
    assert api.given("get_stats", api.Stats, session).direct == 0
    api.done("close", session)


@pytest.mark.parametrize("flags", [0, api.VERIFY], ids=["plain", "verified"])
@pytest.mark.parametrize("most", [10**9, 40_000, 777])
def test_a_reader(library, reader, wanted, most, flags, x, n):
    """At once, and in pieces that end anywhere; never two at a time."""
    reader.most = most
    session = api.opened(library, source=reader.source, flags=flags)
    assert ladder(session, x, n) == wanted[flags][0]
    api.done("close", session)
    assert reader.overlaps == 0 and len(reader.threads) > 1


def test_a_reader_writes_whole_pages_into_the_arena(library, reader, x, n):
    """No copy besides the budget."""
    asked = []
    copy = reader.copy
    reader.copy = lambda *read: asked.append(read) or copy(*read)
    session = api.opened(library, source=reader.source, budget=api.SMALLEST)
    opening = len(asked)
    assert api.run(session, (x, n), ()) == api.OK
    end = len(reader.bytes)
    assert opening and all(
        at % PAGE == 0 and (size % PAGE == 0 or at + size == end) and size <= 1 << 20 for at, _, size in asked
    )  # fmt: skip
    arena = api.given("describe_budget", api.BudgetInfo, session, 0, 0).arena
    targets = [(target, target + size) for _, target, size in asked[opening:]]
    assert max(end for _, end in targets) - min(begin for begin, _ in targets) <= arena
    api.done("close", session)


def rows_model():
    table = np.random.default_rng(3).standard_normal((6000, 64)).astype("f4")
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, (4,))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (4, 64))
    nodes = [helper.make_node("Gather", ["table", "ids"], ["rows"]), helper.make_node("Relu", ["rows"], ["y"])]
    graph = helper.make_graph(nodes, "rows", [ids], [y], [numpy_helper.from_array(table, "table")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), table


def test_rows_of_a_table(tmp_path_factory):
    """A computing thread reads them, as many bytes as are needed."""
    model, table = rows_model()
    library = tmp_path_factory.mktemp("rows") / "rows.so"
    flexcomp.build(model, threads=1).export_library(library)
    weights = library.with_suffix(".weights")
    ids, y = np.int64([0, 5999, 17, 3000]), np.empty((4, 64), "f4")
    reader = Weights(weights)
    for source in (reader.source, memory(weights)):
        session = api.opened(library, source=source, budget=api.SMALLEST, flags=api.VERIFY)
        assert api.run(session, (ids,), (y,)) == api.OK
        np.testing.assert_array_equal(y, np.maximum(table[ids], 0))
        assert 0 < api.given("get_stats", api.Stats, session).bytes_read < table.nbytes // 4
        reader.acts[reader.calls + 1] = lambda *_: -errno.EIO
        assert api.run(session, (ids,), (y,)) == (api.STORAGE if source is reader.source else api.OK)
        assert source is not reader.source or "(row 5999): Input/output error" in api.message()
        assert api.run(session, (ids,), (y,)) == api.OK
        api.done("close", session)


def test_imitated_bandwidth(library, path, x, n):
    source = memory(path)
    session = api.opened(library, source=source, budget=api.SMALLEST, read_bandwidth=20e6)
    start = time.monotonic()
    assert api.run(session, (x, n), ()) == api.OK
    took = time.monotonic() - start
    assert took >= api.given("get_stats", api.Stats, session).bytes_read / 20e6 * 0.99
    api.done("close", session)


# ------------------------------------------------------------------------------------------- readers that misbehave


FAILURES = {
    "an errno value": (lambda *_: -errno.EACCES, api.STORAGE, "Permission denied"),
    "no errno value": (lambda *_: -(2**63), api.STORAGE, "Input/output error"),
    "nothing": (lambda *_: 0, api.STORAGE, "No data available"),
    "too much": (lambda _offset, _target, nbytes: nbytes + 1, api.STORAGE, "more bytes were returned than were asked for"),
    "far too much": (lambda *_: 2**63 - 1, api.STORAGE, "more bytes were returned than were asked for"),
    "a cancelled read": (lambda *_: -errno.ECANCELED, api.CANCELLED, "cancelled"),
    "cancelling": (None, api.CANCELLED, "cancelled"),
}


@pytest.mark.parametrize("budget", [api.SMALLEST, api.ALL], ids=["streaming", "resident"])
@pytest.mark.parametrize("failure", FAILURES)
def test_every_call_of_a_reader_fails_once(library, path, wanted, failure, budget, x, n):
    """One status with the reason, in opening or running; then the right output."""
    act, status, says = FAILURES[failure]
    outputs = {entry[1] for entry in wanted[0][0]}
    for number in range(1000):
        reader, session = Weights(path), c_void_p()
        reader.most = 300_000
        reader.acts[number] = act or (lambda *asked: api.call("cancel", session) * 0 + reader.copy(*asked))  # noqa: B023
        options = api.Options(source=ctypes.pointer(reader.source), budget=budget)
        first = api.call("open", str(library).encode(), byref(options), byref(session))
        if first != api.OK:
            assert first == (api.ARTIFACT if status == api.STORAGE else status) and says in api.message() and not session.value
            continue
        y, failed = np.empty((1, WIDTH), "f4"), 0
        for _ in range(4):  # reads ahead fail the inference that they are for
            api.done("reset_states", session)
            if (got := api.run(session, (x, n), (y,))) == api.OK:
                assert y.tobytes() in outputs
                continue
            failed += 1
            assert got == status and says in api.message()
        api.done("close", session)
        assert failed <= 1
        if reader.calls <= number:  # all were over before
            assert number > 1 and not failed
            return
    pytest.fail("there is no end of reads")


@pytest.mark.parametrize("when", ["opening", "running"])
def test_wrong_bytes_are_noticed_where_that_is_asked_for(library, reader, when, x, n):
    def lie(_offset, target, nbytes):
        ctypes.memset(target, 1, nbytes)
        return nbytes

    name, options = str(library).encode(), api.Options(
        source=ctypes.pointer(reader.source), flags=api.VERIFY, budget=api.SMALLEST
    )  # fmt: skip
    session = c_void_p()
    if when == "opening":
        reader.acts[1] = lie
        assert api.call("open", name, byref(options), byref(session)) == api.ARTIFACT and "damaged" in api.message()
        return
    api.done("open", name, byref(options), byref(session))
    reader.acts[reader.calls] = lie
    assert api.run(session, (x, n), ()) == api.STORAGE and "no longer holds what was verified" in api.message()
    assert api.run(session, (x, n), ()) == api.OK
    api.done("close", session)


def test_a_reader_may_not_call_its_own_session(library, reader, x, n):
    other = api.opened(library)
    session = api.opened(library, source=reader.source)
    seen = []

    def call(*asked):
        for name, arguments in {
            "close": (), "warm": (), "run_in_place": (api.Callback(0), api.Callback(0), None), "set_budget": (1,),
            "get_stats": (byref(api.Stats()),), "current_budget": (byref(c_uint32()),), "shape_count": (byref(c_uint32()),),
        }.items():  # fmt: skip
            seen.append(api.call(name, session, *arguments))
        seen.append(api.call("warm", other))
        return reader.copy(*asked)

    reader.acts[reader.calls] = call
    assert api.run(session, (x, n), ()) == api.OK
    assert seen == [api.INPUT] * 7 + [api.OK]
    api.done("close", session)
    api.done("close", other)


def test_a_cancelled_inference_waits_for_no_slow_reader(library, reader, x, n):
    """The next one does, for bytes that would arrive in the middle of it."""
    session = api.opened(library, source=reader.source, budget=api.SMALLEST)
    want = np.empty((1, WIDTH), "f4")
    assert api.run(session, (x, n), (want,)) == api.OK
    api.done("reset_states", session)
    reached, go_on = threading.Event(), threading.Event()

    def slow(*asked):
        reached.set()
        go_on.wait(60)
        return reader.copy(*asked)

    reader.acts[reader.calls] = slow
    statuses, y = [], np.empty((1, WIDTH), "f4")
    inference = threading.Thread(target=lambda: statuses.append(api.run(session, (x, n), ())))
    inference.start()
    assert reached.wait(60)
    while inference.is_alive():  # until then the inference may not have begun, or read ahead for one that is to begin
        api.done("cancel", session)
        inference.join(0.01)
    assert statuses == [api.CANCELLED]
    again = threading.Thread(target=lambda: statuses.append(api.run(session, (x, n), (y,))))
    again.start()
    again.join(0.05)
    assert again.is_alive()
    go_on.set()
    again.join(60)
    assert statuses == [api.CANCELLED, api.OK] and y.tobytes() == want.tobytes()
    api.done("close", session)


@pytest.mark.parametrize("call", ["cancel", "set_budget", "close"])
def test_others_act_while_a_reader_is_slow(library, reader, call, x, n):
    session = api.opened(library, source=reader.source, budget=api.ALL)
    reached, go_on = threading.Event(), threading.Event()

    def slow(*asked):
        reached.set()
        go_on.wait(60)
        return reader.copy(*asked)

    reader.acts[reader.calls] = slow
    statuses = []
    inference = threading.Thread(target=lambda: statuses.append(api.run(session, (x, n), ())))
    acting = threading.Thread(target=lambda: statuses.append(api.call(call, session, *([1] if call == "set_budget" else []))))
    inference.start()
    assert reached.wait(60)
    acting.start()
    time.sleep(0.02)
    go_on.set()
    for thread in (inference, acting):
        thread.join(60)
        assert not thread.is_alive()
    assert sorted(statuses) == sorted([api.OK, api.CANCELLED if call == "cancel" else api.OK])
    assert api.run(session, (x, n), ()) == (api.CLOSED if call == "close" else api.OK)
    api.call("close", session)


# ---------------------------------------------------------------------------------------------------- wrong arguments


def refused(library, status, says, source, **options):
    session = c_void_p(7)
    options = api.Options(source=ctypes.pointer(source), **options)
    assert api.call("open", str(library).encode(), byref(options), byref(session)) == status, api.message()
    assert says in api.message() and session.value is None


def test_wrong_sources_are_refused(library, path, tmp_path):
    good = memory(path)
    for members, says in (
        ({"size": 0}, '"size"'), ({"size": 8}, '"size"'), ({"kind": 0}, "no kind 0"), ({"kind": 9}, "no kind 9"),
        ({"data": None}, '"data" is NULL'), ({"kind": api.READER}, '"read" is NULL'),
    ):  # fmt: skip
        given = {name: getattr(good, name) for name in ("size", "kind", "nbytes", "data")}
        refused(library, api.INPUT, says, api.Source(**{**given, **members}))
    refused(library, api.INPUT, "twice", good, weights=str(path).encode())
    for nbytes in (0, good.nbytes - 1, good.nbytes + 1):
        wrong = api.Source(kind=api.MEMORY, data=good.data, nbytes=nbytes)
        refused(library, api.ARTIFACT, f"(memory) has {nbytes} bytes", wrong)
    reading, writing = os.pipe()
    for descriptor, says in ((-1, "Bad file descriptor"), (reading, "not in a regular file")):
        refused(library, api.ARTIFACT, says, api.Source(kind=api.DESCRIPTOR, descriptor=descriptor, nbytes=good.nbytes))
    os.close(reading), os.close(writing)
    with packed(path, tmp_path, PAGE) as source:
        for offset, says in (
            (0, "damaged or belongs"), (3 * PAGE, "ends outside"), (2**40, "ends outside"), (2**64 - 1, "ends outside"),
        ):  # fmt: skip
            moved = api.Source(kind=api.DESCRIPTOR, descriptor=source.descriptor, offset=offset, nbytes=source.nbytes)
            refused(library, api.ARTIFACT, says, moved)


def test_a_file_that_is_changed_under_a_descriptor_is_noticed(library, path, tmp_path, x, n):
    with packed(path, tmp_path, PAGE) as source:
        session = api.opened(library, source=source, budget=api.SMALLEST)
    with (tmp_path / "packed").open("ab") as file:
        file.write(b"more")
    assert api.run(session, (x, n), ()) == api.STORAGE and "was changed" in api.message()
    api.done("close", session)


def test_options_of_the_first_header(library, reader):
    """Programs that know no sources."""
    first = api.Options.source.offset
    options = api.Options(size=first, source=ctypes.pointer(reader.source))
    session = c_void_p()
    api.done("open", str(library).encode(), byref(options), byref(session))
    assert reader.calls == 0
    api.done("close", session)
