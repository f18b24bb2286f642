"""Networks that are linked with a program, and the library that is."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import flexcomp
from flexcomp.compiler.linked_object import network_symbol
from tests.api import network
from tests.api.prefix import cmake, environment, install
from tests.cli.conftest import tiny_network

PROGRAM = Path(__file__).with_name("linked.c")
PICTURE = np.random.default_rng(2).standard_normal((1, 3, 32, 32)).astype("f4")


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    return install(tmp_path_factory.mktemp("prefix"))


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """A folder with two networks as objects, a picture, and what the library of one makes of it."""
    folder = tmp_path_factory.mktemp("objects")
    tiny = flexcomp.build(tiny_network(), threads=2)
    for name in ("tiny.o", "again/tiny.o", "tiny.so"):
        tiny.export_library(folder / name)
    flexcomp.build(network.model(), state=network.STATE, threads=1).export_library(folder / "small-1.o")
    PICTURE.tofile(folder / "picture")
    with flexcomp.load(folder / "tiny.so", budget="min") as session:
        return folder, np.asarray(session(PICTURE)).tobytes()


def run(program, folder, env=None):
    files = [folder / name for name in ("tiny.weights", "picture", "small-1.weights")]
    done = subprocess.run([program, *files], env=env, capture_output=True, check=False)
    assert done.returncode == 0, done
    return done.stdout


def needed(program):
    lines = subprocess.run(["readelf", "-d", program], capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split("[")[1].split(".so")[0] for line in lines if "(NEEDED)" in line}


@pytest.mark.parametrize("package", ["flexcomp-static", "flexcomp"])
def test_a_program_has_the_code_of_its_networks(package, prefix, objects, tmp_path):
    folder, wanted = objects
    env = environment(prefix)
    files = f"{PROGRAM} {folder / 'tiny.o'} {folder / 'small-1.o'}"
    line = f"cc -std=c11 -Wall -Wextra -pedantic -Werror {files} $(pkg-config --cflags --libs {package}) -lm -o linked"
    subprocess.run(line, shell=True, check=True, env=env, cwd=tmp_path)
    assert run(tmp_path / "linked", folder, env) == wanted
    assert ("libflexcomp" in needed(tmp_path / "linked")) == (package == "flexcomp")


def test_the_same_by_cmake(prefix, objects, tmp_path):
    folder, wanted = objects
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(example LANGUAGES C)\nfind_package(flexcomp REQUIRED)\n"
        f"add_executable(linked {PROGRAM} {folder / 'tiny.o'} {folder / 'small-1.o'})\n"
        "target_link_libraries(linked PRIVATE flexcomp::static)\n"
    )
    cmake("-S", tmp_path, "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={prefix}")
    cmake("--build", tmp_path)
    assert run(tmp_path / "linked", folder) == wanted
    assert "libflexcomp" not in needed(tmp_path / "linked")


def test_an_object_defines_one_name_and_is_the_same_every_time(objects):
    folder, _ = objects
    command = ["nm", "-g", "--defined-only", folder / "small-1.o"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(r"[0-9a-f]+ [RD] flexcomp_network_small_1\n", names)
    assert (folder / "tiny.o").read_bytes() == (folder / "again" / "tiny.o").read_bytes()
    assert sorted(path.name for path in folder.iterdir() if path.suffix not in (".o", ".so", ".weights")) == ["again", "picture"]


def test_names_that_cannot_be():
    assert network_symbol(Path("/a.b/resnet-50 v1.5.o")) == "flexcomp_network_resnet_50_v1_5"
    with pytest.raises(flexcomp.InputError, match=r"netz-ä\.o becomes a name in C"):
        network_symbol(Path("netz-ä.o"))
