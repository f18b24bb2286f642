"""Tests of one network each that share builds: most of what a small network's build does takes as long for some 24 of them.

    @pytest.mark.parametrize("kind", ["Relu", "Neg"])
    @jointly(kernels="fastest")
    def test_one_operator(kind):
        found = yield network(kind), {"x": x}
        np.testing.assert_allclose(found["y"], ...)

A test yields a network and its inputs, and gets the outputs; or a list of such pairs, and gets a list. Networks of a file whose
tests have the same options share libraries. Without a target LLVM does not optimise their kernels. Where such a library fails,
each test has one of its own.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import flexcomp
from flexcomp.frontend import load_model
from flexcomp.program import Layer, nodes
from tests import joint
from tests.conformance.verdict import UNOPTIMISED

_MOST = 24  # networks of a library
Given = tuple[onnx.ModelProto, Mapping[str, np.ndarray]]


class Found(dict):
    """Outputs by name, in the first budget."""

    runs: list[dict[str, np.ndarray]]  # outputs of every inference
    layers: list[Layer]  # with the kernels of the largest budget


def jointly(budgets: Sequence[str | None] = (), runs: int = 1, **options: Any) -> Callable:
    """A decorator: networks are built with `options` and run in `budgets`, so many times each. Without budgets the only plan has
    everything in memory."""

    def decorate(test: Callable[..., Generator]) -> Callable:
        @wraps(test)
        def run(request: pytest.FixtureRequest, **parameters: Any) -> None:
            generator, found = _batch_of(request.node).take(request.node.nodeid)
            with pytest.raises(StopIteration):
                generator.send(found)

        own = inspect.signature(test).parameters.values()
        first = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        run.__signature__ = inspect.Signature([first, *own])
        run.joint = repr((budgets, runs, sorted(options.items())))
        run.made, run.find = test, lambda given: together(given, budgets, runs, **options)
        return run

    return decorate


def together(
    given: Sequence[Given], budgets: Sequence[str | None] = (), runs: int = 1, **options: Any
) -> list[Found]:
    """What networks compute that are built as one."""
    marks = [joint.mark(i) for i in range(len(given))]
    models = [_with_nodes_marked(model, mark) for (model, _), mark in zip(given, marks, strict=True)]
    inputs = {mark + name: value for (_, own), mark in zip(given, marks, strict=True) for name, value in own.items()}
    build = joint.build if budgets else joint.resident
    artifact = build([load_model(model) for model in models], models[0], **{"target": UNOPTIMISED} | options)
    inferences = []
    with tempfile.TemporaryDirectory() as folder:
        artifact.export_library(Path(folder) / "joint.so")
        for budget in budgets or (None,):
            with flexcomp.load(Path(folder) / "joint.so", budget) as session:
                inferences += [session.run(inputs) for _ in range(runs)]
    program = artifact.program
    of_nodes = list(zip(program.layers, nodes.read(program), strict=True))
    fastest = [of_nodes[index] for index in sorted({step.layer for step in program.rungs[-1].steps})]
    result = []
    for mark in marks:
        own = [{name.removeprefix(mark): out[name] for name in out if name.startswith(mark)} for out in inferences]
        result.append(Found(own[0]))
        result[-1].runs = own
        result[-1].layers = [layer for layer, node in fastest if (node or "").startswith(mark)]
    return result


class _Batch:
    """Tests of a file with the same options, all begun; networks are built when the first test of a group asks for outputs."""

    def __init__(self, items: Sequence[pytest.Function]) -> None:
        self._find = items[0].function.find
        self._tests: dict[str, tuple[Generator, list[Given], bool]] = {}
        self._found: dict[str, list[Found] | Exception] = {}
        for item in items:
            generator = item.function.made(**(item.callspec.params if hasattr(item, "callspec") else {}))
            given = next(generator)
            self._tests[item.nodeid] = generator, [given] if isinstance(given, tuple) else given, isinstance(given, tuple)

    def take(self, item: str) -> tuple[Generator, Found | list[Found]]:
        """A test that waits for outputs, and these."""
        if item not in self._found:
            self._compute(self._group_of(item))
        generator, _, is_one = self._tests[item]
        found = self._found[item]
        if isinstance(found, Exception):
            raise found
        return generator, found[0] if is_one else found

    def _group_of(self, item: str) -> list[str]:
        """The same tests whichever of them comes first."""
        group: list[str] = []
        for one in self._tests:
            group.append(one)
            if sum(len(self._tests[each][1]) for each in group) >= _MOST:
                if item in group:
                    break
                group = []
        return group

    def _compute(self, group: Sequence[str]) -> None:
        try:
            found = iter(self._find([given for one in group for given in self._tests[one][1]]))
            self._found |= {one: [next(found) for _ in self._tests[one][1]] for one in group}
        except Exception as error:  # of any kind: the test of each network shall fail with its own
            if len(group) == 1:
                self._found[group[0]] = error
            else:
                for one in group:
                    self._compute([one])


_batches: dict[tuple[Path, str], _Batch] = {}


def _batch_of(item: pytest.Function) -> _Batch:
    key = item.path, item.function.joint
    if key not in _batches:
        _batches[key] = _Batch([
            one for one in item.session.items if (one.path, getattr(getattr(one, "function", None), "joint", None)) == key
        ])  # fmt: skip
    return _batches[key]


def _with_nodes_marked(model: onnx.ModelProto, mark: str) -> onnx.ModelProto:
    marked = onnx.ModelProto.FromString(model.SerializeToString())
    for node in marked.graph.node:
        node.name = mark + (node.name or next(name for name in node.output if name))
    return marked
