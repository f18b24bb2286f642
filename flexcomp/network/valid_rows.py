"""Which kernels of a network compute only the rows that an inference has, where inputs are padded along their first axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx

from flexcomp.errors import InputError
from flexcomp.passes import attributes as names
from flexcomp.program import Arg, Layer, ValidArg, Value, ValueArg
from flexcomp.schedules import machines
from flexcomp.schedules.valid_rows import ByRows, by_rows, folded, with_zeros

from .lowered import align

VALID = "_valid"  # ends the names of kernels that are told how many rows are valid
_OVER = "_over_valid"  # those of kernels that read all valid rows for each result: reductions, and attention


@dataclass(frozen=True)
class PaddedRows:
    """The axis along which inputs are padded, the first one of theirs that has more than one element."""

    extent: int  # in the shape that is built
    inputs: frozenset[str]
    over: int | None = None  # so many kernels leave out other rows, or outputs would move; None: no output would


def over_valid(layers: Sequence[Layer]) -> int:
    """How many layers read all valid rows for each result, and no others: reductions, and attention."""
    return sum(layer.kernel.endswith(_OVER) for layer in layers)


class ValidRows:
    """The values that have a row for each element of the padded axis, as far as kernels are known.

    One object is for all lowerings of a network, which have the same layers and values: the smallest kernels come first, and
    what their indices show holds for other kernels of their layers.
    """

    def __init__(self, padded: PaddedRows) -> None:
        self.padded = padded
        self._values: set[int] = set()
        self._layers: set[int] = set()  # whose results have rows
        # Kernels that compute all rows, with their names, by the names of those that are told.
        self._whole: dict[str, tuple[str, tirx.PrimFunc]] = {}
        self._known: dict[tuple, ByRows | None] = {}
        self._reductions: dict[tuple, tirx.PrimFunc | None] = {}

    def note_input(self, name: str, value: int) -> None:
        """An input."""
        if name in self.padded.inputs:
            self._values.add(value)

    def told(self, layers: Sequence[Layer], kernels: dict[str, tirx.PrimFunc]) -> list[Layer]:
        """The layers of a lowering, of which those compute all rows that a kernel reads which neither has rows nor is a reduction
        over valid ones: zeros might not be harmless there.

        Raises InputError if others leave out rows than outputs need.
        """
        whole = {
            arg.value
            for index, layer in enumerate(layers) if index not in self._layers and not layer.kernel.endswith(_OVER)
            for arg in layer.args if isinstance(arg, ValueArg) and not arg.written
        }  # fmt: skip
        result = []
        for index, layer in enumerate(layers):
            written = {arg.value for arg in layer.args if isinstance(arg, ValueArg) and arg.written}
            if index in self._layers and any(isinstance(arg, ValidArg) for arg in layer.args) and whole & written:
                kernel, code = self._whole[layer.kernel]
                kernels[kernel] = code
                layer = replace(layer, kernel=kernel, args=tuple(arg for arg in layer.args if not isinstance(arg, ValidArg)))
            result.append(layer)
        for name in kernels.keys() - {layer.kernel for layer in result}:
            if name.endswith(VALID):
                del kernels[name]
        found, needed = over_valid(result), self.padded.over
        if needed is not None and found != needed:
            raise InputError(
                f"pad: {needed} kernels must leave out padded rows, and of those for this target {found} do: declare the shapes "
                "that you need, without pad"
            )
        return result

    def of_kernel(
        self, layer: int, name: str, kernel: tirx.PrimFunc, attrs: Mapping[str, Any], args: Sequence[Arg], values: Sequence[Value]
    ) -> tuple[str, tirx.PrimFunc] | None:
        """The kernel of a layer, with its name, that takes a ValidArg after `args`, which end with the results.

        None if it computes all rows anyway.
        """
        places = [(i, arg) for i, arg in enumerate(args) if isinstance(arg, ValueArg)]
        results = [i for i, arg in places if arg.written]
        whole = all(align(args[i].type.nbytes) == values[args[i].value].nbytes and args[i].part == 1.0 for i in results)
        operands = [i for i, arg in places if not arg.written and arg.value in self._values and arg.offset == 0]
        if not operands or not whole or any(arg.exchanged for _, arg in places):
            return None
        said = attrs.get(names.BY_ROWS, ()) if int(attrs.get(names.EXTENT, self.padded.extent)) == self.padded.extent else ()
        is_known = layer in self._layers or any(int(position) in operands for position in said)
        own, in_floats = attrs.get(names.TOLD), all(args[i].type.dtype == "float32" for i in results)
        is_own = own is not None and in_floats and self._fits(own, operands)
        key = kernel, tuple(operands), is_known
        if key not in self._known:
            blocks = int(attrs.get(names.SLICES, 1))
            if is_own:
                self._known[key] = ByRows(with_zeros(_in_place_of(kernel, own), self.padded.extent, results, blocks))
            else:
                scratch = range(len(args), len(kernel.params)) if names.ANEW in attrs else ()
                self._known[key] = by_rows(kernel, self.padded.extent, operands, results, blocks, is_known, scratch)
        found = self._known[key]
        if found is None:
            reduction = self._reduction(kernel, operands, results)
            return reduction and (name + _OVER, reduction.with_attr(names.VALID, len(args)))
        self._layers.add(layer)
        self._values.update(args[i].value for i in results)
        # Rows that are fetched have a kernel of their own, and bands of rows, too.
        banded = names.ROWS in attrs and machines.decoded_rows(str(attrs[names.ROWS])).out_rows > 1
        if banded or names.FETCH in attrs or found.kernel is None:
            return None
        told = name + (_OVER if is_own and names.ATTENTION in attrs else VALID)
        self._whole[told] = name, kernel
        return told, found.kernel.with_attr(names.VALID, len(args))

    def _reduction(self, kernel: tirx.PrimFunc, operands: Sequence[int], results: Sequence[int]) -> tirx.PrimFunc | None:
        key = kernel, tuple(operands)
        if key not in self._reductions:
            self._reductions[key] = folded(kernel, self.padded.extent, operands, results)
        return self._reductions[key]

    def _fits(self, told: tirx.PrimFunc, operands: Sequence[int]) -> bool:
        """Whether a kernel's rows are those of the operands that have rows."""
        return int(told.attrs[names.EXTENT]) == self.padded.extent and {*map(int, told.attrs[names.BY_ROWS])} <= {*operands}


def _in_place_of(kernel: tirx.PrimFunc, told: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel that is told, with all that the lowering knows of the other one."""
    return tirx.PrimFunc(told.params, told.body, told.ret_type, attrs=kernel.attrs)
