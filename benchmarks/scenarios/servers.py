"""Ways to serve several networks: ours, and what others do, all on the same runtime.

A server is given tasks and a number of bytes, answers one request at a time, and holds what it holds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import flexcomp
from benchmarks.scenarios.tasks import Files, Task, example
from flexcomp.runtime import Session, shares


class Shared:
    """A pool: working memory in common, shares by an exact knapsack."""

    def __init__(self, tasks: Sequence[Task], files: Files, budget: int) -> None:
        self.pool = flexcomp.Pool(budget)
        for task in tasks:
            self.pool.add(task.name, files.library(task), task.urgency, 1.0, weights=files.weights(task), **files.options)
        self._inputs = {task.name: example(self.pool.inputs(task.name)) for task in tasks}

    def run(self, name: str) -> None:
        """One inference."""
        self.pool.run(name, self._inputs[name])

    def submit(self, name: str, deadline_ms: float) -> Future:
        """One inference when its turn comes."""
        return self.pool.submit(name, self._inputs[name], deadline_ms=deadline_ms, late="run")

    def close(self) -> None:
        """Give everything back."""
        self.pool.close()


class _InTurn:
    """Requests one after the other, as they come."""

    run: Callable[[str], None]  # one inference

    def __init__(self) -> None:
        self._turns = ThreadPoolExecutor(1)

    def submit(self, name: str, deadline_ms: float) -> Future:
        """One inference when those before it have ended."""
        return self._turns.submit(self.run, name)

    def close(self) -> None:
        """Wait for what runs."""
        self._turns.shutdown()


class Apart(_InTurn):
    """SwapNet's rule: bytes of its own for every network."""

    def __init__(self, tasks: Sequence[Task], files: Files, budget: int) -> None:
        super().__init__()
        self._sessions = {
            task.name: flexcomp.load(files.library(task), own, weights=files.weights(task), **files.options)
            for task, own in zip(tasks, swapnet_bytes(tasks, files, budget), strict=True)
        }
        self._inputs = {name: example(session.inputs) for name, session in self._sessions.items()}

    def run(self, name: str) -> None:
        """One inference."""
        self._sessions[name].run(self._inputs[name])

    def close(self) -> None:
        """Close all sessions."""
        super().close()
        for session in self._sessions.values():
            session.close()


class Everything(_InTurn):
    """All networks as fast as they get, whatever that takes: what a share is to be compared with."""

    def __init__(self, tasks: Sequence[Task], files: Files, budget: int) -> None:
        super().__init__()
        self._sessions = {
            task.name: flexcomp.load(files.library(task), "all", weights=files.weights(task), **files.options) for task in tasks
        }
        self._inputs = {name: example(session.inputs) for name, session in self._sessions.items()}

    def run(self, name: str) -> None:
        """One inference."""
        self._sessions[name].run(self._inputs[name])


class Evicting(_InTurn):
    """Whole networks, as fast as they get alone in the budget; the ones not used for longest make room."""

    def __init__(self, tasks: Sequence[Task], files: Files, budget: int) -> None:
        super().__init__()
        self._tasks, self._files, self._budget = {task.name: task for task in tasks}, files, budget
        self._open: OrderedDict[str, tuple[Session, int]] = OrderedDict()
        self._inputs: dict[str, dict[str, Any]] = {}
        ladders = files.ladders(tasks)
        self._rungs = {
            task.name: min((r for r in ladder if r.nbytes <= budget), key=lambda r: (r.predicted_s, r.nbytes))
            for task, ladder in zip(tasks, ladders, strict=True)
        }

    def run(self, name: str) -> None:
        """One inference, of a network that may have to be loaded."""
        if name in self._open:
            self._open.move_to_end(name)
        else:
            needs = self._rungs[name].nbytes
            while self._open and sum(nbytes for _, nbytes in self._open.values()) + needs > self._budget:
                self._open.popitem(last=False)[1][0].close()
            task = self._tasks[name]
            session = flexcomp.load(
                self._files.library(task), needs, weights=self._files.weights(task), **self._files.options
            )
            self._open[name] = session, needs
            if name not in self._inputs:
                self._inputs[name] = example(session.inputs)
        self._open[name][0].run(self._inputs[name])


class Processes:
    """A process for every network, with bytes of its own by SwapNet's rule: they compute at the same time."""

    def __init__(self, tasks: Sequence[Task], files: Files, budget: int) -> None:
        self._turns = {task.name: ThreadPoolExecutor(1) for task in tasks}
        self.children: dict[str, subprocess.Popen] = {}
        for task, own in zip(tasks, swapnet_bytes(tasks, files, budget), strict=True):
            asked = {"task": asdict(task), "files": {key: str(value) for key, value in asdict(files).items()}, "budget": own}
            self.children[task.name] = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.scenarios.child", json.dumps(asked)], text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
            self._answer(task.name)

    def run(self, name: str) -> None:
        """One inference."""
        self.children[name].stdin.write("run\n")
        self.children[name].stdin.flush()
        self._answer(name)

    def submit(self, name: str, deadline_ms: float) -> Future:
        """One inference when those of the same network have ended."""
        return self._turns[name].submit(self.run, name)

    def close(self) -> None:
        """End all processes."""
        for turns in self._turns.values():
            turns.shutdown()
        for child in self.children.values():
            child.stdin.close()
            child.wait()

    def _answer(self, name: str) -> None:
        if self.children[name].stdout.readline() != "done\n":
            raise RuntimeError(f"the process of {name} has ended")


SERVERS = {"shared": Shared, "apart": Apart, "processes": Processes, "evicting": Evicting, "everything": Everything}


def swapnet_bytes(tasks: Sequence[Task], files: Files, budget: int) -> list[int]:
    """What each task gets by SwapNet's rule. Raises BudgetError where that is too little for one of them."""
    ladders = files.ladders(tasks)
    found = shares(ladders, [task.urgency for task in tasks], budget, strategy="swapnet")
    return [ladder[rung].nbytes for ladder, rung in zip(ladders, found.rungs, strict=True)]


def of(facts: Mapping[str, Any]) -> tuple[Task, Files]:
    """What `Processes` told a child."""
    from pathlib import Path

    files = facts["files"]
    return Task(**facts["task"]), Files(Path(files["folder"]), Path(files["weights_folder"]), files["storage"])
