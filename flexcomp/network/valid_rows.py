"""Which kernels of a network compute only the rows that an inference has, where inputs are padded along their first axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx

from flexcomp.passes import attributes as names
from flexcomp.program import Arg, Layer, ValidArg, Value, ValueArg
from flexcomp.schedules import machines
from flexcomp.schedules.valid_rows import ByRows, by_rows, with_zeros

from .lowered import align

VALID = "_valid"  # ends the names of kernels that are told how many rows are valid


@dataclass(frozen=True)
class PaddedRows:
    """The axis along which inputs are padded, the first one of theirs that has more than one element."""

    extent: int  # in the shape that is built
    inputs: frozenset[str]


class ValidRows:
    """The values that have a row for each element of the padded axis, as far as kernels are known.

    One object is for all lowerings of a network, which have the same layers and values: the smallest kernels come first, and
    what their indices show holds for other kernels of their layers.
    """

    def __init__(self, padded: PaddedRows) -> None:
        self.padded = padded
        self._values: set[int] = set()
        self._layers: set[int] = set()  # whose results have rows
        self._whole: dict[str, tirx.PrimFunc] = {}  # kernels that compute all rows, by the names of those that are told
        self._known: dict[tuple, ByRows | None] = {}

    def note_input(self, name: str, value: int) -> None:
        """An input."""
        if name in self.padded.inputs:
            self._values.add(value)

    def told(self, layers: Sequence[Layer], kernels: dict[str, tirx.PrimFunc]) -> list[Layer]:
        """The layers of a lowering, of which those compute all rows that a kernel reads which is not known to have rows.

        Such a kernel may add rows up, or look for the largest element: zeros would not be harmless there.
        """
        whole = {
            arg.value
            for index, layer in enumerate(layers) if index not in self._layers
            for arg in layer.args if isinstance(arg, ValueArg) and not arg.written
        }  # fmt: skip
        result = []
        for layer in layers:
            written = {arg.value for arg in layer.args if isinstance(arg, ValueArg) and arg.written}
            if any(isinstance(arg, ValidArg) for arg in layer.args) and whole & written:
                kernel = layer.kernel.removesuffix(VALID)
                kernels[kernel] = self._whole[layer.kernel]
                layer = replace(layer, kernel=kernel, args=tuple(arg for arg in layer.args if not isinstance(arg, ValidArg)))
            result.append(layer)
        for name in kernels.keys() - {layer.kernel for layer in result}:
            if name.endswith(VALID):
                del kernels[name]
        return result

    def of_kernel(
        self, layer: int, name: str, kernel: tirx.PrimFunc, attrs: Mapping[str, Any], args: Sequence[Arg], values: Sequence[Value]
    ) -> tirx.PrimFunc | None:
        """The kernel of a layer, `name` + VALID, that takes a ValidArg after `args`, which end with the results.

        None if it computes all rows anyway.
        """
        places = [(i, arg) for i, arg in enumerate(args) if isinstance(arg, ValueArg)]
        results = [i for i, arg in places if arg.written]
        whole = all(align(args[i].type.nbytes) == values[args[i].value].nbytes and args[i].part == 1.0 for i in results)
        operands = [i for i, arg in places if not arg.written and arg.value in self._values and arg.offset == 0]
        if not operands or not whole or any(arg.exchanged for _, arg in places):
            return None
        is_known = layer in self._layers or any(int(position) in operands for position in attrs.get(names.BY_ROWS, ()))
        key = kernel, tuple(operands), is_known
        if key not in self._known:
            blocks, own = int(attrs.get(names.SLICES, 1)), attrs.get(names.TOLD)
            in_floats = all(args[i].type.dtype == "float32" for i in results)
            if own is not None and in_floats and self._fits(own, operands):
                self._known[key] = ByRows(with_zeros(_in_place_of(kernel, own), self.padded.extent, results, blocks))
            else:
                scratch = range(len(args), len(kernel.params)) if names.ANEW in attrs else ()
                self._known[key] = by_rows(kernel, self.padded.extent, operands, results, blocks, is_known, scratch)
        found = self._known[key]
        if found is None:
            return None
        self._layers.add(layer)
        self._values.update(args[i].value for i in results)
        # Rows that are fetched have a kernel of their own, and bands of rows, too.
        banded = names.ROWS in attrs and machines.decoded_rows(str(attrs[names.ROWS])).out_rows > 1
        if banded or names.FETCH in attrs or found.kernel is None:
            return None
        self._whole[name + VALID] = kernel
        return found.kernel.with_attr(names.VALID, len(args))

    def _fits(self, told: tirx.PrimFunc, operands: Sequence[int]) -> bool:
        """Whether a kernel's rows are those of the operands that have rows."""
        return int(told.attrs[names.EXTENT]) == self.padded.extent and {*map(int, told.attrs[names.BY_ROWS])} <= {*operands}


def _in_place_of(kernel: tirx.PrimFunc, told: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel that is told, with all that the lowering knows of the other one."""
    return tirx.PrimFunc(told.params, told.body, told.ret_type, attrs=kernel.attrs)
