"""Expressions that come to several places of a kernel."""

import tvm_ffi
from tvm import tirx

from flexcomp.schedules.nests.stages import substitute


def test_every_copy_binds_variables_of_its_own():
    x, y, z, shared, inner = (tirx.Var(name, "float32") for name in ("x", "y", "z", "shared", "inner"))
    expr = tirx.Let(shared, x * x, tirx.Let(inner, shared + x, inner * shared))
    bound: list[tirx.Var] = []
    copies = [substitute(expr, {x: value}) for value in (y, z)]
    for copy in copies:
        tvm_ffi.structural_walk(copy, (tirx.Let, lambda let: bound.append(let.var)))
    assert len(set(bound)) == len(bound) == 4
    wanted = tirx.Let(shared, y * y, tirx.Let(inner, shared + y, inner * shared))
    assert tvm_ffi.structural_equal(copies[0], wanted)
