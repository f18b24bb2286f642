"""One network in a process of its own; `benchmarks.scenarios.servers.Processes` starts it."""

from __future__ import annotations

import json
import sys

import flexcomp
from benchmarks.scenarios.servers import of
from benchmarks.scenarios.tasks import example


def main() -> None:
    """Say "done" when the network is open, and behind every inference that a line asks for."""
    facts = json.loads(sys.argv[1])
    task, files = of(facts)
    with flexcomp.load(files.library(task), facts["budget"], weights=files.weights(task), **files.options) as session:
        inputs = example(session.inputs)
        print("done", flush=True)
        for _ in sys.stdin:
            session.run(inputs)
            print("done", flush=True)


if __name__ == "__main__":
    main()
