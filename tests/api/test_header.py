"""flexcomp.h: C11 and C++ without a warning, and an ABI that only grows."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import flexcomp
from flexcomp import runtime_ext
from tests.api import bindings

HERE = Path(__file__).parent
INCLUDE = Path(runtime_ext.__file__).parent / "include"
HEADER = (INCLUDE / "flexcomp.h").read_text()
STRICT = ["-Wall", "-Wextra", "-pedantic", "-Werror"]


@pytest.mark.parametrize("compiler", [["cc", "-std=c11"], ["g++", "-std=c++11", "-x", "c++"]], ids=["C11", "C++11"])
def test_it_compiles_alone(compiler, tmp_path):
    subprocess.run([*compiler, *STRICT, f"-I{INCLUDE}", HERE / "header.c", "-o", tmp_path / "header"], check=True)
    subprocess.run([tmp_path / "header"], check=True)


def functions() -> list[str]:
    return sorted(re.findall(r"^FLEXCOMP_API [^;(]*?(flexcomp_\w+)\(", HEADER, re.MULTILINE))


def exported() -> list[str]:
    symbols = [line.split()[-1] for line in _printed("nm", "-D", "--defined-only", runtime_ext.runtime_library())]
    return sorted(symbol.removesuffix("@@FLEXCOMP_1") for symbol in symbols if symbol != "FLEXCOMP_1")


def test_the_library_exports_what_the_header_declares_and_no_more():
    assert exported() == functions()


def layout(folder: Path) -> list[str]:
    """Functions with their parameters, values of constants, sizes and offsets of structures, as a compiler sees them."""
    plain = re.sub(r"/\*.*?\*/", " ", HEADER, flags=re.DOTALL)
    kept = r"^(?:FLEXCOMP_API|typedef(?! struct \w+ \{)) (.*?);"
    declared = [" ".join(text.split()) for text in re.findall(kept, plain, re.MULTILINE | re.DOTALL)]
    lines = ["#include <flexcomp.h>", "#include <stdio.h>", "int main(void) {"]
    for body in re.findall(r"\benum \{(.*?)\};", plain, re.DOTALL):
        for name in re.findall(r"(FLEXCOMP_\w+) =", body):
            lines.append(f'  printf("{name} = %d\\n", {name});')
    for name in re.findall(r"^#define (FLEXCOMP_(?:ABI|BUDGET_\w+)) ", HEADER, re.MULTILINE):
        lines.append(f'  printf("{name} = %llu\\n", (unsigned long long){name});')
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\}", plain, re.DOTALL):
        lines.append(f'  printf("sizeof {name} = %zu\\n", sizeof({name}));')
        for kind, member in re.findall(r"([^;]*?)\b(\w+);", body):
            lines.append(f'  printf("{name}.{member} = %zu, {" ".join(kind.split())}\\n", offsetof({name}, {member}));')
    source = folder / "layout.c"
    source.write_text("\n".join([*lines, "  return 0;", "}"]))
    subprocess.run(["cc", "-std=c11", *STRICT, f"-I{INCLUDE}", source, "-o", folder / "layout"], check=True)
    return sorted([*declared, *_printed(folder / "layout")])


def _printed(*command: str | Path) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_abi_is_the_committed_one(tmp_path):
    """Lines may come, and sizes may grow at the end; nothing that is in a release may change or go."""
    assert layout(tmp_path) == (HERE / "abi.txt").read_text().splitlines()


def test_versions_agree():
    assert re.search(r'#define FLEXCOMP_VERSION "(.*)"', HEADER)[1] == flexcomp.__version__
    assert bindings._library().flexcomp_version().decode() == flexcomp.__version__
    assert bindings.call("abi") == 1
    assert [bindings._library().flexcomp_status_name(status) for status in (0, 2, 10, 11, 12, -1)] == [
        b"OK", b"INPUT", b"CLOSED", b"REFUSED", b"UNKNOWN", b"UNKNOWN",
    ]  # fmt: skip
