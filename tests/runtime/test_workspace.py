"""Memory that kernels ask for at run time."""

from __future__ import annotations

import pytest

import flexcomp
from flexcomp.errors import ExecutionError
from tests.runtime import tiny as builder


def test_hidden_workspace_fails_loudly(tmp_path_factory, x):
    """A kernel that asks for more than register tiles must not get memory outside the budget."""
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def greedy(a: T.handle, w: T.handle, c: T.handle) -> None:
        T.func_attr({"global_symbol": "greedy_mul", "tirx.noalias": True})
        A = T.match_buffer(a, (256,))
        W = T.match_buffer(w, (256,))
        C = T.match_buffer(c, (256,))
        K = T.sblock_alloc_buffer((40, 256))  # granted, and not given back when the next one is refused
        H = T.sblock_alloc_buffer((256, 256))
        for i, j in T.grid(40, 256):
            with T.sblock("kept"):
                vi, vj = T.axis.remap("SS", [i, j])
                K[vi, vj] = A[vj]
        for i, j in T.grid(256, 256):
            with T.sblock("hidden"):
                vi, vj = T.axis.remap("SS", [i, j])
                H[vi, vj] = A[vi] * W[vj]
        for i in T.serial(256):
            with T.sblock("out"):
                vi = T.axis.S(256, i)
                C[vi] = H[vi, 255 - vi] + K[vi % 40, 255 - vi]

    compiled = builder.kernels("greedy_")
    broken = builder.kernels("greedy_", {"mul2": greedy})
    compiled.import_module(broken)
    program_of = builder.make_program

    def with_greedy_mul(layers, prefix, metadata=None):
        import dataclasses

        program = program_of(layers, prefix, metadata)
        swapped = dataclasses.replace(program.layers[-2], kernel="greedy_mul2")
        return dataclasses.replace(program, layers=(*program.layers[:-2], swapped, program.layers[-1]))

    builder.make_program = with_greedy_mul
    try:
        net = builder.export(tmp_path_factory.mktemp("greedy") / "greedy.so", "greedy_", compiled=compiled)
    finally:
        builder.make_program = program_of
    with flexcomp.load(net.library) as session:
        for _ in range(3):
            with pytest.raises(ExecutionError, match=r"layer mul .* asked for 262144 bytes of hidden workspace"):
                session(x)
