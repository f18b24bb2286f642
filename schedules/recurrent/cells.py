"""The work of a recurrent layer on the products of a step: gates, the new cell and the new state, for one vector of units."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ..tiles.vector_math import constant
from .activations import activate, clipped
from .spec import RecurrentSpec


@dataclass(frozen=True)
class Products:
    """Of one row and one vector of units; every member may emit loads."""

    inputs: Callable[[int], tirx.Expr]  # of a gate: X·W + Wb
    state: Callable[[int], tirx.Expr]  # of a gate: H·R + Rb, of the state before the step
    peephole: Callable[[int], tirx.Expr]  # of a gate
    before: tirx.Expr  # the state before the step


def lstm_cell(spec: RecurrentSpec, given: Products, cell: tirx.Expr) -> tirx.Expr:
    """The cell after a step; gates are i, o, f, c."""
    entered = _lstm_gate(spec, given, 0, cell)
    kept = T.bind(constant(1.0, cell) - entered) if spec.input_forget else _lstm_gate(spec, given, 2, cell)
    return T.bind(kept * cell + entered * _of(spec, spec.activations[1], given.inputs(3) + given.state(3)))


def lstm(spec: RecurrentSpec, given: Products, after: tirx.Expr) -> tirx.Expr:
    """The state after a step, of the cell `after` it."""
    return T.bind(_lstm_gate(spec, given, 1, after) * activate(spec.activations[2], after))


def _lstm_gate(spec: RecurrentSpec, given: Products, number: int, seen: tirx.Expr) -> tirx.Expr:
    total = given.inputs(number) + given.state(number)
    return _of(spec, spec.activations[0], total + given.peephole(number) * seen if spec.peepholes else total)


def gru_gate(spec: RecurrentSpec, given: Products, number: int) -> tirx.Expr:
    """The gate z, which is 0, or r, which is 1."""
    return _of(spec, spec.activations[0], given.inputs(number) + given.state(number))


def gru(spec: RecurrentSpec, given: Products, update: tirx.Expr, reset: tirx.Expr | None) -> tirx.Expr:
    """The state after a step; `reset` is None where the product is of the state after reset."""
    product = given.state(2) if reset is None else reset * given.state(2)
    new = _of(spec, spec.activations[1], given.inputs(2) + product)
    return T.bind((constant(1.0, update) - update) * new + update * given.before)


def rnn(spec: RecurrentSpec, given: Products) -> tirx.Expr:
    """The state after a step."""
    return _of(spec, spec.activations[0], given.inputs(0) + given.state(0))


def _of(spec: RecurrentSpec, activation, total: tirx.Expr) -> tirx.Expr:
    return T.bind(activate(activation, clipped(spec.clip, total)))
