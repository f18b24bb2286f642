"""The runner where pip installs it, and in a package for a device: it needs nobody to tell it where its library lies."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import flexcomp
from flexcomp.packaging import package
from tests.cli.conftest import tiny_network


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("network") / "tiny.so"
    flexcomp.build(tiny_network()).export_library(path)
    return path


def loaded(*command, **options) -> str:
    """Which libtvm_ffi a runner takes, in an environment that says nothing."""
    done = subprocess.run(command, env={"LD_DEBUG": "libs"}, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["arena_bytes"] > 0
    (found,) = re.findall(r"calling init: (\S*libtvm_ffi\S*)", done.stderr)
    return found


def test_the_program_of_the_environment_is_the_runner_itself(library):
    program = Path(sys.executable).with_name("flexcomp-run")
    assert program.read_bytes()[:4] == b"\x7fELF"
    assert "/site-packages/tvm_ffi/" in str(Path(loaded(program, library)).resolve())


def test_a_packaged_runner_finds_its_library_beside_itself(library, tmp_path):
    folder = tmp_path / "tiny"
    package(library, folder)
    assert (folder / loaded("./flexcomp-run", "./tiny.so", cwd=folder)).resolve().parent == folder


def test_a_language_model_takes_its_tokenizer_along(decoder_library, tmp_path):
    built, folder = shutil.copytree(decoder_library.parent, tmp_path / "built"), tmp_path / "chat"
    for name, text in (("modules.json", "[]"), ("other.json", "{}")):
        (built / name).write_text(text)
    names = package(built / decoder_library.name, folder)
    assert {"tokenizer.json", "tokenizer_config.json", "generation_config.json", "modules.json"} < {*names}
    assert "other.json" not in names and sorted(path.name for path in folder.iterdir()) == names
    options = ["--budget", "min", "--max-tokens", "4", "--prompt", "cat"]
    command = [sys.executable, "-m", "flexcomp", "generate", "./decoder.so", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "tokens after" in done.stderr, done.stderr
    assert "flexcomp generate decoder.so" in (folder / "README").read_text()
