"""`build(state=…)`: which outputs of a network become which inputs of its next inference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import relax

from flexcomp.errors import InputError
from flexcomp.frontend import Imported
from flexcomp.passes.ir import dtype, num_inputs, shape
from flexcomp.program import TensorType


def checked_state(given: Any) -> dict[str, str]:
    """Inputs by output; None is no state. Raises InputError for anything but names, each once."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for pair in given.items() for name in pair):
        raise InputError(f'state must be a dict of inputs by output, such as {{"h_out": "h_in"}}, not {given!r}')
    makers: dict[str, str] = {}
    for made, read in given.items():
        if read in makers:
            raise InputError(f'state: two outputs, "{makers[read]}" and "{made}", would become the input "{read}"')
        makers[read] = made
    return dict(given)


def require_states(state: Mapping[str, str], imported: Imported) -> None:
    """Raise InputError unless every pair is an input and an output of the network, of one type."""
    if not state:
        return
    main = imported.mod["main"]
    body = main.body.body
    returned = list(body.fields) if isinstance(body, relax.Tuple) else [body]
    inputs = dict(zip(imported.input_names, main.params[: num_inputs(main)], strict=True))
    outputs = dict(zip(imported.output_names, returned, strict=True))
    for made, read in state.items():
        _require_known(made, outputs, "output")
        _require_known(read, inputs, "input")
        if outputs[made].same_as(inputs[read]):
            raise InputError(f'state: the output "{made}" is the input "{read}" itself, which would never change')
        has, wanted = (TensorType(shape(one), dtype(one)) for one in (outputs[made], inputs[read]))
        if wanted != has:
            becomes = f'the output "{made}" is {has}, the input "{read}" that it becomes is {wanted}'
            raise InputError(f"state: {becomes}: they must agree")
        if not wanted.nbytes:
            raise InputError(f'state: the input "{read}" is {wanted}, which holds nothing')


def _require_known(name: str, known: Mapping[str, object], what: str) -> None:
    if name not in known:
        raise InputError(f'state: the network has no {what} "{name}"; there are {", ".join(known)}')
