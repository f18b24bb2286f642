"""`build(state=…)`: which outputs of a network become which inputs of its next inference, and which inputs stay."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tvm import relax

from flexcomp.errors import InputError
from flexcomp.frontend import Imported
from flexcomp.passes.ir import dtype, num_inputs, shape
from flexcomp.program import TensorType

_ANY = "*"


def checked_state(given: Any) -> dict[str, str]:
    """Inputs by output; None is no state. Raises InputError for anything but names or patterns, each once."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for pair in given.items() for name in pair):
        raise InputError(f'state must be a dict of inputs by output, such as {{"h_out": "h_in"}}, not {given!r}')
    makers: dict[str, str] = {}
    for made, read in given.items():
        if read in makers:
            raise InputError(f'state: two outputs, "{makers[read]}" and "{made}", would become the input "{read}"')
        makers[read] = made
        if made.count(_ANY) != read.count(_ANY) or made.count(_ANY) > 1:
            raise InputError(
                f'state: "{made}" and "{read}": a pattern has one *, which stands for the same on both sides, as in '
                '{"present.*": "past_key_values.*"}'
            )
    return dict(given)


def required_states(state: Mapping[str, str], imported: Imported) -> dict[str, str]:
    """The pairs that `state` means, patterns written out.

    Raises InputError unless every pair is an input and an output of the network, of one type.
    """
    if not state:
        return {}
    main = imported.mod["main"]
    body = main.body.body
    returned = list(body.fields) if isinstance(body, relax.Tuple) else [body]
    inputs = dict(zip(imported.input_names, main.params[: num_inputs(main)], strict=True))
    outputs = dict(zip(imported.output_names, returned, strict=True))
    state = written_out(state, outputs, inputs)
    for made, read in state.items():
        _require_known(read, inputs, "input")
        if made != read:
            _require_known(made, outputs, "output")
            if outputs[made].same_as(inputs[read]):
                raise InputError(
                    f'state: the output "{made}" is the input "{read}" itself, which would never change: name the input twice, '
                    f'"{read}={read}", if it shall stay'
                )
        kept = inputs[read]
        has, wanted = (TensorType(shape(one), dtype(one)) for one in (outputs.get(made, kept), kept))
        if wanted != has:
            becomes = f'the output "{made}" is {has}, the input "{read}" that it becomes is {wanted}'
            raise InputError(f"state: {becomes}: they must agree")
        if not wanted.nbytes:
            raise InputError(f'state: the input "{read}" is {wanted}, which holds nothing')
    return state


def changing(state: Mapping[str, str]) -> dict[str, str]:
    """The pairs of an output and an input; an input with its own name stays as it was set."""
    return {made: read for made, read in state.items() if made != read}


def written_out(state: Mapping[str, str], outputs: Collection[str], inputs: Collection[str] = ()) -> dict[str, str]:
    """Pairs of names in the place of patterns; names that are given as they are count before patterns."""
    pairs = {made: read for made, read in state.items() if _ANY not in made or made in outputs}
    for made, read in state.items():
        if made in pairs:
            continue
        before, behind = made.split(_ANY)
        what, known = ("input", inputs) if made == read else ("output", outputs)
        found = [
            name for name in known
            if name.startswith(before) and name.endswith(behind) and len(name) > len(before) + len(behind)
        ]  # fmt: skip
        if not found:
            raise InputError(f'state: the network has no {what} that matches "{made}"; there are {", ".join(known)}')
        for name in found:
            part = name[len(before) : len(name) - len(behind)]
            if name not in state:
                _add(pairs, name, read.replace(_ANY, part))
    return pairs


def _add(pairs: dict[str, str], made: str, read: str) -> None:
    if pairs.get(made, read) != read:
        raise InputError(f'state: the output "{made}" would become two inputs, "{pairs[made]}" and "{read}"')
    if pairs.get(made) != read and read in pairs.values():
        raise InputError(f'state: two outputs would become the input "{read}", "{made}" is one of them')
    pairs[made] = read


def _require_known(name: str, known: Mapping[str, object], what: str) -> None:
    if name not in known:
        raise InputError(f'state: the network has no {what} "{name}"; there are {", ".join(known)}')
