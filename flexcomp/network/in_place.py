"""Which values may share a place: a layer's result can be written over an operand that ends with the layer.

A residual block adds its input to its last convolution. The kernel reads an element of that input just before writing the
same element of the result, and the input has no other reader: input and result can be one tensor for the planner, and
the arena holds one image less where most is live.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from flexcomp.program import Layer, Value, ValueArg

Life = tuple[int, int]  # positions of layers, half-open


def shared_places(
    values: Sequence[Value],
    layers: Sequence[Layer],
    lives: Mapping[int, Life],
    kept: Collection[int],
) -> dict[int, int]:
    """For each live value the one whose place the value takes: itself, or one that ends where this begins.

    `kept` are values that must not change to the end, the outputs.
    """
    place = {value: value for value in lives}
    for position, layer in enumerate(layers):
        candidates = [i for i, arg in enumerate(layer.args) if isinstance(arg, ValueArg) and arg.over]
        written = [arg for arg in layer.args if isinstance(arg, ValueArg) and arg.written]
        if not candidates or len(written) != 1:
            continue
        result = written[0]
        for index in candidates:
            operand = layer.args[index]
            others = [arg for i, arg in enumerate(layer.args) if i != index and isinstance(arg, ValueArg)]
            if (
                operand.value not in kept
                and all(arg.value != operand.value for arg in others)
                and lives[operand.value][0] < position  # the first layer's inputs begin with that layer
                and lives[operand.value][1] == position + 1
                and lives[result.value][0] == position
                and place[result.value] == result.value
                and operand.type.nbytes == result.type.nbytes
                and values[operand.value].nbytes == values[result.value].nbytes
                and operand.offset == result.offset == 0
            ):
                place[result.value] = place[operand.value]
                break
    return place


def lives_of_places(lives: Mapping[int, Life], place: Mapping[int, int]) -> dict[int, Life]:
    """The life of each place: from the first value in it to the last."""
    result: dict[int, Life] = {}
    for value, (start, end) in lives.items():
        low, high = result.get(place[value], (start, end))
        result[place[value]] = (min(low, start), max(high, end))
    return result
