"""Inputs and outputs that lie in the memory of the GPU: taken and given there, and never copied to the CPU."""

import gc
import os
import threading

import numpy as np
import pytest

import flexcomp
from flexcomp.errors import ExecutionError, InputError
from tests.cuda.driver.tensors import CUDA, CUDA_MANAGED, ROCM, DeviceTensor
from tests.runtime import tiny as cpu_tiny
from tests.runtime.tiny import close_to


@pytest.fixture
def tensor(fake):
    """Makes tensors, whose memory is given back."""
    made = []

    def make(array, **options):
        made.append(DeviceTensor(fake, array, **options))
        return made[-1]

    yield make
    for one in made:
        one.free()


def unwritten(x):
    return np.full_like(x, np.nan)


@pytest.mark.parametrize("integrated", [0, 1])
@pytest.mark.parametrize("rung", [0, -1])
def test_nothing_is_copied_to_the_cpu(fake, tiny, x, tensor, integrated, rung):
    fake.set(compute_delay_us=200, copy_delay_us=200, integrated=integrated)
    given, taken = tensor(x), tensor(unwritten(x))
    with flexcomp.load(tiny.library, tiny.program.rungs[rung].budget, start="warm") as session:
        for factor in (1, 2, 3):
            given.fill(factor * x)
            assert session.run(given, outputs={"out": taken}) == {"out": taken}
            close_to(taken.numpy(), tiny.reference(factor * x))
        assert fake.called("pageable copies") == 0
        session(x)
        assert fake.called("pageable copies") == 2


def test_either_side_may_be_on_the_cpu(fake, tiny, x, tensor):
    with flexcomp.load(tiny.library) as session:
        close_to(session(tensor(x)), tiny.reference(x))
        taken = tensor(unwritten(x))
        session.run({"x": 2 * x}, outputs={"out": taken})
        close_to(taken.numpy(), tiny.reference(2 * x))
        array = unwritten(x)
        assert session.run(tensor(x), outputs={"out": array})["out"] is array
        close_to(array, tiny.reference(x))


@pytest.mark.parametrize("integrated", [0, 1])
def test_what_the_caller_does_on_the_default_stream_is_waited_for(fake, tiny, x, tensor, integrated):
    fake.set(integrated=integrated)
    given, taken = tensor(unwritten(x)), tensor(unwritten(x))
    with flexcomp.load(tiny.library, "all", start="warm") as session:
        for factor in (1, 2):
            fake.write_late(given.address, factor * x, delay_us=50_000)
            session.run(given, outputs={"out": taken})
            close_to(taken.numpy(), tiny.reference(factor * x))


def test_tensors_may_begin_behind_their_address_and_be_managed(fake, tiny, x, tensor):
    with flexcomp.load(tiny.library) as session:
        for options in ({"offset_nbytes": 256}, {"kind": CUDA_MANAGED}):
            given, taken = tensor(x, **options), tensor(unwritten(x), **options)
            session.run(given, outputs={"out": taken})
            close_to(taken.numpy(), tiny.reference(x))


@pytest.mark.parametrize(
    ("array", "options", "message"),
    [
        (np.zeros(256, "f8"), {}, r'"x" must be float32\[256\], not float64\[256\]'),
        (np.zeros(255, "f4"), {}, r'"x" must be float32\[256\], not float32\[255\]'),
        (np.zeros(256, "f4"), {"device": 1}, '"x" must lie in CPU memory or that of the first GPU, not in that of GPU 1'),
        (np.zeros(256, "f4"), {"strides": [2]}, r'"x" must be contiguous; its strides are \[2\]'),
    ],
    ids=["type", "shape", "device", "strides"],
)
def test_tensors_that_do_not_fit(fake, tiny, x, tensor, array, options, message):
    with flexcomp.load(tiny.library) as session:
        with pytest.raises(InputError, match=message):
            session(tensor(array, **options))
        with pytest.raises(InputError, match=message.replace('"x"', '"out"')):
            session.run(x, outputs={"out": tensor(array, **options)})
        close_to(session(x), tiny.reference(x))


def test_tensors_of_other_devices(fake, tiny, x, tensor):
    elsewhere = tensor(x, kind=ROCM)
    with flexcomp.load(tiny.library) as session:
        with pytest.raises(InputError, match='input "x" cannot be taken from where it lies: Unsupported device'):
            session(elsewhere)
        with pytest.raises(InputError, match=r'output "out" goes to a writable array .* or to a tensor on the GPU'):
            session.run(x, outputs={"out": elsewhere})


def test_a_budget_that_shrinks_meanwhile_takes_inputs_again(fake, tiny, x, tensor):
    small, _, large = tiny.program.rungs
    given, taken = tensor(x), tensor(unwritten(x))
    fake.set(compute_delay_us=3000)
    with flexcomp.load(tiny.library, budget=large.budget) as session:
        for _ in range(3):
            session.set_budget(large.budget)
            thread = threading.Thread(target=lambda: session.run(given, outputs={"out": taken}))
            thread.start()
            session.set_budget(small.budget)
            thread.join()
            close_to(taken.numpy(), tiny.reference(x))
            taken.fill(unwritten(x))


def contents(fake, tensor):
    """Of a tensor that a session made on the GPU."""
    array = np.empty(tensor.shape, str(tensor.dtype))
    fake.exchange(tensor.data_ptr(), array, read=True)
    return array


@pytest.mark.parametrize("integrated", [0, 1])
@pytest.mark.parametrize("asked", ["cuda", {"out": "cuda"}])
def test_outputs_that_are_asked_for_on_the_gpu(fake, tiny, x, tensor, asked, integrated):
    fake.set(compute_delay_us=200, copy_delay_us=200, integrated=integrated)
    with flexcomp.load(tiny.library) as session:
        first, second = (session.run(tensor(factor * x), outputs=asked)["out"] for factor in (1, 2))
        assert first.__dlpack_device__() == (CUDA, 0)
        close_to(contents(fake, first), tiny.reference(x))
        close_to(contents(fake, second), tiny.reference(2 * x))
        third = session(first)
        close_to(third, tiny.reference(tiny.reference(x)))
        assert fake.called("pageable copies") == 1


def test_outputs_on_the_gpu_outlive_their_session(fake, tiny, x):
    before, used = fake.live, fake.used
    with flexcomp.load(tiny.library) as session:
        found = session.run(x, outputs="cuda")["out"]
    gc.collect()
    assert fake.live != before
    assert fake.used == used + found.shape[0] * 4
    close_to(contents(fake, found), tiny.reference(x))
    del session, found
    gc.collect()
    assert fake.live == before
    assert fake.used == used


def test_a_forked_process_frees_nothing_of_the_device(fake, tiny, x):
    with flexcomp.load(tiny.library) as session:
        found = session.run(x, outputs="cuda")["out"]
        session.close()
    child = os.fork()
    if child == 0:
        calls = fake.calls
        del found, session
        gc.collect()
        os._exit(fake.calls != calls)
    assert os.waitpid(child, 0)[1] == 0
    close_to(contents(fake, found), tiny.reference(x))


def test_outputs_that_cannot_be_asked_for(fake, tiny, x):
    with flexcomp.load(tiny.library) as session:
        for asked in ("gpu", {"out": "gpu"}):
            with pytest.raises(InputError, match="output \"out\" is asked for on 'gpu'; there is \"cuda\""):
                session.run(x, outputs=asked)
        fake.set(nbytes=fake.used)
        with pytest.raises(ExecutionError, match="cuMemAlloc on a GPU of tests: CUDA_ERROR_OUT_OF_MEMORY"):
            session.run(x, outputs="cuda")
        close_to(session(x), tiny.reference(x))


def test_networks_for_cpus_have_no_outputs_on_a_gpu(x, tmp_path):
    library = cpu_tiny.export(tmp_path / "cpu.so", "on_cpus_").library
    with flexcomp.load(library) as session, pytest.raises(InputError, match="the network was built for CPUs"):
        session.run(x, outputs="cuda")
