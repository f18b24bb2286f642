"""Sessions on a GPU: the tiny network by the runtime's own session and loader, on streams that are threads."""

import threading
from dataclasses import replace

import numpy as np
import pytest

import flexcomp
from flexcomp.errors import ArtifactError, BudgetError, ExecutionError, TargetError
from flexcomp.program import device_kernel
from tests.cuda.driver import tiny_cuda
from tests.runtime import hooks
from tests.runtime import tiny as tiny_program
from tests.runtime.tiny import close_to

PIECE = 64 << 10  # of device memory, in these tests
LATE = {"compute_delay_us": 300, "copy_delay_us": 300}


def pieces(nbytes: int) -> int:
    """Device memory that so many bytes take."""
    return -(-nbytes // PIECE) * PIECE


@pytest.fixture(scope="module")
def ahead(tmp_path_factory, device_kernels):
    """Everything is pinned or read ahead."""
    folder = tmp_path_factory.mktemp("ahead")
    return tiny_cuda.export(folder / "ahead.so", "ahead_", kernels=device_kernels, plan=tiny_program.all_ahead)


@pytest.mark.parametrize("integrated", [0, 1])
def test_every_rung_gives_the_right_answer(fake, tiny, x, integrated):
    for rung in tiny.program.rungs:
        fake.set(**LATE, integrated=integrated)
        with flexcomp.load(tiny.library, budget=rung.budget) as session:
            for factor in (1, 2, 3):
                close_to(session(factor * x), tiny.reference(factor * x))
            assert session.stats()["staging_bytes"] == (0 if integrated else 4 << 20)
        assert fake.peak <= pieces(rung.arena)


@pytest.mark.parametrize("integrated", [0, 1])
def test_loading_goes_on_across_the_end_of_an_inference(fake, ahead, x, integrated):
    fake.set(**LATE, integrated=integrated)
    with flexcomp.load(ahead.library) as session:
        for factor in range(1, 8):
            close_to(session(factor * x), ahead.reference(factor * x))


@pytest.mark.parametrize("integrated", [0, 1])
def test_budgets_change(fake, tiny, x, integrated):
    fake.set(**LATE, integrated=integrated)
    with flexcomp.load(tiny.library) as session:
        for number in (0, 2, 1, 0, 1, 2, 0):
            rung = tiny.program.rungs[number]
            session.set_budget(rung.budget)
            assert fake.used <= pieces(rung.arena)
            close_to(session(x), tiny.reference(x))
            assert fake.used == session.resident_arena() <= pieces(rung.arena)


def test_budgets_shrink_while_an_inference_runs(fake, tiny, x):
    small, _, large = tiny.program.rungs
    fake.set(compute_delay_us=3000)
    with flexcomp.load(tiny.library, budget=large.budget) as session:
        for _ in range(5):
            session.set_budget(large.budget)
            results = []
            thread = threading.Thread(target=lambda: results.append(session(x)))  # noqa: B023
            thread.start()
            session.set_budget(small.budget)
            assert fake.used <= pieces(small.arena)
            thread.join()
            close_to(results[0], tiny.reference(x))


def test_resident_networks_are_one_graph(fake, tiny, x):
    with flexcomp.load(tiny.library, budget=tiny.program.rungs[-1].budget) as session:
        close_to(session(x), tiny.reference(x))
        close_to(session(2 * x), tiny.reference(2 * x))
        launched = fake.called("cuLaunchKernel")
        for factor in (3, 4):
            close_to(session(factor * x), tiny.reference(factor * x))
        assert fake.called("cuLaunchKernel") == launched and fake.called("cuGraphLaunch") == 3
        session.set_budget(tiny.program.rungs[0].budget)
        close_to(session(x), tiny.reference(x))
        session.set_budget(tiny.program.rungs[-1].budget)
        for _ in range(2):
            close_to(session(x), tiny.reference(x))


def test_warm_sessions_have_what_stays(fake, tiny, x):
    fake.set(**LATE)
    with flexcomp.load(tiny.library, budget=tiny.program.rungs[-1].budget, start="warm") as session:
        close_to(session(x), tiny.reference(x))
        assert session.stats()["bytes_read"] == 0


def test_storage_can_be_measured(fake, tiny, x):
    with flexcomp.load(tiny.library) as session:
        assert session.read_rate(1 << 16, 1 << 22) > 0
        close_to(session(x), tiny.reference(x))


def test_failing_storage(fake, tiny, x):
    fake.set(**LATE)
    for number in (1, 5, 13):
        with hooks.load(tiny.library, budget=tiny.program.rungs[0].budget, fail_read_at=number) as session:
            with pytest.raises(flexcomp.StorageError):
                for _ in range(2):
                    session(x)
            close_to(session(x), tiny.reference(x))


def test_too_little_memory(fake, tiny, x):
    small, middle, large = tiny.program.rungs
    fake.set(nbytes=pieces(middle.arena))
    with pytest.raises(BudgetError, match=r"a GPU of tests has no memory for an arena of \d+ bytes"):
        flexcomp.load(tiny.library, budget=large.budget)
    with flexcomp.load(tiny.library, budget=small.budget) as session:
        close_to(session(x), tiny.reference(x))
        with pytest.raises(BudgetError, match="has no memory"):
            session.set_budget(large.budget)
        close_to(session(x), tiny.reference(x))
        assert fake.used <= pieces(small.arena)
        session.set_budget(middle.budget)
        close_to(session(x), tiny.reference(x))


def test_a_lost_context_is_said_ever_after(fake, tiny, x):
    with flexcomp.load(tiny.library, budget="min") as session:
        close_to(session(x), tiny.reference(x))
        fake.lose()
        with pytest.raises(ExecutionError, match="ILLEGAL_ADDRESS"):
            session(x)
        for _ in range(2):
            with pytest.raises(ExecutionError, match=r"context .* is lost since CUDA_ERROR_ILLEGAL_ADDRESS .*new process"):
                session(x)
        fake.revive()
        with pytest.raises(ExecutionError, match="is lost"):
            session(x)
    with flexcomp.load(tiny.library, budget="min") as session:
        close_to(session(x), tiny.reference(x))


def test_kernels_for_another_gpu(fake, tiny, tmp_path, device_kernels):
    for architecture in (75, 90):
        fake.set(architecture=architecture)
        with pytest.raises(TargetError, match=f"has kernels for sm_80; the GPU here, a GPU of tests, is sm_{architecture}"):
            flexcomp.load(tiny.library)
    fake.set(architecture=87)
    flexcomp.load(tiny.library).close()


@pytest.mark.parametrize("settings", [{"architecture": 90}, {"architecture": 87, "refuses_cubins": 1}], ids=["later", "refused"])
def test_ptx_is_for_gpus_that_do_not_run_the_machine_code(fake, tmp_path, x, device_kernels, settings):
    """Those of later generations; and others of the same one, which the driver refuses it for."""
    built = tiny_cuda.export(tmp_path / "ptx.so", "ptx_", kernels=tiny_cuda.with_ptx(device_kernels))
    for gpu, loaded in (({"architecture": 80}, 0), (settings, len(device_kernels))):
        fake.set(**gpu)
        with flexcomp.load(built.library) as session:
            assert fake.called("PTX") == loaded
            close_to(session(x), built.reference(x))


def test_machine_code_that_the_driver_refuses_where_there_is_no_ptx(fake, tiny):
    fake.set(architecture=87, refuses_cubins=1)
    with pytest.raises(TargetError, match="cuModuleLoadData on a GPU of tests"):
        flexcomp.load(tiny.library)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"version": 11020}, "the CUDA driver here is for CUDA 11.2, and 11.4 or later is needed"),
        ({"fail_at": 1, "fail_with": 100}, "the CUDA driver finds none"),
        ({"fail_at": 1, "fail_with": 3}, "the CUDA driver does not start: CUDA_ERROR_OF_A_TEST"),
    ],
    ids=["old", "no GPU", "broken"],
)
def test_drivers_that_are_of_no_use(fake, tiny, x, settings, message):
    fake.set(**settings)
    with pytest.raises(TargetError, match=message):
        flexcomp.load(tiny.library)
    fake.set()
    with flexcomp.load(tiny.library) as session:
        close_to(session(x), tiny.reference(x))


def test_kernels_that_take_something_else(fake, tmp_path, device_kernels):
    wrong = dict(device_kernels, mv=device_kernels["mul"])
    built = tiny_cuda.export(tmp_path / "wrong.so", "wrong_", kernels=wrong)
    with pytest.raises(ArtifactError, match="kernel wrong_mv does not take what layer mv0 gives it"):
        flexcomp.load(built.library)


def test_damaged_machine_code(fake, tmp_path, device_kernels):
    kernel = device_kernels["mv"]
    damaged = replace(kernel, images=(replace(kernel.images[0], code=b"\177ELG" + kernel.images[0].code[4:]),))
    built = tiny_cuda.export(tmp_path / "damaged.so", "damaged_", kernels=dict(device_kernels, mv=damaged))
    with pytest.raises(TargetError, match="cuModuleLoadData on a GPU of tests"):
        flexcomp.load(built.library)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], "says that it has"),
        (lambda data: data[:12], "ends in the middle"),
        (lambda data: b"FXCX" + data[4:], "none for a GPU"),
        (lambda data: data[:4] + b"\2" + data[5:], "has the format 2"),
    ],
    ids=["cut", "cut short", "magic", "version"],
)
def test_bytes_that_are_no_kernel(fake, tmp_path, device_kernels, damage, message):
    kernels = dict(device_kernels, mul=damage(device_kernel.encode(device_kernels["mul"])))
    built = tiny_cuda.export(tmp_path / "bytes.so", "bytes_", kernels=kernels)
    with pytest.raises(ArtifactError, match=message):
        flexcomp.load(built.library)


def test_inputs_out_of_reach(fake, tiny, x):
    with flexcomp.load(tiny.library) as session, pytest.raises(flexcomp.InputError, match="must be"):
        session(np.zeros(3, "f4"))
