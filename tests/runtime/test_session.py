import ctypes
import json
import shutil
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
import tiny as builder
import tvm_ffi

import flexcomp
from flexcomp.artifact import decode_program
from flexcomp.errors import ArtifactError, BudgetError, ExecutionError, InputError, StorageError, TargetError
from flexcomp.session import read_info


def close_to(result, expected):
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.fixture
def budgets(tiny):
    return [rung.budget for rung in tiny.program.rungs]


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize("rung", [0, 1, 2])
def test_every_rung_computes_the_same(tiny, x, rung, threads):
    planned = tiny.program.rungs[rung]
    with flexcomp.load(tiny.library, planned.budget, threads) as session:
        expected = tiny.reference(x)
        for run in range(4):
            close_to(session(x), expected)
            stats = session.stats()
            loads = [load for load in planned.loads if run == 0 or not load.pinned]
            assert stats["bytes_read"] == sum(load.nbytes for load in loads)
            assert stats["arena_bytes"] == planned.arena and stats["threads"] == threads
        close_to(session(-x), tiny.reference(-x))


def test_reads_bypass_the_page_cache(tiny, x):
    with flexcomp.load(tiny.library, "min") as session:
        if not session.stats()["direct_io"]:
            pytest.skip("the file system of the temporary folder has no O_DIRECT")
        close_to(session(x), tiny.reference(x))


def test_buffered_reads_are_reported(tiny, x):
    with flexcomp.load(tiny.library, "min", direct=False) as session:
        assert session.stats()["direct_io"] is False
        close_to(session(x), tiny.reference(x))


def test_loading_needs_no_compiler(tiny, x, tmp_path):
    """A fresh process with nothing but tvm_ffi, numpy, and the two files."""
    np.savez(tmp_path / "data.npz", x=x, y=tiny.reference(x))
    script = f"""
        import sys, time
        import numpy as np
        start = time.perf_counter()
        import flexcomp
        session = flexcomp.load({str(tiny.library)!r}, "min")
        data = np.load({str(tmp_path / "data.npz")!r})
        np.testing.assert_allclose(session(data["x"]), data["y"], rtol=1e-4, atol=1e-5)
        assert not {{"tvm", "onnx", "typer", "rich", "matplotlib", "flexcomp.build"}} & set(sys.modules)
        session.close()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, cwd=tmp_path)


def test_interface(tiny, x, budgets):
    with flexcomp.load(str(tiny.library)) as session:
        assert [(p.name, p.shape, p.dtype) for p in session.inputs] == [("x", (256,), "float32")]
        assert [p.name for p in session.outputs] == ["out"]
        assert [rung.budget_bytes for rung in session.ladder] == budgets
        assert session.budget == budgets[-1] == session.info["resident_bytes"]
        assert decode_program(session.program_bytes()) == tiny.program
        expected = tiny.reference(x)
        close_to(session.run({"x": x})["out"], expected)
        close_to(session.run(x)["out"], expected)
        close_to(session(x=x), expected)
        readonly = x.copy()
        readonly.flags.writeable = False
        close_to(session(readonly), expected)
        close_to(session(np.repeat(x, 2)[::2]), expected)


def test_inputs_may_be_tensors(tiny, x):
    with flexcomp.load(tiny.library) as session:
        close_to(session(tvm_ffi.from_dlpack(x)), tiny.reference(x))


def test_inputs_need_no_alignment(tiny, x):
    raw = np.empty(x.nbytes + 4, "u1")
    odd = raw[4:].view("f4") if raw.ctypes.data % 8 == 0 else raw[:-4].view("f4")
    odd[:] = x
    with flexcomp.load(tiny.library, "min") as session:
        close_to(session(odd), tiny.reference(x))


@pytest.mark.parametrize(
    ("inputs", "match"),
    [
        (lambda x: {"y": x}, 'inputs must be "x", not "y"'),
        (lambda x: {}, 'inputs must be "x", not none'),
        (lambda x: {"x": x[:-1]}, r'input "x" must be float32\[256\], not float32\[255\]'),
        (lambda x: {"x": x.astype("f8")}, r'input "x" must be float32\[256\], not float64\[256\]'),
        (lambda x: {"x": x.reshape(1, 256)}, r"not float32\[1, 256\]"),
        (lambda x: {"x": x.astype(">f4")}, "must be float32"),
    ],
)
def test_wrong_inputs(tiny, x, inputs, match):
    with flexcomp.load(tiny.library) as session:
        with pytest.raises(ValueError, match=match):
            session.run(inputs(x))
        with pytest.raises(InputError, match="1 inputs are needed, 2 given"):
            session(x, x)
        close_to(session(x), tiny.reference(x))


def test_the_native_interface_checks_for_itself(tiny, x):
    """C++ callers do not come through session.py."""
    with flexcomp.load(tiny.library) as session:
        call = session._run
        out = np.empty(256, "f4")
        for wrong in [(x,), (x[:128], out), (x.astype("i4"), out), (np.zeros(512, "f4")[::2], out), (x, out[:9]), (3, out)]:
            with pytest.raises(RuntimeError) as caught:
                call(*wrong)
            assert caught.value.__tvm_ffi_error__.kind == "InputError"


def test_budgets(tiny, x, budgets):
    with pytest.raises(BudgetError, match=f"1000 bytes was asked for, the smallest feasible is {budgets[0]}"):
        flexcomp.load(tiny.library, 1000)
    with flexcomp.load(tiny.library, budgets[1] + 5) as session:
        assert session.budget == budgets[1]
        assert session.set_budget(budgets[1] - 1).budget_bytes == budgets[0]
        close_to(session(x), tiny.reference(x))
        assert session.set_budget(None).budget_bytes == budgets[2]
        close_to(session(x), tiny.reference(x))
        with pytest.raises(BudgetError):
            session.set_budget(budgets[0] - 1)
        with pytest.raises(RuntimeError, match="the smallest that tiny was built for"):
            session._set_budget(1)
        assert session.set_budget("min").budget_bytes == budgets[0]
        close_to(session(x), tiny.reference(x))


def test_pinned_weights_are_read_again_after_a_switch(tiny, x, budgets):
    with flexcomp.load(tiny.library) as session:
        for budget in (budgets[2], budgets[1], budgets[2], budgets[2]):
            before = session.budget
            session.set_budget(budget)
            fresh = before != budget or session.stats()["runs"] == 0
            close_to(session(x), tiny.reference(x))
            assert (session.stats()["bytes_read"] > 0) == (fresh or budget == budgets[1])


@pytest.mark.parametrize("rung", [0, 1, 2])
def test_a_read_error_at_any_place_leaves_the_session_usable(tiny, x, budgets, rung):
    expected = tiny.reference(x)
    for nth in range(1, 2 * len(tiny.program.rungs[rung].loads) + 1):
        with flexcomp.load(tiny.library, budgets[rung], fail_read_at=nth) as session:
            failed = 0
            for _ in range(4):
                try:
                    result = session(x)
                except StorageError as error:
                    assert "Input/output error" in str(error)
                    failed += 1
                else:
                    close_to(result, expected)
            assert failed == (nth <= len(tiny.program.rungs[rung].loads) or rung < 2)


def test_a_slow_device_is_imitated(tiny, x, budgets):
    with flexcomp.load(tiny.library, budgets[0], read_bandwidth=50e6) as session:
        close_to(session(x), tiny.reference(x))
        session(x)
        stats = session.stats()
        assert stats["latency_ms"] > 0.9 * stats["bytes_read"] / 50e6 * 1e3
        assert 0 < stats["stall_ms"] < stats["latency_ms"]


def test_missing_files(tiny, tmp_path, copy):
    library, weights = copy
    with pytest.raises(ArtifactError, match=r"cannot open .*nothing.so: No such file"):
        flexcomp.load(tmp_path / "nothing.so")
    with pytest.raises(ArtifactError, match=r"nothing.weights is missing"):
        flexcomp.load(tiny.library, weights=tmp_path / "nothing.weights")
    with flexcomp.load(library, weights=weights) as session:
        assert session.budget


def load_copy(copy, **options):
    library, weights = copy
    return flexcomp.load(library, weights=weights, **options)


def test_cut_weights_are_refused(copy):
    raw = copy[1].read_bytes()
    for wrong in (raw[:-1], raw[: len(raw) // 2], raw + b"\0", b""):
        copy[1].write_bytes(wrong)
        with pytest.raises(ArtifactError, match="cut short or belongs to another model"):
            load_copy(copy)


def test_swapped_weights_are_refused(other, copy, x):
    shutil.copy(other.weights, copy[1])
    assert other.weights.stat().st_size == copy[0].resolve().with_suffix(".weights").stat().st_size
    with pytest.raises(ArtifactError, match="belongs to another model"):
        load_copy(copy)


def test_flipped_header_bytes_are_refused(tiny, copy):
    raw = copy[1].read_bytes()
    rng = np.random.default_rng(3)
    for at in [0, 7, 8, *rng.integers(0, tiny.digest.header_nbytes, 200)]:
        damaged = bytearray(raw)
        damaged[at] ^= 4
        copy[1].write_bytes(damaged)
        with pytest.raises(ArtifactError, match="damaged or belongs to another model"):
            load_copy(copy)


def test_flipped_weights_are_found_when_asked_for(tiny, copy, x):
    raw = copy[1].read_bytes()
    header, rng = tiny.digest.header_nbytes, np.random.default_rng(4)
    places = [c.offset for c in tiny.digest.checksums] + [c.offset + c.nbytes - 1 for c in tiny.digest.checksums]
    for at in [*places, *rng.integers(0, 6 * 256 * 256 * 4, 40)]:
        damaged = bytearray(raw)
        damaged[header + at] ^= 1
        copy[1].write_bytes(damaged)
        with pytest.raises(ArtifactError, match=r"is damaged: the checksum .* \(layer (mv\d|mul)\)"):
            load_copy(copy, verify=True)
        load_copy(copy).close()
    copy[1].write_bytes(raw)
    with load_copy(copy, verify=True) as session:
        close_to(session(x), tiny.reference(x))


def test_weights_cut_while_open(tiny, copy, x):
    """The file shrinks under an open session: an error, not stale weights; once restored, all is well."""
    raw = copy[1].read_bytes()
    with load_copy(copy, budget="min") as session:
        close_to(session(x), tiny.reference(x))
        with open(copy[1], "r+b") as file:
            file.truncate(len(raw) // 2 // 4096 * 4096)
        with pytest.raises(StorageError):
            session(x)
        copy[1].write_bytes(raw)
        close_to(session(x), tiny.reference(x))


def test_foreign_libraries_are_refused(tmp_path, tiny):
    text = tmp_path / "text.so"
    text.write_text("not a library, whatever its name says")
    with pytest.raises(ArtifactError, match="not a shared library"):
        flexcomp.load(text)
    cut = tmp_path / "cut.so"
    cut.write_bytes(tiny.library.read_bytes()[:5000])
    with pytest.raises(ArtifactError, match="is cut short: 5000 bytes"):
        flexcomp.load(cut)
    foreign = bytearray(tiny.library.read_bytes())
    foreign[18:20] = b"\xb7\0" if foreign[18] != 0xB7 else b"\x3e\0"
    cut.write_bytes(foreign)
    with pytest.raises(TargetError, match="was compiled for"):
        flexcomp.load(cut)


def test_missing_cpu_features_are_named(tiny, tmp_path):
    import dataclasses

    import tvm_ffi

    from flexcomp.artifact import PROGRAM_KIND, encode_program

    program = dataclasses.replace(tiny.program, features=("imaginary", "fantastic"))
    module = tvm_ffi.get_global_func(PROGRAM_KIND + ".create")(encode_program(program, tiny.digest))
    with pytest.raises(RuntimeError, match='compiled for "llvm"; this processor lacks imaginary, fantastic') as caught:
        module.get_function("open")(str(tiny.weights), "{}")
    assert caught.value.__tvm_ffi_error__.kind == "TargetError"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"colour": 1, "direct": True}, 'no option "colour"; there are "direct", "read_bandwidth", '),
        ({"library_path": "x"}, 'no option "library_path"'),
        ({"threads": "2"}, "threads must be a whole number, not '2'"),
        ({"threads": 1.5}, "threads must be a whole number, not 1.5"),
        ({"direct": "yes"}, 'option "direct" has a value of the wrong type'),
        ({"read_bandwidth": -1}, "read_bandwidth"),
        ({"fail_read_at": -1}, "must not be negative"),
        ({"threads": 0}, "at least 1"),
        ({"threads": 10**6}, "cannot run on"),
    ],
)
def test_wrong_options(tiny, options, match):
    with pytest.raises(InputError, match=match):
        flexcomp.load(tiny.library, **options)


def test_two_networks_and_several_sessions_in_one_process(tiny, other, x):
    sessions = [
        (net, flexcomp.load(net.library, budget, threads))
        for net in (tiny, other)
        for budget, threads in (("min", 1), (None, 2), ("min", 3))
    ]
    failures = []

    def use(net, session):
        try:
            for _ in range(10):
                close_to(session(x), net.reference(x))
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=use, args=pair) for pair in sessions]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for _, session in sessions:
        session.close()
    assert not failures


def test_a_library_that_was_replaced_is_loaded_anew(tiny, other, x, tmp_path):
    """As in a notebook: build, load, build again under the same name, load."""
    sessions = []
    for network in (tiny, other, tiny):
        for source, name in ((network.library, "net.so"), (network.weights, "net.weights")):
            shutil.copy(source, tmp_path / "fresh")
            (tmp_path / "fresh").replace(tmp_path / name)
        sessions.append(flexcomp.load(tmp_path / "net.so", threads=2))
        close_to(sessions[-1](x), network.reference(x))
    close_to(sessions[0](x), tiny.reference(x))


def test_budget_switches_during_inferences(tiny, x, budgets):
    expected = tiny.reference(x)
    with flexcomp.load(tiny.library, threads=2) as session:
        stop = threading.Event()

        def switch():
            rng = np.random.default_rng(5)
            while not stop.is_set():
                budget = int(rng.choice(budgets))
                assert session.set_budget(budget).budget_bytes == budget

        switcher = threading.Thread(target=switch)
        switcher.start()
        try:
            for _ in range(200):
                close_to(session(x), expected)
        finally:
            stop.set()
            switcher.join()


def test_the_runtime_stays_its_own_beside_tvm(tiny, x):
    """In a process with TVM, opening a library gives it TVM's backend; sessions take theirs back."""
    import tvm  # noqa: F401

    backend = ctypes.c_void_p.in_dll(ctypes.CDLL(str(tiny.library)), "__TVMBackendParallelLaunch")
    with flexcomp.load(tiny.library, threads=2) as session:
        ours = backend.value
        read_info(tiny.library)
        assert backend.value != ours
        close_to(session(x), tiny.reference(x))
        assert backend.value == ours


def test_a_forked_process_is_told(tiny):
    """Its copy of the session has no threads: waiting for them would never end."""
    script = f"""
        import gc, os, signal
        import numpy as np
        import flexcomp
        session = flexcomp.load({str(tiny.library)!r}, threads=2)
        x = np.zeros(256, "f4")
        session(x)
        if child := os.fork():
            assert os.waitpid(child, 0)[1] == 0
            session(x)
            os._exit(0)
        signal.alarm(20)
        try:
            session(x)
        except flexcomp.ExecutionError as error:
            assert "forked" in str(error)
        with flexcomp.load({str(tiny.library)!r}, threads=2) as own:
            del session
            gc.collect()
            own(x)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_closed_sessions(tiny, x):
    session = flexcomp.load(tiny.library)
    session.close()
    session.close()
    for call in (lambda: session(x), session.stats, lambda: session.set_budget(None)):
        with pytest.raises(ExecutionError, match="closed"):
            call()


def test_sessions_open_and_close_often(tiny, x):
    """No threads or descriptors stay behind, used or not."""
    from pathlib import Path

    count = lambda what: len(list(Path(f"/proc/self/{what}").iterdir()))  # noqa: E731
    flexcomp.load(tiny.library, "min").close()
    before = count("fd"), count("task")
    for i in range(100):
        session = flexcomp.load(tiny.library, "min", threads=3)
        if i % 2:
            session(x)
        if i % 3:
            session.close()
        del session
    assert (count("fd"), count("task")) == before


def test_too_many_threads_are_an_error(tiny, x):
    """A system that grants no more threads must not end the process."""
    script = f"""
        import resource
        import flexcomp
        with flexcomp.load({str(tiny.library)!r}) as session:
            pass
        limit = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (1 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))  # no room for the stacks
        try:
            flexcomp.load({str(tiny.library)!r}, threads=1000)
        except flexcomp.ExecutionError as error:
            assert "cannot start 1000 threads" in str(error), error
        else:
            assert False
        flexcomp.load({str(tiny.library)!r}, threads=2)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_hidden_workspace_fails_loudly(tmp_path_factory, x):
    """A kernel that asks for more than register tiles must not get memory outside the budget."""
    import tvm
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def greedy(a: T.handle, w: T.handle, c: T.handle) -> None:
        T.func_attr({"global_symbol": "greedy_mul", "tirx.noalias": True})
        A = T.match_buffer(a, (256,))
        W = T.match_buffer(w, (256,))
        C = T.match_buffer(c, (256,))
        K = T.sblock_alloc_buffer((40, 256))  # granted, and not given back when the next one is refused
        H = T.sblock_alloc_buffer((256, 256))
        for i, j in T.grid(40, 256):
            with T.sblock("kept"):
                vi, vj = T.axis.remap("SS", [i, j])
                K[vi, vj] = A[vj]
        for i, j in T.grid(256, 256):
            with T.sblock("hidden"):
                vi, vj = T.axis.remap("SS", [i, j])
                H[vi, vj] = A[vi] * W[vj]
        for i in T.serial(256):
            with T.sblock("out"):
                vi = T.axis.S(256, i)
                C[vi] = H[vi, 255 - vi] + K[vi % 40, 255 - vi]

    target = tvm.target.Target({"kind": "llvm"})
    compiled = builder.kernels("greedy_")
    broken = tvm.tirx.build(tvm.IRModule({"greedy_mul2": greedy.with_attr("global_symbol", "greedy_mul2")}), target=target)
    compiled.import_module(broken)
    program_of = builder.make_program

    def with_greedy_mul(layers, prefix, metadata=None):
        import dataclasses

        program = program_of(layers, prefix, metadata)
        swapped = dataclasses.replace(program.layers[-2], kernel="greedy_mul2")
        return dataclasses.replace(program, layers=(*program.layers[:-2], swapped, program.layers[-1]))

    builder.make_program = with_greedy_mul
    try:
        net = builder.export(tmp_path_factory.mktemp("greedy") / "greedy.so", "greedy_", compiled=compiled)
    finally:
        builder.make_program = program_of
    with flexcomp.load(net.library) as session:
        for _ in range(3):
            with pytest.raises(ExecutionError, match=r"layer mul .* asked for 262144 bytes of hidden workspace"):
                session(x)


def test_info_is_json(tiny):
    from flexcomp.session import read_info, read_program

    info = read_info(tiny.library)
    assert json.loads(json.dumps(info))["target"] == "llvm"
    assert decode_program(read_program(tiny.library)) == tiny.program
