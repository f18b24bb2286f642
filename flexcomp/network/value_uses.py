"""The layers that write and read each value, taken from the kernels' arguments alone, for the checker of plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flexcomp import plan
from flexcomp.program import Layer, Value, ValueArg

from .lowered import Lowered


def planned_values(
    lowered: Lowered,
    layers: Sequence[Layer],
    values: Sequence[Value],
    buffer_of: Mapping[int, int],
) -> tuple[plan.Value, ...]:
    """The values of `buffer_of`, which maps values to chosen buffers, in that order.

    `layers` are computed, in this order.
    """
    index = {value: i for i, value in enumerate(buffer_of)}
    written: dict[int, list[int]] = {value: [] for value in index}
    read: dict[int, list[int]] = {value: [] for value in index}
    over: dict[int, set[int]] = {value: set() for value in index}
    for position, layer in enumerate(layers):
        args = [arg for arg in layer.args if isinstance(arg, ValueArg)]
        for arg in args:
            uses = (written if arg.written else read)[arg.value]
            if position not in uses:
                uses.append(position)
        results = [arg for arg in args if arg.written]
        for operand in [arg for arg in args if arg.over] if len(results) == 1 else ():
            if _same_bytes(operand, results[0]) and sum(arg.value == operand.value for arg in args) == 1:
                over[results[0].value].add(index[operand.value])
    given, kept = lowered.given, lowered.wanted
    return tuple(
        plan.Value(
            values[value].name, values[value].nbytes, buffer, tuple(written[value]), tuple(read[value]),
            value in given, value in kept, tuple(sorted(over[value])),
        )
        for value, buffer in buffer_of.items()
    )  # fmt: skip


def _same_bytes(operand: ValueArg, result: ValueArg) -> bool:
    """Whether two arguments, of two values that begin at the same byte, are the same bytes."""
    return operand.offset == result.offset == 0 and operand.type.nbytes == result.type.nbytes
