"""Changes of a network or its storage that would help, as changes of the planner's problem."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from flexcomp import plan
from flexcomp.program import Layer, Port, Prediction, Program, Rung, ValueArg, WeightArg, nodes, weight_errors
from flexcomp.report.marks import neediest
from flexcomp.report.memory_map import boxes

_FASTER = (2, 4)  # times the storage's bandwidth
_LAYERS = 5  # with the most weights, that are narrowed alone
_WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}  # bytes of an element
_FIXED_ROWS = 2  # of a panel's block, as float32 in narrow panels, too: the bias and, with int8, the scale
_SMALLER = 3 / 4  # of each side of an image
_SIDES = 32  # whose multiples sides are

Changed = Callable[[plan.Problem, Rung], plan.Problem]


@dataclass(frozen=True)
class Change:
    """One change; `facts` name it, and `apply` makes the problem that it leaves of a rung's problem."""

    facts: dict
    apply: Changed


def changes(program: Program, assumed: Prediction) -> list[Change]:
    """All changes that make sense for the program."""
    return [*_storage(assumed), *_narrower(program), *_smaller_inputs(program)]


def _storage(assumed: Prediction) -> Iterator[Change]:
    for times in _FASTER:
        storage = replace(assumed.storage, bandwidth=times * assumed.storage.bandwidth)
        facts = {"change": "storage", "times": times, "bytes_per_s": storage.bandwidth}
        yield Change(facts, lambda problem, rung, storage=storage: replace(problem, storage=storage))


def _narrower(program: Program) -> Iterator[Change]:
    """All weights in 16 and in 8 bits, and the largest ones alone in 8 bits; weights that layers share are one."""
    origin = nodes.read(program)
    found: dict[int, tuple[Layer, str | None]] = {}  # by their place in the file: the layer that stores most
    for layer, node in zip(program.layers, origin, strict=True):
        if layer.weights and _WIDTHS.get(weight_errors.kept_by(layer), 0) > 1:
            offset = layer.weights.offset
            if offset not in found or layer.weights.stored_nbytes > found[offset][0].weights.stored_nbytes:
                found[offset] = layer, node
    wide = any(weight_errors.kept_by(layer) == "float32" for layer, _ in found.values())
    for dtype in (*(("float16",) if wide else ()), *(("int8",) if found else ())):
        yield Change({"change": "weights", "dtype": dtype, "layer": None, "node": None}, _narrowing(program, None, dtype))
    largest = sorted(found, key=lambda offset: (-found[offset][0].weights.stored_nbytes, offset))[:_LAYERS]
    smallest = program.layers[_neediest(program)].weights  # its own block is part of the smallest budget
    if smallest and smallest.offset in found and smallest.offset not in largest:
        largest.append(smallest.offset)
    for offset in largest if len(found) > 1 else ():
        layer, node = found[offset]
        facts = {"change": "weights", "dtype": "int8", "layer": layer.name.partition("[")[0], "node": node}
        yield Change(facts, _narrowing(program, offset, "int8"))


def _neediest(program: Program) -> int:
    rung = program.rungs[0]
    return rung.steps[neediest(program, rung, boxes(program, rung)).step].layer


def _narrowing(program: Program, offset: int | None, dtype: str) -> Changed:
    def apply(problem: plan.Problem, rung: Rung) -> plan.Problem:
        layers = [
            _narrowed(planned, program.layers[index], dtype)
            if planned.weights and offset in (None, program.layers[index].weights.offset)
            else planned
            for planned, index in zip(problem.layers, rung.order, strict=True)
        ]
        return replace(problem, layers=tuple(layers))

    return apply


def _narrowed(planned: plan.Layer, layer: Layer, dtype: str) -> plan.Layer:
    """The same kernel at the same speed, on fewer stored bytes; prepared weights keep the size of their prepared form."""
    now = weight_errors.kept_by(layer)
    if _WIDTHS.get(now, 0) <= _WIDTHS[dtype]:
        return planned
    weights = planned.weights
    part = _WIDTHS[dtype] / _WIDTHS[now]
    if weights.stored:
        block = _narrow_block(layer.weights.preparation.stored.shape, weights.stored.block_nbytes, part)
        shrunk = replace(weights.stored, block_nbytes=block)
        read = weights.read * block / weights.stored.block_nbytes
        return replace(planned, weights=replace(weights, stored=shrunk, read=read))
    largest = max((arg.type for arg in layer.args if isinstance(arg, WeightArg)), key=lambda type_: type_.nbytes)
    shape = largest.shape if weights.blocks > 1 else (1, *largest.shape)
    block = _narrow_block(shape, weights.block_nbytes, part)
    return replace(planned, weights=replace(weights, block_nbytes=block))


def _narrow_block(shape: tuple[int, ...], nbytes: int, part: float) -> int:
    """Bytes of a block (blocks, rows…, width) whose rows but the first ones take a part of their bytes."""
    row = nbytes // max(1, math.prod(shape[1:-1]))
    fixed = min(nbytes, _FIXED_ROWS * row)
    return min(nbytes, plan.rounded_up(round(fixed + part * (nbytes - fixed)), plan.ALIGN))


def _smaller_inputs(program: Program) -> Iterator[Change]:
    """Images of three quarters of their sides, where layers of every size can follow."""
    for port in program.inputs:
        smaller = _smaller(port)
        scaled = _scaled(program, port.value) if smaller else None
        if scaled is None:
            continue
        part = math.prod(smaller) / math.prod(port.type.shape)
        facts = {"change": "input", "name": port.name, "shape": list(smaller)}
        yield Change(facts, _shrinking(program, frozenset(scaled), part))


def _smaller(port: Port) -> tuple[int, ...] | None:
    """The shape of a smaller image; None for an input that is no image. Sides are the two longest of three axes."""
    shape = port.type.shape
    if len(shape) != 4:
        return None
    sides = (2, 3) if shape[1] <= shape[3] else (1, 2)
    unit = _SIDES if min(shape[side] for side in sides) >= 2 * _SIDES else _SIDES // 4
    smaller = list(shape)
    for side in sides:
        smaller[side] = max(unit, round(_SMALLER * shape[side] / unit) * unit)
    grown = any(after > before for after, before in zip(smaller, shape, strict=True))
    return tuple(smaller) if not grown and tuple(smaller) != shape else None


def _scaled(program: Program, image: int) -> set[int] | None:
    """The values whose size follows the image's; None if a layer needs this very size."""
    scaled = {image}
    for layer in program.layers:
        args = [arg for arg in layer.args if isinstance(arg, ValueArg)]
        if not any(arg.value in scaled for arg in args if not arg.written):
            continue
        if not all(_is_image(arg) for arg in args if arg.value in scaled):
            return None
        if any(isinstance(arg, WeightArg) and _sides(args) & {arg.type.shape[1:3]} for arg in layer.args):
            return None
        scaled |= {arg.value for arg in args if arg.written and _is_image(arg)}
        flat = [arg for arg in args if arg.written and not _is_image(arg)]
        if any(math.prod(arg.type.shape) > max(arg.type.shape) for arg in flat):
            return None
    return scaled


def _sides(args: list[ValueArg]) -> set[tuple[int, ...]]:
    return {arg.type.shape[1:3] for arg in args if len(arg.type.shape) == 4}


def _is_image(arg: ValueArg) -> bool:
    shape = arg.type.shape
    return len(shape) == 4 and sum(extent > 1 for extent in shape[1:]) > 1


def _shrinking(program: Program, scaled: frozenset[int], part: float) -> Changed:
    names = {program.values[value].name for value in scaled}

    def apply(problem: plan.Problem, rung: Rung) -> plan.Problem:
        buffers = [
            replace(buffer, nbytes=plan.rounded_up(round(part * buffer.nbytes), plan.ALIGN)) if buffer.name in names else buffer
            for buffer in problem.buffers
        ]
        layers = [
            replace(planned, seconds=part * planned.seconds, scratch=plan.rounded_up(round(part * planned.scratch), plan.ALIGN))
            if any(isinstance(arg, ValueArg) and arg.value in scaled for arg in program.layers[index].args)
            else planned
            for planned, index in zip(problem.layers, rung.order, strict=True)
        ]
        return replace(problem, buffers=tuple(buffers), layers=tuple(layers))

    return apply
