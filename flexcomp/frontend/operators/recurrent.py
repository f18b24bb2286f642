"""LSTM, GRU and RNN: one matrix product of the inputs of all steps, and a recurrence for each direction."""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.relax import op

from flexcomp.frontend.node_names import variable_name
from flexcomp.frontend.operators.node import Converter, Node, dtype_of, shape_of
from flexcomp.passes.lower_recurrence import recurrence
from flexcomp.schedules.recurrent.activations import DEFAULTS, NAMES
from flexcomp.schedules.recurrent.spec import GATES, Activation, RecurrentSpec

# An attribute of an LSTM that is DynamicQuantizeLSTM's definition: its products are of a state in 8 bits.
QUANTISED_STATE = "flexcomp_quantised_state"
_FUNCTIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def _recurrent(node: Node) -> relax.Expr:
    """One of GATES, as ONNX defines it for all its attributes."""
    return _Layer(node).convert()


class _Layer:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.reversed = _DIRECTIONS[node.text("direction", "forward")]
        self.directions, self.gates = len(self.reversed), GATES[node.kind]
        self.batch_major = bool(node.attrs.get("layout", 0))
        *self.lead, self.width = node.shape
        self.steps, self.batch = reversed(self.lead) if self.batch_major else self.lead
        self.hidden = shape_of(node.inputs[2])[-1]
        self._require_right()
        self.columns = self.directions * self.gates * self.hidden

    def _require_right(self) -> None:
        node, hidden, directions = self.node, self.hidden, self.directions
        if node.dtype == "float64":
            raise node.refuse("it has no kernel for float64: convert the network to float32")
        if 0 in node.shape or not hidden:
            raise node.refuse("its sequences have no elements: cut the network before it")
        rows = self.gates * hidden
        state = (self.batch, directions, hidden) if self.batch_major else (directions, self.batch, hidden)
        wanted = ((directions, rows, self.width), (directions, rows, hidden), (directions, 2 * rows), (self.batch,), state)
        names = ("W", "R", "B", "sequence_lens", "initial_h")
        if node.kind == "LSTM":
            names, wanted = (*names, "initial_c", "P"), (*wanted, state, (directions, 3 * hidden))
        for i, (name, extents) in enumerate(zip(names, wanted, strict=True), start=1):
            if node.input(i) is not None and shape_of(node.inputs[i]) != extents:
                raise node.refuse(f"{name} has shape {shape_of(node.inputs[i])}, and {extents} is right: correct the network")
        if not float(node.attrs.get("clip", 1)) > 0:
            raise node.refuse(f"its clip is {node.attrs['clip']}, and a threshold is above 0: correct the network")
        if int(node.attrs.get("hidden_size", hidden)) != hidden:
            raise node.refuse(f"hidden_size is {node.attrs['hidden_size']}, and R is made for {hidden}: correct the network")

    def convert(self) -> relax.Expr:
        products, weights, bias = self._products(), self._flat(2, self.columns, self.hidden), self._biases(1)
        is_quantised = bool(self.node.attrs.get(QUANTISED_STATE, 0))
        if is_quantised:  # the state's products get a scale behind, which the bias does not
            products, bias = self._emit(op.add(products, bias)), relax.const(np.zeros(self.columns, "float32"))
        peepholes = self._peepholes()
        lengths = self._lengths()
        states = self.directions * self.batch * self.hidden
        h0, c0 = self._flat(5, states), self._flat(6, states) if self.node.kind == "LSTM" else None
        clip = self.node.attrs.get("clip")
        results = []
        for direction, (is_reverse, activations) in enumerate(zip(self.reversed, self._activations(), strict=True)):
            spec = RecurrentSpec(
                self.node.kind, self.steps, self.batch, self.hidden, self.directions, direction, is_reverse, activations,
                batch_major=self.batch_major,
                clip=None if clip is None else float(clip),
                input_forget=bool(self.node.attrs.get("input_forget", 0)),
                linear_before_reset=bool(self.node.attrs.get("linear_before_reset", 0)),
                peepholes=peepholes is not None, has_lengths=lengths is not None,
                initial_h=h0 is not None, initial_c=c0 is not None, quantised_state=is_quantised,
            )  # fmt: skip
            given = [arg for arg in (products, weights, bias, peepholes, lengths, h0, c0) if arg is not None]
            both = self._emit(recurrence(spec, given))
            results.append([self._emit(relax.TupleGetItem(both, i)) for i in range(3 if spec.cell == "LSTM" else 2)])
        joined = [self._joined(parts, with_steps=i == 0) for i, parts in enumerate(zip(*results, strict=True))]
        return relax.Tuple(joined[: self.node.outputs]) if self.node.outputs > 1 else joined[0]

    def _emit(self, expr: relax.Expr) -> relax.Var:
        return self.node.bb.emit(expr, variable_name(self.node.name, self.node.kind))

    def _flat(self, i: int, *extents: int) -> relax.Expr | None:
        """Input `i` in another shape, float32."""
        given = self.node.input(i)
        if given is None:
            return None
        value = self._emit(op.reshape(given, extents))
        return value if dtype_of(value) == "float32" else self._emit(op.astype(value, "float32"))

    def _products(self) -> relax.Var:
        """float32[rows, columns]: of all inputs with W, and Wb added."""
        weights = self._emit(op.permute_dims(self._flat(1, self.columns, self.width), (1, 0)))
        result = self._emit(op.matmul(self._flat(0, self.steps * self.batch, self.width), weights))
        return result if self.node.input(3) is None else self._emit(op.add(result, self._biases(0)))

    def _biases(self, half: int) -> relax.Expr:
        """float32[columns]: Wb, which is half 0 of every direction's part of B, or Rb, which is half 1."""
        if self.node.input(3) is None:
            return relax.const(np.zeros(self.columns, "float32"))
        rows = self.gates * self.hidden
        order = (2 * np.arange(self.directions)[:, None] + half) * rows + np.arange(rows)
        return self._emit(op.take(self._flat(3, 2 * self.columns), relax.const(order.reshape(-1)), axis=0))

    def _peepholes(self) -> relax.Expr | None:
        """float32[columns]: P of the gates i, o and f, and 0 of c."""
        if self.node.kind != "LSTM" or self.node.input(7) is None:
            return None
        zeros = relax.const(np.zeros((self.directions, self.hidden), "float32"))
        whole = self._emit(op.concat([self._flat(7, self.directions, 3 * self.hidden), zeros], axis=1))
        return self._emit(op.reshape(whole, (self.columns,)))

    def _lengths(self) -> relax.Expr | None:
        """int32[batch], if not all rows have all steps."""
        given, known = self.node.input(4), self.node.value(4)
        if given is None or (known is not None and (known == self.steps).all()):
            return None
        return given if dtype_of(given) == "int32" else self._emit(op.astype(given, "int32"))

    def _activations(self) -> list[tuple[Activation, ...]]:
        """Those of every direction. Functions take alphas and betas in their order, each as many as it has."""
        node, defaults = self.node, _FUNCTIONS[self.node.kind]
        names = [name.decode() for name in node.attrs.get("activations", [])] or [*defaults] * self.directions
        right = len(defaults) * self.directions
        if len(names) != right:
            raise node.refuse(f"it has {len(names)} activations, and {right} are right: correct the network")
        alphas, betas = iter(node.attrs.get("activation_alpha", [])), iter(node.attrs.get("activation_beta", []))
        found = []
        for name in names:
            if name.lower() not in DEFAULTS:
                raise node.refuse(f"activation {name!r} is none of ONNX's, which are {', '.join(NAMES)}: use one of these")
            alpha, beta = DEFAULTS[name.lower()]
            alpha = 0.0 if alpha is None else float(next(alphas, alpha))
            found.append((name.lower(), alpha, 0.0 if beta is None else float(next(betas, beta))))
        return [tuple(found[start : start + len(defaults)]) for start in range(0, len(found), len(defaults))]

    def _joined(self, parts: tuple[relax.Var, ...], with_steps: bool) -> relax.Var:
        """One result of all directions, in ONNX's shape and the node's element type."""
        axis = (2 if self.batch_major else 1) if with_steps else (1 if self.batch_major else 0)
        extents = [*self.lead, self.hidden] if with_steps else [self.batch, self.hidden]
        extents.insert(axis, 1)
        parts = [self._emit(op.reshape(part, extents)) for part in parts]
        whole = parts[0] if len(parts) == 1 else self._emit(op.concat(parts, axis=axis))
        return whole if self.node.dtype == "float32" else self._emit(op.astype(whole, self.node.dtype))


CONVERTERS: dict[str, Converter] = dict.fromkeys(GATES, _recurrent)
