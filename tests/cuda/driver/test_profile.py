"""`flexcomp profile` for a GPU: costs besides kernels, kernels' times, and plans for these."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import flexcomp
from flexcomp.device import kernel_key, load_profile
from flexcomp.errors import InputError
from flexcomp.plan import SLICE_S
from flexcomp.profiling import Observations, fit, observe
from flexcomp.profiling.observing import LoadTime, StepTime
from flexcomp.program import decode_program, from_program
from flexcomp.runtime import DeviceRates, read_program, runner
from tests.cuda.driver import fake as fakes
from tests.cuda.driver.pictures import pictures
from tests.cuda.driver.toolkit import build
from tests.cuda.nvcc import ARCHITECTURES
from tests.profiling.networks import Network, program_of

RATES = DeviceRates(copy_bytes_per_s=10e9, launch_s=4e-6, wait_s=14e-6, event_s=7e-6)


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """The environment of processes that find the driver of tests, and the network built for its GPU."""
    library = fakes.build(tmp_path_factory.mktemp("driver"))
    paths = [str(library.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(paths)}


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    return build(pictures(), "cuda -arch=sm_80", tmp_path_factory.mktemp("pictures") / "pictures.so")


def test_a_gpu_is_measured_and_built_for(network, processes, tmp_path):
    path = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "flexcomp", "profile", str(network), "-o", str(path), "--repeat", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=processes)
    assert done.returncode == 0, done.stderr
    assert "GPU: copies at" in done.stdout
    profile = load_profile(path)
    assert profile.copy_bytes_per_s > 0 and profile.step_overhead_s > 0 and profile.threads == 1
    program = decode_program(read_program(network))
    assert set(profile.kernels) == {kernel_key(program.layers[step.layer]) for rung in program.rungs for step in rung.steps}

    again = decode_program(read_program(build(pictures(), "cuda -arch=sm_80", tmp_path / "again.so", profile=path)))
    assumed = from_program(again)
    assert replace(assumed.storage, core_contention=0.0) == profile.storage
    known = [profile.kernels[kernel_key(layer)].seconds for layer in again.layers]
    assert [layer.seconds for layer in assumed.layers] == known


@pytest.mark.parametrize("integrated", [0, 1])
def test_rates_follow_the_device(fake, tiny, x, integrated):
    found = []
    for slow in (0, 1):
        fake.set(integrated=integrated, compute_delay_us=300 * slow, copy_delay_us=300 * slow, least_delay_us=200 * slow)
        with flexcomp.load(tiny.library) as session:
            session(x)
            before = fake.live
            found.append(DeviceRates(**json.loads(session._opened.get_function("device_rates")())))
            assert fake.live == before
            assert session(x).shape == x.shape
    quick, late = found
    assert late.launch_s > max(200e-6, quick.launch_s)
    assert late.wait_s > 200e-6
    if integrated:
        assert quick.copy_bytes_per_s == late.copy_bytes_per_s == 0
    else:
        assert 0 < late.copy_bytes_per_s < 2**20 / 200e-6


def test_steps_that_are_traced_begin_when_their_weights_are_there(fake, tiny, x):
    """Copies that are late are no part of the time of the step that needs them."""
    fake.set(copy_delay_us=20_000, least_delay_us=20_000)
    with flexcomp.load(tiny.library, "min", trace=True) as session:
        session(x)
        traces = []
        for _ in range(5):  # others may want the core in some of them
            session(x)
            traces.append(session.trace())
    assert min(trace.latency_s for trace in traces) > 0.04
    assert min(max(end - begin for begin, end in trace.steps) for trace in traces) < 15e6


def fitted(device, storage=1e9):
    """Of one whole layer that takes 30 us where each step is waited for."""
    program = program_of(1)
    layer = program.layers[0]
    seen = Observations(threads=1, plans=1, device=device)
    seen.layers["a"] = layer
    seen.steps["a"] = [StepTime(1.0, 30e-6, 0.0, 1, 0.0)]
    seen.loads = [LoadTime(nbytes, 1, nbytes / storage) for nbytes in (1 << 20, 1 << 21)]
    seen.arrivals = [90e-6]
    return fit(seen)


def test_kernels_take_a_launch_and_what_they_do_themselves():
    profile = fitted(RATES)
    assert profile.kernels["a"].seconds == pytest.approx(4e-6 + 16e-6)
    assert profile.kernels["a"].slice_s == profile.step_overhead_s == 4e-6
    assert (profile.copy_bytes_per_s, profile.wake_s) == (10e9, 7e-6)
    assert profile.storage.bandwidth == pytest.approx(1e9)
    assert fitted(RATES, 50e9).storage.bandwidth == pytest.approx(10e9)


def test_nothing_is_less_than_a_launch():
    assert fitted(replace(RATES, wait_s=40e-6)).kernels["a"].seconds == pytest.approx(4.4e-6)


def test_integrated_gpus_copy_nothing_and_are_waited_for():
    profile = fitted(replace(RATES, copy_bytes_per_s=0.0))
    assert (profile.copy_bytes_per_s, profile.wake_s) == (0.0, 90e-6)


def test_cpus_are_fitted_as_before():
    profile = fitted(None)
    assert profile.kernels["a"].seconds == pytest.approx(30e-6)
    assert profile.kernels["a"].slice_s == SLICE_S
    assert (profile.copy_bytes_per_s, profile.wake_s) == (0.0, 90e-6)


def test_what_no_profile_is_of():
    on_gpu = Network(replace(program_of(1), space="cuda"))
    with pytest.raises(InputError, match="some of the libraries are for a GPU and some for CPUs"):
        observe([on_gpu, Network(program_of(1))])
    with pytest.raises(InputError, match="threads=4: a GPU computes"):
        observe([on_gpu], threads=4)


def test_cpus_have_no_rates_of_a_gpu(tmp_path):
    from tests.runtime import tiny

    with pytest.raises(InputError, match="rates of a GPU are asked for, and the network was built for CPUs"):
        runner.rates(tiny.export(tmp_path / "cpu.so", "rates_of_cpus_").library)


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="there is no ptxas")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_kernel_that_does_nothing_compiles(architecture, tmp_path):
    source = (Path(flexcomp.__file__).parents[1] / "runtime_ext/src/cuda/measure_rates.cc").read_text()
    (text,) = re.findall(r'kNothing\[\] = "(.*)";', source)
    (tmp_path / "nothing.ptx").write_text(text.replace("\\n", "\n"))
    command = ["ptxas", f"-arch={architecture}", str(tmp_path / "nothing.ptx"), "-o", str(tmp_path / "nothing.cubin")]
    subprocess.run(command, check=True)
