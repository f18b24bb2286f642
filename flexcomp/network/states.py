"""States: their places, and which of them take new rows in place, instead of a copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm
from tvm import ir, relax

from flexcomp.passes.attributes import EXCHANGE
from flexcomp.passes.ir import bindings, num_inputs, operator

# Operators that only look at the same bytes differently.
VIEWS = ("reshape", "expand_dims", "squeeze", "flatten")


@dataclass(frozen=True)
class Exchange:
    """A kernel call whose rows may change places with those of a state, which then is the call's result."""

    state: str  # name of the input
    owns_rows: bool  # the rows for the state have no other reader: their value may take the replaced rows


def exchanges(
    mod: tvm.IRModule, input_names: Sequence[str], output_names: Sequence[str], state: Mapping[str, str]
) -> dict[relax.Var, Exchange]:
    """By the variable of its result, every call of `main` that may be an exchange; `state` are inputs by output.

    It makes the next state by writing rows into the state; the old state has no later reader.
    """
    main = mod["main"]
    steps = list(bindings(main))
    source: dict[relax.Var, relax.Var] = {}  # of a view

    def origin(expr: ir.Expr) -> ir.Expr:
        while expr in source:
            expr = source[expr]
        return expr

    last: dict[ir.Expr, int] = {}  # by value, maybe seen through views: the last reader
    readers: dict[ir.Expr, int] = {}

    def note(expr: ir.Expr, position: int) -> None:
        def visit(node: object) -> None:
            if isinstance(node, relax.Var):
                last[origin(node)] = position
                readers[origin(node)] = readers.get(origin(node), 0) + 1

        relax.analysis.post_order_visit(expr, visit)

    for position, binding in enumerate(steps):
        if (seen := looked_at(binding.value)) is not None:
            source[binding.var] = seen
        else:
            note(binding.value, position)
    body = main.body.body
    tuples = {binding.var: binding.value for binding in steps if isinstance(binding.value, relax.Tuple)}
    body = tuples.get(body, body)
    returned = list(body.fields) if isinstance(body, relax.Tuple) else [body]
    for expr in returned:
        note(expr, len(steps))
    params = dict(zip(input_names, main.params[: num_inputs(main)], strict=True))
    becomes = {origin(expr): state[name] for name, expr in zip(output_names, returned, strict=True) if name in state}

    called = [binding.var for binding in steps if operator(binding.value) == "call_tir"]
    made_alone = {var for var in called if isinstance(var.ty, relax.TensorType)}
    found: dict[relax.Var, Exchange] = {}
    for position, binding in enumerate(steps):
        value, read = binding.value, becomes.get(binding.var)
        if read is None or operator(value) != "call_tir" or EXCHANGE not in (mod[value.args[0]].attrs or ()):
            continue
        past, rows = (origin(operand) for operand in value.args[1].fields[:2])
        if past.same_as(params[read]) and last[past] == position:
            owns_rows = readers[rows] == 1 and rows in made_alone and rows not in found
            found[binding.var] = Exchange(read, owns_rows)
    return found


def looked_at(value: ir.Expr) -> relax.Var | None:
    """The variable whose bytes `value` is, maybe seen differently."""
    seen = value.args[0] if operator(value) in VIEWS else value
    return seen if isinstance(seen, relax.Var) else None
