"""`flexcomp profile`, and building for what it measured."""

from __future__ import annotations

from dataclasses import replace

from flexcomp.device.profile import kernel_key, load_profile
from flexcomp.program.prediction import from_program
from flexcomp.program.program_bytes import decode_program
from flexcomp.runtime.library import read_program


def test_a_machine_is_measured_and_built_for(cli, library, model, tmp_path):
    path = tmp_path / "device.json"
    done = cli("profile", library, "-o", path, "--repeat", 3)
    assert done.returncode == 0, done.stderr
    assert "storage:" in done.stdout and "SwapNet's delays" in done.stdout
    profile = load_profile(path)
    program = decode_program(read_program(library))
    keys = {kernel_key(program.layers[step.layer]) for rung in program.rungs for step in rung.steps}
    assert set(profile.kernels) <= keys and profile.kernels
    assert profile.delays is not None and profile.storage_bytes_per_s > 0

    built = tmp_path / "again.so"
    threads = profile.threads
    done = cli("build", model, "-o", built, "--profile", path, "--threads", threads)
    assert done.returncode == 0, done.stderr
    again = decode_program(read_program(built))
    assumed = from_program(again)
    assert replace(assumed.storage, core_contention=0.0) == profile.storage
    measured = [
        (time.seconds, profile.kernels[kernel_key(layer)].seconds)
        for layer, time in zip(again.layers, assumed.layers, strict=True)
        if kernel_key(layer) in profile.kernels
    ]
    assert measured and all(used == known for used, known in measured)


def test_wrong_profiles(cli, model, library, tmp_path):
    (tmp_path / "device.json").write_text("{}")
    done = cli("build", model, "-o", tmp_path / "x.so", "--profile", tmp_path / "device.json")
    assert done.returncode == 2 and "measure the device again" in done.stderr
    done = cli("profile", tmp_path / "none.so", "-o", tmp_path / "device.json")
    assert done.returncode == 4 and done.stderr.startswith("error: ")
