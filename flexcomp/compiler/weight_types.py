"""In which element type each layer's weights are kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np
from tvm import relax

from flexcomp.errors import InputError
from flexcomp.frontend import node_name, node_of
from flexcomp.passes.attributes import VALUES_OF
from flexcomp.passes.fuse_attention import Evaluate
from flexcomp.passes.ir import bindings, dtype, operator, shape
from flexcomp.passes.panels import lacking
from flexcomp.passes.weights import KeptWeight
from flexcomp.schedules.tiles.blocks import INT4, blocks_of, exact, rounding
from flexcomp.schedules.tiles.narrow_panel import OutOfRangeError, natural, require_fits
from flexcomp.schedules.tiles.panel import WEIGHT_DTYPES, element_type

ALL_TYPES = (*WEIGHT_DTYPES, INT4)  # that a build may be asked for
_EVERY = "*"
_MOVING = ("reshape", "permute_dims", "concat", "take", "strided_slice", "zeros")
_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32")


class WeightTypes:
    """The wish of `build(weights=…)`: a type, types by patterns of ONNX nodes' names, or None for types that lose nothing.

    `evaluate` gives the results of a function of the network's weights; `offered` are the types that the target widens; INT4
    among them says that it has kernels for weights in blocks of inputs. With `values_only` weights are float32, with the values
    in their types, and weights that do not fit their type do not change. Layers that no pattern is for have the type `usual`,
    float32 where their weights do not fit; without `usual`, the one that loses nothing. `together` gives, of a type of weights in
    blocks, that for dense layers which multiply activations in 8 bits, empty where there is none. With `by_error` types are
    chosen by errors of layers, and products of integers stay such whatever the types. Raises InputError for anything but a type.
    """

    def __init__(
        self,
        wish: str | Mapping[str, str] | None,
        evaluate: Evaluate,
        *,
        offered: Collection[str] = ALL_TYPES,
        values_only: bool = False,
        usual: str | None = None,
        together: Callable[[str], str] = lambda kept: "",
        by_error: bool = False,
    ) -> None:
        if wish is None:
            wish = {}
        elif not isinstance(wish, Mapping):
            wish = {_EVERY: wish}
        for pattern, kind in wish.items():
            if not isinstance(pattern, str) or not isinstance(kind, str) or kind not in ALL_TYPES:
                where = "" if pattern == _EVERY else f" of {pattern!r}"
                raise InputError(f"weights{where} cannot be kept as {kind!r}: the types are {', '.join(ALL_TYPES)}")
            if kind not in offered:
                needs = "GPUs have no kernels" if kind == INT4 else "x86 needs F16C"
                raise InputError(f"the target cannot widen {kind} weights ({needs}): the types are {', '.join(offered)}")
        self._rules = dict(wish)
        self._evaluate = evaluate
        self._unmatched = set(self._rules) - {_EVERY}
        self._nodes: dict[str, None] = {}
        self._offered = offered
        self._known: dict[tuple, object] = {}
        self._misfit: InputError | None = None
        self._values_only, self._usual, self._together, self._by_error = values_only, usual, together, by_error
        self.nodes: list[str | None] = []  # of the layers that were asked about, in that order
        self.fits: list[bool] = []  # whether the weights of each are in the range of their type
        self.multiplies_bytes = False  # whether a layer multiplies activations in 8 bits
        self._asked: list[KeptWeight] = []

    def of(self, names: Sequence[str], weight: KeptWeight) -> str:
        """The type for a layer of variables with these names; a WeightType of the passes."""
        if weight.asked_again:
            return self._naturally(weight) if self._by_error else self._wished(names, weight)[1]
        return self._noted(names, weight)

    def _noted(self, names: Sequence[str], weight: KeptWeight) -> str:
        """As `of`, for a layer that is not asked about again."""
        nodes = [node for node in map(node_name, names) if node is not None]
        self.nodes.append(nodes[0] if nodes else None)
        self._asked.append(weight)
        self._nodes.update(dict.fromkeys(nodes[:1]))
        found, kept = self._wished(names, weight)
        if found == INT4 and kept == INT4:
            kept = self._in_four_bits(weight)
        self.fits.append(found is None or kept == found or (found == INT4 and blocks_of(kept) is not None))
        if weight.multiplies_blocks and (together := self._together(kept)):
            kept, self.multiplies_bytes = together, True
        return VALUES_OF + kept if self._values_only and kept != "float32" else kept

    def _wished(self, names: Sequence[str], weight: KeptWeight) -> tuple[str | None, str]:
        """The type that a pattern asks for, and the type for the layer, without its blocks."""
        nodes = [node for node in map(node_name, names) if node is not None]
        found = None
        for pattern, kind in self._rules.items():
            if pattern == _EVERY or any(fnmatchcase(node, pattern) for node in nodes):
                self._unmatched.discard(pattern)
                found = kind
        return found, self._otherwise(weight) if found is None else self._fitting(names, weight, found)

    def _otherwise(self, weight: KeptWeight) -> str:
        """The type for a layer that no pattern is for; weights in blocks of inputs stay in these."""
        if self._usual is None:
            return self._naturally(weight)
        return self._in_blocks(weight) or ("float32" if self._error(weight, self._usual) else self._usual)

    def natural(self) -> list[str]:
        """For each layer that was asked about: the type of fewest bits in which its weights lose nothing."""
        return [self._naturally(weight) for weight in self._asked]

    def require_granted(self) -> None:
        """InputError if weights do not fit their type, or a pattern was the name of no layer that was asked for.

        An error in a pass would come out of C++ as another one.
        """
        if self._misfit is not None:
            raise self._misfit
        if self._unmatched:
            missing = ", ".join(repr(pattern) for pattern in self._rules if pattern in self._unmatched)
            known = list(self._nodes)
            listed = ", ".join(known[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "")
            raise InputError(f"weights: no layer with weights is called {missing}; there are {listed or 'none with names'}")

    def _naturally(self, weight: KeptWeight) -> str:
        key = (weight.var, weight.axis, weight.may_be_in_blocks)
        if key not in self._known:
            self._known[key] = self._in_blocks(weight) or self._natural(weight.made_of())
        return self._known[key]

    def _in_blocks(self, weight: KeptWeight) -> str:
        """The type of weights that the model has in blocks of inputs; empty for others."""
        parts = weight.in_blocks()
        if parts is None or INT4 not in self._offered:
            return ""
        integers, scales = self._value(weight, parts.integers), self._value(weight, parts.scales)
        zeros = None if parts.zeros is None else self._value(weight, parts.zeros)
        return str(exact(integers, scales, zeros, parts.size, float16="float16" in self._offered) or "")

    def _in_four_bits(self, weight: KeptWeight) -> str:
        """The type that INT4 is for a layer: blocks, those of the model if these have as few bits, or int8 without kernels."""
        if not weight.may_be_in_blocks:
            return "int8"
        own = blocks_of(self._in_blocks(weight))
        if own is not None and own.bits == 4:
            return str(own)
        return str(rounding(self._value(weight, weight.var), float16="float16" in self._offered))

    def _value(self, weight: KeptWeight, var: relax.Var) -> np.ndarray:
        return np.asarray(self._evaluate(replace(weight, var=var).function())[0])

    def _natural(self, weight: KeptWeight) -> str:
        if len(shape(weight.var)) < 2 or dtype(weight.var) != "float32":
            return "float32"
        function = weight.function()
        counted = _reads_integers(function)
        if weight.index is None and not counted and not _moves_only(function):
            return "float32"  # folding, as of batch norms, leaves no coarse numbers
        found = natural(np.asarray(self._evaluate(function)[0]), weight.axis, counted=counted)
        return found if element_type(found) in self._offered else "float32"

    def _fitting(self, names: Sequence[str], weight: KeptWeight, kind: str) -> str:
        error = self._error(weight, kind)
        if error is None:
            return kind
        if self._values_only:
            return "float32"
        place = next((f"{node_of(name)}: " for name in names if node_of(name)), "")
        name = next(filter(None, map(node_name, names)), _EVERY)
        way_out = f"keep them as float32, weights={{…, {name!r}: 'float32'}}"
        self._misfit = self._misfit or InputError(f"{place}{error}: {way_out}")
        return kind

    def _error(self, weight: KeptWeight, kind: str) -> OutOfRangeError | None:
        key = (weight.var, kind)
        if kind != "float32" and key not in self._known:
            values = self._evaluate(weight.function())[0]
            self._known[key] = _misfit(np.asarray(values), kind)
        return self._known.get(key)


class TypesInOrder(WeightTypes):
    """Types that were chosen for all layers, in the order in which passes ask for them."""

    def __init__(self, types: Sequence[str], evaluate: Evaluate, offered: Collection[str] = ALL_TYPES) -> None:
        super().__init__("float32", evaluate, offered=offered, by_error=True)
        self._left = iter(types)

    def _noted(self, names: Sequence[str], weight: KeptWeight) -> str:
        self.nodes.append(next(filter(None, map(node_name, names)), None))
        kept = next(self._left, "float32")  # of a shape with more layers, which is refused by its nodes
        return self._in_four_bits(weight) if kept == INT4 else kept


def _misfit(weights: np.ndarray, kind: str) -> OutOfRangeError | None:
    try:
        require_fits(weights, kind)
    except OutOfRangeError as error:
        return error
    return None


def _moves_only(function: relax.Function) -> bool:
    """Whether the result's elements are the weights', or zeros."""
    calls = [binding.value for binding in bindings(function) if isinstance(binding.value, relax.Call)]
    return all(operator(call) in _MOVING or lacking(call) for call in calls)


def _reads_integers(function: relax.Function) -> bool:
    found: list[bool] = []

    def visit(node) -> None:
        if isinstance(node, relax.Var) and isinstance(node.ty, relax.TensorType) and shape(node):
            found.append(dtype(node) in _INTEGERS)

    relax.analysis.post_order_visit(function.body, visit)
    return any(found)
