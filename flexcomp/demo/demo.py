"""The demonstration: networks under four budgets, checked against ONNX Runtime. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx

import flexcomp
from flexcomp.compiler.probing import usually
from flexcomp.demo import compare, zoo
from flexcomp.report import draw_plan, select_rung

_WARMUP, _REPEAT = 3, 9  # the first inferences read and prepare the weights that stay


@dataclass(frozen=True)
class Row:
    """One line of the demo's table."""

    network: str
    measurement: compare.Measurement
    picture: Path

    @property
    def agrees(self) -> bool:
        """Whether the outputs are those of ONNX Runtime."""
        return self.measurement.error <= compare.TOLERANCE


def run_network(
    name: str, folder: Path, progress: Callable[[str, int, int], None] | None = None, seed: int = 0
) -> Iterator[Row]:
    """Write the network `name` and its library into `folder`, run it at each budget, and draw each plan."""
    folder.mkdir(parents=True, exist_ok=True)
    model = zoo.load(name, seed)
    inputs = zoo.example_input(model, seed)
    library = folder / f"{name}.so"
    onnx.save(model, folder / f"{name}.onnx")  # for further use
    artifact = flexcomp.build(model, progress=progress, probe=folder if usually() else False)
    artifact.export_library(str(library))
    expected = compare.reference(model, inputs)
    for label, nbytes in compare.budgets(artifact.program).items():
        picture = folder / f"{name}-{label.replace(' %', 'percent')}.png"
        draw_plan(artifact.program, select_rung(artifact.program, nbytes), picture)
        yield Row(name, compare.measure(library, label, nbytes, inputs, expected, warmup=_WARMUP, repeat=_REPEAT), picture)
