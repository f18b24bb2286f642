"""What becomes of graphs: each is drawn, asked of the oracle, imported, built together with others, run and compared."""

from __future__ import annotations

import random
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

import flexcomp
from flexcomp.errors import FlexcompError
from flexcomp.frontend import Imported, load_model
from flexcomp.passes.ir import bindings
from tests import joint
from tests.fuzz.models import oracle
from tests.fuzz.models.doubts import doubt
from tests.fuzz.models.draw import OPSETS, draw
from tests.fuzz.models.mutate import all_cases, mutate

TOGETHER = 32  # graphs in one build
_MUTATED = 0.55  # of the graphs
GOOD = ("right", "refused", "refused though valid", "built without an oracle", "disputed")
BAD = ("wrong", "crashed")


@dataclass(frozen=True)
class Subject:
    """A graph with its number."""

    index: int
    model: onnx.ModelProto
    inputs: dict[str, np.ndarray]


@dataclass(frozen=True)
class Verdict:
    """What became of a graph."""

    index: int
    outcome: str
    reason: str = ""


@dataclass(frozen=True)
class Candidate:
    """A graph that was imported, and its results, if an oracle knows them."""

    subject: Subject
    truth: oracle.Truth | None
    imported: Imported


Note = Callable[[Sequence[int], str], None]  # numbers of graphs, and what is done with them from now on


def subject(seed: int, index: int, kept: Path) -> Subject:
    """The graph of this number."""
    rng = random.Random(seed * 1_000_003 + index)
    if rng.random() < _MUTATED:
        model, inputs = mutate(rng, rng.choice(all_cases_once(kept)))
        return Subject(index, model, inputs)
    # Graphs that are drawn in a row are of one opset: they can be built together.
    graph = draw(rng, random.Random(seed * 7919 + index // 64).choice(OPSETS))
    model = graph.model()
    for node in model.graph.node:  # a refusal of graphs that are built together says whose node it is
        node.name = f"g{index}{node.name}"
    return Subject(index, model, graph.inputs)


_kept_cases: list = []


def all_cases_once(kept: Path) -> tuple:
    """ONNX's node tests, read once in a process."""
    if not _kept_cases:
        _kept_cases.append(all_cases(kept))
    return _kept_cases[0]


def judge(
    seed: int, indices: Sequence[int], kept: Path, note: Note, alone: bool = False, oracles: Sequence[str] = oracle.ALL
) -> Iterator[Verdict]:
    """Verdicts on graphs, in any order. With `alone` every graph is built for itself."""
    candidates: list[Candidate] = []
    for index in indices:
        note([index], "draw")
        each = subject(seed, index, kept)
        truth = None
        for name in oracles:
            if truth is None:
                note([index], name)
                truth = oracle.ask(name, each.model, each.inputs)
        note([index], "import")
        found: list[Imported] = []
        refusal = _attempt(lambda found=found, each=each: found.append(load_model(each.model)))
        if refusal is None:
            candidates.append(Candidate(each, truth, found[0]))
        else:
            yield _refused(each, truth, refusal)
    for known in (True, False):
        group = [each for each in candidates if (each.truth is not None) is known]
        for start in range(0, len(group), 1 if alone else TOGETHER):
            yield from build(group[start : start + (1 if alone else TOGETHER)], note)


@dataclass(frozen=True)
class _Refusal:
    ours: bool
    words: str


def _attempt(action: Callable[[], object]) -> _Refusal | None:
    try:
        action()
    except FlexcompError as error:
        return _Refusal(True, f"{type(error).__name__}: {error}")
    except MemoryError:
        return _Refusal(True, "MemoryError")  # beyond the limit of the fuzzer's processes
    except Exception as error:  # what users must never see: seen and counted here
        place = traceback.extract_tb(error.__traceback__)
        own = [f for f in place if "/site-packages/" not in f.filename] or place
        lines = [line for line in str(error).splitlines() if line.strip()] or [""]
        at = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
        return _Refusal(False, f"{type(error).__name__} at {at}: {lines[-1].strip()[:300]}")
    return None


def _refused(each: Subject, truth: oracle.Truth | None, refusal: _Refusal) -> Verdict:
    if not refusal.ours:
        return Verdict(each.index, "crashed", refusal.words)
    return Verdict(each.index, "refused" if truth is None else "refused though valid", refusal.words)


def build(group: list[Candidate], note: Note) -> Iterator[Verdict]:
    """Build a group as one; where that fails, it is parted."""
    indices = [each.subject.index for each in group]
    note(indices, "build")
    built: list = []
    refusal = _attempt(lambda: built.append(_built(group)))
    if refusal is not None and len(group) > 1:
        for part in _parted(group, refusal):
            yield from build(part, note)
        return
    if refusal is not None:
        yield _refused(group[0].subject, group[0].truth, refusal)
        return
    marked = [(joint.mark(i), each) for i, each in enumerate(group)]
    inputs = {mark + name: value for mark, each in marked for name, value in each.subject.inputs.items()}
    found: dict[str, dict] = {}

    def run() -> None:
        with built[0].session("all") as session:
            found["all"] = session.run(inputs)
            session.set_budget("min")
            found["min"] = session.run(inputs)

    note(indices, "run")
    refusal = _attempt(run)
    if refusal is not None and len(group) > 1:
        for part in _parted(group, refusal):
            yield from build(part, note)
        return
    for mark, each in marked:
        if refusal is not None:
            of_values = refusal.ours and (each.truth is None or "is outside of" in refusal.words)  # an index that is an input
            outcome = "built without an oracle" if of_values else "wrong" if refusal.ours else "crashed"
            yield Verdict(each.subject.index, outcome, refusal.words)
        elif each.truth is None:
            yield Verdict(each.subject.index, "built without an oracle")
        else:
            outputs = {budget: {n: all_of[mark + n] for n in each.truth.outputs} for budget, all_of in found.items()}
            yield _compare(each.subject, each.truth, outputs)


def _parted(group: list[Candidate], refusal: _Refusal) -> list[list[Candidate]]:
    """Graphs with a node of the name that is refused, and the others; halves where the name tells nothing."""
    named = re.search(r"node '([^']*)'", refusal.words)
    parts: tuple[list[Candidate], list[Candidate]] = [], []
    for each in group:
        parts[bool(named and named[1] in _names(each))].append(each)
    if all(parts):
        return list(parts)
    middle = len(group) // 2
    return [group[:middle], group[middle:]]


def _names(each: Candidate) -> set[str]:
    return {bound.var.name for bound in bindings(each.imported.mod["main"])}


def _built(group: list[Candidate]) -> flexcomp.Artifact:
    """What a user's build makes of the group, which is imported already."""
    kernels = "auto" if group[0].subject.index % 3 == 0 else "smallest"
    return joint.build([each.imported for each in group], group[0].subject.model, kernels=kernels)


def _compare(each: Subject, truth: oracle.Truth, found: dict[str, oracle.Outputs]) -> Verdict:
    for budget, outputs in found.items():
        words = oracle.difference(truth.outputs, outputs)
        if not words:
            continue
        if reason := doubt(each.model, each.inputs, truth, outputs):
            return Verdict(each.index, "disputed", f"{reason}: {words}")
        return Verdict(each.index, "wrong", f"{truth.by}, budget {budget}: {words}")
    return Verdict(each.index, "right")
