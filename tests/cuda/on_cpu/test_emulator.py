"""Faults that the emulator finds: races, barriers that some threads miss, untouched memory and memory of others."""

import numpy as np
import pytest

from flexcomp.compiler.cuda_code import CudaCode
from flexcomp.program import Extent, Launch
from tests.cuda.on_cpu.emulator import EmulationError, Emulator

THREADS = 64
_HEAD = 'extern "C" __global__ void __launch_bounds__(64) {name}(float* __restrict__ x, float* __restrict__ y) {{\n'
SHARED = "__shared__ alignas(64) float s[64]; "
FETCH = "fetch_4<0>(s + threadIdx.x, x, threadIdx.x, 0); "
REVERSED, OWN = "y[threadIdx.x] = s[63 - threadIdx.x];", "y[threadIdx.x] = s[threadIdx.x];"
BODIES = {
    "reversed": SHARED + "s[threadIdx.x] = x[threadIdx.x]; __syncthreads(); y[threadIdx.x] = s[63 - threadIdx.x];",
    "race": SHARED + "s[threadIdx.x] = x[threadIdx.x]; y[threadIdx.x] = s[63 - threadIdx.x];",
    "unwritten": SHARED + "y[threadIdx.x] = s[threadIdx.x];",
    "divergent": "if (threadIdx.x < 63) __syncthreads(); y[threadIdx.x] = x[threadIdx.x];",
    "two_barriers": "if (threadIdx.x < 32) __syncthreads(); else __syncthreads(); y[threadIdx.x] = x[threadIdx.x];",
    "half_a_warp": "if (threadIdx.x % 2) y[threadIdx.x] = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 2, 32);",
    "beyond_shared": SHARED + "s[threadIdx.x] = x[threadIdx.x]; y[threadIdx.x] = s[threadIdx.x + 1024];",
    "before_x": "y[threadIdx.x] = x[(int)threadIdx.x - 1];",
    "behind_y": "if (threadIdx.x < 61) y[threadIdx.x] = x[threadIdx.x];",
    "fetched": SHARED + FETCH + "fetch_commit(); fetch_wait<0>(); __syncthreads(); " + REVERSED,
    "fetched_own": SHARED + FETCH + "fetch_commit(); fetch_wait<0>(); y[threadIdx.x] = s[threadIdx.x];",
    "fetched_race": SHARED + FETCH + "fetch_commit(); fetch_wait<0>(); " + REVERSED,
    "never_waited": SHARED + FETCH + "fetch_commit(); __syncthreads(); " + REVERSED,
    "waited_too_early": SHARED + "fetch_wait<0>(); " + FETCH + "fetch_commit(); __syncthreads(); " + REVERSED,
    "in_no_group": SHARED + FETCH + "fetch_wait<0>(); __syncthreads(); " + REVERSED,
    "outside": SHARED + "fetch_4<-9999>(s + threadIdx.x, x, threadIdx.x, 1); fetch_commit(); fetch_wait<0>(); " + OWN,
    "fetched_behind_x": SHARED + "fetch_4<64>(s + threadIdx.x, x, threadIdx.x, 0); fetch_commit(); fetch_wait<0>(); " + OWN,
    "odd_source": SHARED + "fetch_16<0>(s, x + 1, 0, 0);",
    "odd_target": SHARED + "fetch_8<0>(s + 1, x, 0, 0);",
    "not_shared": "fetch_4<0>(y, x, 0, 0);",
    # The left operand is x[0], …, x[127], of which thread 4g + t has rows g and g + 8 and columns t and t + 4; the right one
    # follows.
    "multiplied": (
        "int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4; float *a = x + 8 * g + t, *b = x + 128 + 8 * t + g; "
        "float sums[16] = {}; tf32_multiply(sums, a[0], a[64], a[4], a[68], b[0], b[32]); float* to = y + 8 * g + 2 * t; "
        "if (threadIdx.x < 32) to[0] = sums[0], to[1] = sums[1], to[64] = sums[8], to[65] = sums[9];"
    ),
    "rounded": "y[threadIdx.x] = tf32_rounded(x[threadIdx.x]);",
    "half_a_product": "float sums[16] = {}; if (threadIdx.x % 2) tf32_multiply(sums, 1, 1, 1, 1, 1, 1);",
    "shuffled": "y[threadIdx.x] = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 1, 32);",
}  # fmt: skip
X = np.arange(THREADS, dtype="f4")


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    launch = lambda name: Launch(name, (0, 1), (Extent(1),) * 3, (THREADS, 1, 1))  # noqa: E731
    codes = {
        name: CudaCode(_HEAD.format(name=name) + body + "\n}\n", (launch(name),), frozenset()) for name, body in BODIES.items()
    }
    return Emulator(codes, tmp_path_factory.mktemp("emulator"))


def results(emulator: Emulator, name: str, given: np.ndarray = X, **options) -> list[np.ndarray]:
    return [emulator.run(name, [given, np.zeros(THREADS, "f4")], seed=seed, **options)[1] for seed in range(8)]


def test_what_is_right_is_right_in_every_order(emulator):
    assert all(np.array_equal(y, X[::-1]) for y in results(emulator, "reversed"))
    assert all(np.array_equal(y, X.reshape(-1, 2)[:, ::-1].ravel()) for y in results(emulator, "shuffled"))
    assert emulator.barriers("reversed") == 1


def test_races_show_and_depend_on_the_order(emulator):
    for found in (results(emulator, "race"), results(emulator, "reversed", skipped=0)):
        assert not any(np.array_equal(y, X[::-1]) for y in found)
        assert len({y.tobytes() for y in found}) > 1


def test_copies_are_there_when_their_group_was_waited_for(emulator):
    """By the thread that began them; others see the copies after a later barrier."""
    assert all(np.array_equal(y, X[::-1]) for y in results(emulator, "fetched"))
    assert all(np.array_equal(y, X) for y in results(emulator, "fetched_own"))
    assert not np.any(results(emulator, "outside"))
    assert emulator.barriers("fetched") == 3


@pytest.mark.parametrize("name", ["fetched_race", "never_waited", "waited_too_early", "in_no_group"])
def test_copies_that_are_not_waited_for_may_come_late(emulator, name):
    assert not all(np.array_equal(y, X[::-1]) for y in results(emulator, name))


@pytest.mark.parametrize("skipped", range(3))
def test_what_ends_a_group_and_what_waits_can_be_left_out(emulator, skipped):
    assert not all(np.array_equal(y, X[::-1]) for y in results(emulator, "fetched", skipped=skipped))


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("fetched_behind_x", "reads or writes outside of its buffers"),
        ("odd_source", "is not aligned"),
        ("odd_target", "is not aligned"),
        ("not_shared", "fetches to memory that is not shared"),
    ],
)
def test_copies_that_a_gpu_would_refuse_are_errors(emulator, name, error):
    with pytest.raises(EmulationError, match=error):
        results(emulator, name)


def test_a_warp_multiplies_numbers_of_ten_bits(emulator):
    """Further bits do not count; sums are float32."""
    x = np.random.default_rng(0).standard_normal(192).astype("f4")
    short = (x.view("u4") & np.uint32(0xFFFFE000)).view("f4").astype("f8")
    for seed in range(4):
        y = emulator.run("multiplied", [x, np.zeros(128, "f4")], seed=seed)[1]
        np.testing.assert_allclose(y.reshape(16, 8), short[:128].reshape(16, 8) @ short[128:].reshape(8, 8), rtol=1e-5, atol=1e-6)


def test_numbers_are_rounded_to_the_nearest_of_ten_bits(emulator):
    """Of two to the one that is farther from zero."""
    half, more = np.float32(2**-11), np.float32(2**-23)
    given = np.zeros(THREADS, "f4")
    given[:8] = 1 + half, -1 - half, 1 + half - more, 1 + 3 * half, np.inf, -np.inf, np.nan, 3e38
    (found, *_) = results(emulator, "rounded", given=given)
    np.testing.assert_array_equal(found[:7], np.float32([1 + 2 * half, -1 - 2 * half, 1, 1 + 4 * half, np.inf, -np.inf, np.nan]))
    assert abs(found[7] / given[7] - 1) < half and not (found[found == found].view("u4") & 0x1FFF).any()


def test_nobody_finds_what_a_block_left(emulator):
    assert all(np.isnan(y).all() for y in results(emulator, "unwritten"))


@pytest.mark.parametrize("name", ["divergent", "two_barriers", "half_a_warp", "half_a_product"])
def test_threads_that_wait_for_ever_are_an_error(emulator, name):
    with pytest.raises(EmulationError, match=f"{name}: threads wait for others that have ended or wait elsewhere"):
        results(emulator, name)


@pytest.mark.parametrize("name", ["beyond_shared", "before_x"])
def test_memory_of_others_is_an_error(emulator, name):
    """Arrays end at a page that nobody may touch, and begin after one if they fill their pages."""
    x = np.zeros(1024, "f4") if name == "before_x" else X
    with pytest.raises(EmulationError, match=f"{name}: a thread reads or writes outside of its buffers"):
        emulator.run(name, [x, np.zeros(THREADS, "f4")])


def test_writing_behind_the_end_is_an_error(emulator):
    """Also where the next page is farther away."""
    assert np.array_equal(emulator.run("behind_y", [X, np.zeros(61, "f4")])[1], X[:61])
    with pytest.raises(EmulationError, match="writes behind the end of a buffer"):
        emulator.run("behind_y", [X, np.zeros(60, "f4")])
    with pytest.raises(EmulationError, match="outside of its buffers"):
        emulator.run("behind_y", [X, np.zeros(48, "f4")])
