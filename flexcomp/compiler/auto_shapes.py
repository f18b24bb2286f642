"""Types that are chosen by their errors in a library of several shapes: in its first shape, and tried in all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from flexcomp.errors import InputError
from flexcomp.network import Network
from flexcomp.program import Port

from .artifact import Artifact
from .calibration import Inputs, fits, inputs_of
from .weight_trial import Trial
from .weight_types import WeightTypes

InOrder = Callable[[Sequence[str]], WeightTypes]


class OtherShape:
    """The network in a shape in which types are not chosen. `in_order` makes types of a choice."""

    def __init__(
        self, said: str, lower: Callable[[WeightTypes], Network], compiled: Callable[[Network], Artifact], in_order: InOrder
    ) -> None:
        self._said, self._lower, self._compiled, self._in_order = said, lower, compiled, in_order
        self._trial: Trial | None = None

    def open(self, wide: WeightTypes, nodes: Sequence[str | None], given: Sequence[Inputs] | None, folder: Path) -> None:
        """Compare with the network of the types `wide`, on those of the inputs `given` that have this shape.

        `nodes` are those of the layers that types are chosen for. Raises InputError where this shape has others, or no inputs.
        """
        network = self._lower(wide)
        if wide.nodes != list(nodes):
            raise InputError(
                f"types are chosen for all shapes together, and {self._said} has other layers with weights than the first shape: "
                "give types by patterns of ONNX nodes' names"
            )
        inputs = inputs_of(in_shape(given, network.base.inputs, self._said), network.base.inputs)
        folder.mkdir()
        self._trial = Trial(self._compiled(network), folder, inputs)

    def error_of(self, types: Sequence[str]) -> float:
        """The largest difference of its outputs with these types of layers."""
        assert self._trial is not None, "open was not called"
        return self._trial.error_of(self._compiled(self._lower(self._in_order(types))))


def in_shape(given: Sequence[Inputs] | None, ports: Sequence[Port], said: str) -> Sequence[Inputs] | None:
    """The sets of inputs that a network with these `ports` takes, which are those of the shape `said`. Raises InputError."""
    if given is None:
        return None
    found = [one for one in given if fits(one, ports)]
    if not found:
        raise InputError(f"no calibration inputs have the shape {said}: errors are measured in every shape, so give each some")
    return found
