"""Programs in C, C++ and Rust against an installed prefix: by pkg-config and by CMake, without Python at run time."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import flexcomp
from tests.api.prefix import cmake, environment, install
from tests.cli.conftest import tiny_network
from tests.conftest import ROOT

EXAMPLES = ROOT / "examples" / "c"
EXAMPLE = EXAMPLES / "classify.c"
CPP, PYTHON, RUST = (ROOT / "examples" / name for name in ("cpp", "python", "rust"))
STRICT_CPP = "-std=c++17 -Wall -Wextra -pedantic -Werror"
STRICT = "-std=c11 -Wall -Wextra -pedantic -Werror"
needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None or not Path("/usr/include/openssl/evp.h").exists(),
    reason="needs OpenSSL: apt-get install openssl libssl-dev",
)


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    return install(tmp_path_factory.mktemp("prefix"))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder with a network, a picture, and the class that Python finds."""
    folder = tmp_path_factory.mktemp("pictures")
    flexcomp.build(tiny_network(), threads=1).export_library(folder / "tiny.so")
    picture = np.random.default_rng(2).standard_normal((1, 3, 32, 32)).astype("f4")
    picture.tofile(folder / "picture")
    with flexcomp.load(folder / "tiny.so", budget="min") as session:
        return folder, int(np.argmax(session(picture)))


def test_a_prefix_has_what_programs_need_and_no_more(prefix):
    files = {str(path.relative_to(prefix)) for path in prefix.rglob("*") if not path.is_dir()}
    cmake = {f"lib/cmake/flexcomp/flexcompConfig{end}.cmake" for end in ("", "-release", "Version")}
    libraries = {f"lib/lib{name}" for name in ("flexcomp.so", "flexcomp.so.1", "flexcomp.a", "tvm_ffi.so")}
    packages = {f"lib/pkgconfig/{name}.pc" for name in ("flexcomp", "flexcomp-static")}
    licences = {f"share/licenses/{name}" for name in ("flexcomp/LICENSE", "tvm_ffi/LICENSE", "tvm_ffi/NOTICE")}
    assert files == {"include/flexcomp.h", "bin/flexcomp-run", *packages, *libraries, *licences, *cmake}


def test_the_example_by_pkg_config(prefix, pictures, tmp_path):
    folder, best = pictures
    program, env = tmp_path / "classify", environment(prefix)
    line = f"cc {STRICT} {EXAMPLE} $(pkg-config --cflags --libs flexcomp) -o {program}"
    subprocess.run(line, shell=True, check=True, env=env)

    def run(*files):
        return subprocess.run([program, *files], env=env, capture_output=True, text=True, check=False)

    done = run(folder / "tiny.so", folder / "picture")
    assert (done.returncode, done.stderr) == (0, "") and re.match(rf"class {best}, score", done.stdout)
    done = run(folder / "missing.so", folder / "picture")
    assert done.returncode == 1 and re.fullmatch(r"error: cannot open .*missing.so: No such file or directory\n", done.stderr)
    (tmp_path / "short").write_bytes(b"1234")
    assert run(folder / "tiny.so", tmp_path / "short").stderr == "error: a callback ended the inference\n"


@needs_openssl
def test_encrypted_weights(prefix, pictures, tmp_path):
    folder, best = pictures
    program, env = tmp_path / "encrypted", environment(prefix)
    line = f"cc {STRICT} {EXAMPLES / 'encrypted.c'} $(pkg-config --cflags --libs flexcomp libcrypto) -o {program}"
    subprocess.run(line, shell=True, check=True, env=env)
    key, counter = bytes(range(32)), b"\xff" * 16  # which overflows
    sealed = tmp_path / "sealed"
    subprocess.run(
        ["openssl", "enc", "-aes-256-ctr", "-K", key.hex(), "-iv", counter.hex(), "-in", folder / "tiny.weights", "-out", sealed],
        check=True,
    )
    (tmp_path / "key").write_bytes(key + counter)
    (tmp_path / "other").write_bytes(key + bytes(16))

    def run(key):
        return subprocess.run(
            [program, folder / "tiny.so", sealed, tmp_path / key, folder / "picture"],
            env=env, capture_output=True, text=True, check=False,
        )  # fmt: skip

    done = run("key")
    assert (done.returncode, done.stderr) == (0, "") and re.match(rf"class {best}, score", done.stdout)
    done = run("other")
    assert done.returncode == 1 and "the weights source (reader) is damaged or belongs to another model" in done.stderr


def test_the_example_by_cmake(prefix, pictures, tmp_path):
    """Without LD_LIBRARY_PATH: CMake notes where the library lies."""
    folder, best = pictures
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(example LANGUAGES C)\nfind_package(flexcomp 0.1 REQUIRED)\n"
        f"add_executable(classify {EXAMPLE})\ntarget_link_libraries(classify PRIVATE flexcomp::flexcomp)\n"
    )
    cmake("-S", tmp_path, "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={prefix}")
    cmake("--build", tmp_path)
    program = [tmp_path / "classify", folder / "tiny.so", folder / "picture"]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"class {best}, score")


def test_the_runner_of_a_prefix_finds_its_library(prefix, pictures):
    folder, _ = pictures
    subprocess.run([prefix / "bin" / "flexcomp-run", folder / "tiny.so"], check=True, capture_output=True, env={})


def lines_of(*command, env):
    """That a program prints, which must succeed."""
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def programs(prefix, name, folder):
    """The example `name` in C++, compiled, and in Python: commands."""
    line = f"c++ {STRICT_CPP} {CPP / name}.cc $(pkg-config --cflags --libs flexcomp) -o {folder / name}"
    subprocess.run(line, shell=True, check=True, env=environment(prefix))
    return [folder / name], [sys.executable, PYTHON / f"{name}.py"]


def test_a_camera_gives_memory_back_between_frames(prefix, pictures, tmp_path):
    folder, best = pictures
    for program in programs(prefix, "camera", tmp_path):
        frames = lines_of(*program, folder / "tiny.so", folder / "picture", "3", env=environment(prefix))
        assert len(frames) == 3
        for frame in frames:
            found = re.fullmatch(r"class (\d+); (\d+) bytes in memory, (\d+) until the next frame", frame)
            number, busy, idle = map(int, found.groups())
            assert number == best and idle < busy


def test_two_networks_in_a_pool(prefix, pictures, tmp_path):
    folder, best = pictures
    for program in programs(prefix, "pool", tmp_path):
        arguments = ("2000000", folder / "tiny.so", folder / "tiny.so", folder / "picture")
        first, second, memory = lines_of(*program, *arguments, env=environment(prefix))
        assert first == second == f"class {best}"
        claimed, budget = map(int, re.fullmatch(r"(\d+) of (\d+) bytes", memory).groups())
        assert 0 < claimed <= budget == 2_000_000


@pytest.mark.skipif(
    shutil.which("rustc") is None or shutil.which("bindgen") is None, reason="needs Rust: apt-get install rustc bindgen"
)
def test_the_example_in_rust(prefix, pictures, tmp_path):
    folder, best = pictures
    source = shutil.copy(RUST / "classify.rs", tmp_path)
    header = ["bindgen", "--allowlist-file", ".*/flexcomp.h", prefix / "include" / "flexcomp.h", "-o", tmp_path / "flexcomp.rs"]
    subprocess.run(header, check=True)
    program = tmp_path / "classify"
    subprocess.run(["rustc", "--edition", "2021", "-D", "warnings", "-L", prefix / "lib", source, "-o", program], check=True)
    (line,) = lines_of(program, folder / "tiny.so", folder / "picture", env=environment(prefix))
    assert line.startswith(f"class {best}, score ")
    command = [program, "missing.so", "picture"]
    done = subprocess.run(command, env=environment(prefix), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "error: picture: No such file or directory (os error 2)\n")


@pytest.mark.parametrize(("life", "step"), [("session", "1"), ("pool", "11")])
def test_every_system_call_and_allocation_fails_once(prefix, pictures, tmp_path, life, step):
    """A status with a message, no crash; and what is open goes on. Of a pool's calls, which are many, a sample."""
    folder, _ = pictures
    interposer = tmp_path / "libinterposer.so"
    subprocess.run(
        ["g++", "-std=c++20", "-O1", "-fPIC", "-shared", "-o", interposer, ROOT / "tests/faults/interposer.cc"], check=True
    )
    line = f"cc -std=gnu11 -Wall -Wextra -Werror {Path(__file__).with_name('faults.c')} $(pkg-config --cflags --libs flexcomp)"
    env = environment(prefix)
    subprocess.run(f"{line} {interposer} -o {tmp_path / 'faults'}", shell=True, check=True, env=env)
    done = subprocess.run(
        [tmp_path / "faults", folder / "tiny.so", life, step], env=env | {"LD_PRELOAD": str(interposer)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    counts = {name: int(count) for name, count in map(str.split, done.stdout.splitlines())}
    least = {"OUT_OF_MEMORY": 100, "ARTIFACT": 10, "STORAGE": 1} if life == "session" else {"OUT_OF_MEMORY": 20, "OK": 10}
    assert all(counts.get(name, 0) >= number for name, number in least.items()), counts
