"""Stored bytes of networks, next to their initialisers: is each weight in the file, and in memory, once?

    python -m benchmarks.lab.stored [NETWORK, GROUP or FILE.onnx …]

NETWORK and GROUP are of `benchmarks.models` (default: all), and the decoders of `benchmarks.networks.decoding`. Networks are
lowered as a build lowers them, but not compiled. Reported are the bytes of all different initialisers and constants, and, over
these, those of the weights file, and those that the first inference reads with everything resident in the form of the file.
The exit status is 1 if a file is larger than its initialisers by more than 5 %, alignment apart, or if more is read; neighbours
may read the page that they share.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx
from onnx import numpy_helper

from benchmarks import models
from benchmarks.networks.decoding import gpt2_decoder
from benchmarks.results import Results, Table, json_option
from flexcomp import plan
from flexcomp.compiler.builder import prepare
from flexcomp.compiler.options import options_of
from flexcomp.errors import FlexcompError

MOST = 1.05  # bytes of the file, over those of the initialisers
_ALIGNMENT = 1 << 16  # bytes: of pages and panels that are not full
_DECODERS = {"gpt2_prompt": partial(gpt2_decoder, 16, 256), "gpt2_token": partial(gpt2_decoder, 1, 256)}


@dataclass(frozen=True)
class Stored:
    """Bytes of a network's weights."""

    initialisers: int  # different ones
    file: int
    read: int  # in the first inference, with everything resident
    reads: int  # each of whole pages

    @property
    def once(self) -> bool:
        """Whether each is stored and read once."""
        most = MOST * self.initialisers + _ALIGNMENT
        return self.file <= most and self.read <= most + self.reads * plan.PAGE


COLUMNS = {
    "network": "", "initialisers, bytes": ",d", "file, bytes": ",d", "file": ".3f", "resident": ".3f", "note": ""
}  # fmt: skip


def stored(model: onnx.ModelProto | str, input_shapes=None, **options) -> Stored:
    """How a network's weights are stored; options are those of `flexcomp.build`. Raises FlexcompError."""
    planning = prepare(model, options=options_of(input_shapes=input_shapes, threads=1, **options)).planning
    planned = plan.resident_plan(planning.whole[0].problem)
    given = onnx.load(model) if isinstance(model, str) else model
    read = [segment.nbytes for segment in planned.segments]
    return Stored(distinct_nbytes(given), planning.network.weights_nbytes, sum(read), len(read))


def distinct_nbytes(model: onnx.ModelProto) -> int:
    """Bytes of all different initialisers and constants of a model, those of its branches and functions among them."""
    seen: dict[bytes, int] = {}
    for tensor in _tensors(model):
        data = numpy_helper.to_array(tensor).tobytes()
        seen[hashlib.sha256(data).digest()] = len(data)
    return sum(seen.values())


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    ahead = [model.graph, *model.functions]
    while ahead:
        graph = ahead.pop()
        yield from getattr(graph, "initializer", ())
        for node in graph.node:
            for attribute in node.attribute:
                ahead += [attribute.g] if attribute.HasField("g") else []
                yield from [attribute.t] if attribute.HasField("t") else []


def main() -> int:
    """Print a line for each network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NETWORK, GROUP or FILE.onnx")
    json_option(parser, "stored")
    args = parser.parse_args()
    names = [name for given in args.names for name in models.GROUPS.get(given, (given,))] or [*models.NAMES, *_DECODERS]
    known = {*models.NAMES, *_DECODERS}
    if strange := [name for name in names if name not in known and not Path(name).is_file()]:
        parser.error(f"no network {strange[0]!r}; there are {', '.join(sorted(known))}")
    results, table, failed = Results.begin("benchmarks.lab.stored"), Table(COLUMNS), 0
    for name in names:
        try:
            found = _of(name)
        except FlexcompError as error:
            table.add(name, *[None] * 4, str(error))
            failed += 1
            continue
        ratios = (nbytes / found.initialisers for nbytes in (found.file, found.read))
        table.add(Path(name).name, found.initialisers, found.file, *ratios, "" if found.once else "more than once")
        failed += not found.once
    results.write(args.json, [table])
    return int(failed > 0)


def _of(name: str) -> Stored:
    if name in _DECODERS:
        return stored(_DECODERS[name]())
    if name not in models.NAMES:
        return stored(name)
    network = models.load(name)
    return stored(network.model, network.input_shapes)


if __name__ == "__main__":
    sys.exit(main())
