"""Inputs and outputs that lie in the memory of the GPU: taken and given there, and never copied to the CPU."""

import threading

import numpy as np
import pytest

import flexcomp
from flexcomp.errors import InputError
from tests.cuda.driver.tensors import CUDA_MANAGED, DeviceTensor
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
        (np.zeros(256, "f4"), {"device": 1}, '"x" must lie in CPU memory or that of the first GPU'),
    ],
    ids=["type", "shape", "device"],
)
def test_tensors_that_do_not_fit(fake, tiny, x, tensor, array, options, message):
    with flexcomp.load(tiny.library) as session:
        with pytest.raises(InputError, match=message):
            session(tensor(array, **options))
        with pytest.raises(InputError, match="must"):
            session.run(x, outputs={"out": tensor(array, **options)})
        close_to(session(x), tiny.reference(x))


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
