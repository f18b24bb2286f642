"""Linking where no C++ compiler is installed: zig takes its place, or the error names the ways out."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import flexcomp
from flexcomp import runtime_ext
from flexcomp.compiler import require_linker, zig
from flexcomp.device import resolve_target
from tests.cli.conftest import tiny_network

# Takes zig's arguments, and g++'s library, which is not in the object that g++ made.
ZIG = """#!/bin/sh
test "$1 $2" = "cc -target" || exit 1
echo "$3" >>{targets}
shift 3
PATH={path} exec {compiler} "$@" -lstdc++
"""


@pytest.fixture(scope="module")
def artifact() -> flexcomp.Artifact:
    return flexcomp.build(tiny_network())


@pytest.fixture(autouse=True)
def found_anew():
    zig.zig.cache_clear()
    yield
    zig.zig.cache_clear()


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    """A machine without compilers and without zig."""
    (tmp_path / "bin").mkdir()
    for name in ("CXX", "CC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setitem(sys.modules, "ziglang", None)
    monkeypatch.setattr(runtime_ext, "complete_object", lambda machine: runtime_ext.runtime_object())


@pytest.fixture
def fake_zig(monkeypatch, tmp_path) -> Path:
    """An installed zig, which is g++; returns the file where it notes its targets."""
    targets, package = tmp_path / "targets", tmp_path / "site" / "ziglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    text = ZIG.format(targets=targets, compiler=shutil.which("g++"), path=shlex.quote(os.environ["PATH"]))
    (package / "zig").write_text(text)
    (package / "zig").chmod(0o755)
    about = tmp_path / "site" / "ziglang-0.0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: ziglang\nVersion: 0.0.1\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("FLEXCOMP_CACHE", str(tmp_path / "cache"))
    return targets


def test_without_a_compiler_the_error_names_the_ways_out(artifact, no_compiler, tmp_path):
    ways = r"no C\+\+ compiler for x86_64; pip install ziglang, or, on Debian, apt-get install g\+\+, or name another"
    with pytest.raises(flexcomp.TargetError, match=ways):
        require_linker(resolve_target("native"))
    with pytest.raises(flexcomp.TargetError, match=ways):
        artifact.export_library(tmp_path / "tiny.so")
    ways = r"no C\+\+ compiler for aarch64; pip install ziglang, or, on Debian, apt-get install g\+\+-aarch64-linux-gnu, or"
    with pytest.raises(flexcomp.TargetError, match=ways):
        require_linker(resolve_target("raspberry-pi-5"))


def test_zig_links_where_there_is_no_compiler(artifact, fake_zig, no_compiler, tmp_path, monkeypatch, caplog):
    monkeypatch.delitem(sys.modules, "ziglang")
    assert require_linker(resolve_target("native")) == "zig links the library: there is no C++ compiler for x86_64"
    with caplog.at_level(logging.INFO, "flexcomp"):
        artifact.export_library(tmp_path / "tiny.so")
    assert "x86_64-zig-cc" in caplog.text
    assert set(fake_zig.read_text().split()) == {"x86_64-linux-gnu.2.28"}
    with flexcomp.load(tmp_path / "tiny.so") as session:
        (output,) = session.run({"x": np.zeros((1, 3, 32, 32), "f4")}).values()
    assert np.isfinite(np.asarray(output)).all()


def test_zig_is_not_named_where_the_runtime_needs_a_cxx_library(fake_zig, no_compiler, monkeypatch):
    monkeypatch.delitem(sys.modules, "ziglang")
    monkeypatch.setattr(runtime_ext, "complete_object", lambda machine: None)
    with pytest.raises(flexcomp.TargetError, match=r"apt-get install g\+\+, or name another one$"):
        require_linker(resolve_target("native"))


def test_a_compiler_goes_before_zig(fake_zig):
    assert zig.zig("x86_64") is not None and zig.zig("riscv64") is None
    assert require_linker(resolve_target("native")) is None
    assert not fake_zig.exists()
