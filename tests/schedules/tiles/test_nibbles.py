"""Loops that widen weights of 4 bits use the instructions that are fast on their processor."""

import re

import pytest

from flexcomp.compiler.machine_code import compile_module
from flexcomp.device import resolve_target
from flexcomp.schedules.registry import candidates
from flexcomp.schedules.tiles.spec import ConvSpec

X86 = "llvm -mtriple=x86_64-linux-gnu -mcpu="


@pytest.mark.parametrize(
    ("target", "wanted", "unwanted"),
    [
        (X86 + "cascadelake", "vperm[pd]", "rsp"),
        (X86 + "x86-64-v3", "vpsrad|vpxor|vaddps", "vpslld|vperm[pd]|rsp"),
        ("raspberry-pi-5", r"tbl\s|scvtf\s.*#28", r"sshll|\[sp"),
        ("raspberry-pi-4b", r"sshll|scvtf\s.*#28", r"tbl\s|\[sp"),
    ],
)
def test_the_loop_of_one_row(target, wanted, unwanted):
    resolved = resolve_target(target)
    spec = ConvSpec(1, 1, 1, 256, 128, weights="int4 in blocks of 32, float16 scales")
    (candidate,) = candidates(spec, resolved.vector_unit)
    with resolved.tvm_target:
        text = compile_module({"kernel": candidate.build()}, resolved).inspect_source("s")
    # The code between labels and jumps with the most multiply-adds.
    loop = max(re.split(r"\.LBB\w+:|\n\s+(?:j\w+|b\.\w+)\s", text), key=lambda part: len(re.findall(r"vfmadd|fmla", part)))
    assert all(re.search(one, loop) for one in wanted.split("|")), loop
    assert not re.search(unwanted, loop), loop
