"""What a pool does when conditions change, as a picture.

    python -m benchmarks.changing a.so b.so c.so -o docs/measurements/pool.png [--budget 200MB] [--seconds 30]

The first models are asked for at even times that keep a lane busy for `--load` of it. After a third of the time the budget
drops by half, after a half the last model is added, after two thirds the first one is asked for three times as often. Shown
are every request's time from its call to its answer, what is held, looked at every millisecond, and the rung of every model.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import flexcomp
from benchmarks.scenarios.tasks import example
from flexcomp.errors import FlexcompError
from flexcomp.runtime import pool_bytes

_COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:purple", "tab:brown")


@dataclass
class Seen:
    """What happened, in seconds from the start."""

    answers: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # (called, ms) by model
    held: list[tuple[float, int, int]] = field(default_factory=list)  # (at, budget, resident over idle)
    rungs: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # (at, part of its ladder)
    events: list[tuple[float, str]] = field(default_factory=list)


class Clients:
    """Threads that ask for one model each, at even times, until the end."""

    def __init__(self, pool: flexcomp.Pool, seen: Seen, inputs: dict[str, dict], begin: float, end: float) -> None:
        self.pool, self.seen, self.inputs, self.begin, self.end = pool, seen, inputs, begin, end
        self.periods: dict[str, float] = {}
        self._threads: list[threading.Thread] = []

    def start(self, name: str, period: float) -> None:
        """Ask for one more model; its period may change."""
        self.periods[name] = period
        self.seen.answers[name] = []
        thread = threading.Thread(target=self._ask, args=(name, self.inputs[name]))
        self._threads.append(thread)
        thread.start()

    def join(self) -> None:
        """Wait for the end."""
        for thread in self._threads:
            thread.join()

    def _ask(self, name: str, inputs: dict) -> None:
        at = time.perf_counter()
        while at < self.end:
            time.sleep(max(0.0, at - time.perf_counter()))
            called = time.perf_counter()
            try:
                future = self.pool.submit(name, inputs)
            except FlexcompError:
                pass
            else:
                future.add_done_callback(lambda _, c=called: self._note(name, c))
            at += self.periods[name]

    def _note(self, name: str, called: float) -> None:
        self.seen.answers[name].append((called - self.begin, 1e3 * (time.perf_counter() - called)))


def observe(libraries: Sequence[Path], budget: int, seconds: float, load: float) -> Seen:
    """Run it."""
    seen = Seen()
    first, last = libraries[:-1], libraries[-1]
    with flexcomp.Pool(10**12) as pool:  # what libraries, inputs and Python take is no part of what is held
        for library in libraries:
            pool.add(library.stem, library)
        inputs = {name: example(pool.inputs(name)) for name in pool.models}
        for name in inputs:
            pool.run(name, inputs[name])
    with flexcomp.Pool(budget) as pool:
        for library in first:
            pool.add(library.stem, library)
        predicted = {model.name: model.predicted_ms * 1e-3 for model in pool.plan().models}
        statm = Path("/proc/self/statm")
        idle = int(statm.read_text().split()[1]) * 4096
        begin = time.perf_counter()
        in_force, ended = [budget], threading.Event()

        def look() -> None:
            while not ended.is_set():
                at, resident = time.perf_counter() - begin, int(statm.read_text().split()[1]) * 4096 - idle
                seen.held.append((at, in_force[0], resident))
                time.sleep(1e-3)

        def shares() -> None:
            while not ended.is_set():
                for model in pool.plan().models:
                    part = (model.rung + 1) / model.rungs
                    seen.rungs.setdefault(model.name, []).append((time.perf_counter() - begin, part))
                time.sleep(0.02)

        watching = [threading.Thread(target=look), threading.Thread(target=shares)]
        for thread in watching:
            thread.start()
        clients = Clients(pool, seen, inputs, begin, begin + seconds)
        for name, alone in predicted.items():
            clients.start(name, len(libraries) * alone / load)

        def wait(part: float, event: str) -> None:
            time.sleep(max(0.0, begin + part * seconds - time.perf_counter()))
            seen.events.append((time.perf_counter() - begin, event))

        wait(1 / 3, "the budget drops by half")
        pool.set_budget(budget // 2)
        in_force[0] = budget // 2
        wait(1 / 2, f"{last.stem} is added")
        pool.add(last.stem, last)
        added = next(model for model in pool.plan().models if model.name == last.stem)
        clients.start(last.stem, len(libraries) * added.predicted_ms * 1e-3 / load)
        wait(2 / 3, f"{first[0].stem} three times as often")
        clients.periods[first[0].stem] /= 3
        clients.join()
        time.sleep(0.2)
        ended.set()
        for thread in watching:
            thread.join()
    return seen


def draw(seen: Seen, path: Path) -> None:
    """Three fields over time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, middle, below) = pyplot.subplots(3, 1, figsize=(11, 8), sharex=True, layout="constrained")
    for (name, answers), colour in zip(seen.answers.items(), _COLOURS, strict=False):
        above.plot(*zip(*sorted(answers), strict=True), ".", markersize=4, color=colour, label=name)
        below.step(*zip(*seen.rungs[name], strict=True), where="post", color=colour, label=name)
    times, budgets, resident = zip(*seen.held, strict=True)
    middle.step(times, [nbytes / 1e6 for nbytes in budgets], where="post", color="black", label="budget")
    middle.plot(times, [nbytes / 1e6 for nbytes in resident], color="tab:red", linewidth=1, label="held, over idle")
    above.set(ylabel="ms from call to answer", yscale="log")
    middle.set(ylabel="MB", ylim=(0, None))
    below.set(ylabel="rung, as a part of the ladder", xlabel="seconds", ylim=(0, 1.05))
    for axis in (above, middle, below):
        axis.legend(loc="upper left", fontsize=8)
        for at, event in seen.events:
            axis.axvline(at, color="gray", linewidth=0.8, linestyle=":")
            if axis is above:
                axis.annotate(event, (at, 1.01), xycoords=("data", "axes fraction"), fontsize=8)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", type=Path, nargs="+")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--budget", default="200MB")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--load", type=float, default=0.5)
    asked = parser.parse_args()
    seen = observe(asked.libraries, pool_bytes(asked.budget), asked.seconds, asked.load)
    draw(seen, asked.output)
    for name, answers in seen.answers.items():
        print(f"{name}: {len(answers)} answers")
    over = max(resident - budget for _, budget, resident in seen.held)
    print(f"at worst {over / 2**20:.2f} MiB over the budget")


if __name__ == "__main__":
    main()
