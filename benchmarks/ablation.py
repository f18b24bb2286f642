"""What each idea of the planner and the runtime is worth: the ladder with one of them taken away at a time.

    python -m benchmarks.ablation [NETWORK] [--storage 718e6] [--png ablation.png]

Rows: all of it; without preloading; without pinning; without static planning; without direct I/O; without
everything but slicing (`on_demand`). After FlexNN, section 5.5, and SwapNet, section 8.3.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks import models
from benchmarks.ladder import Point, medium, rungs, show
from flexcomp.device import default_profile
from flexcomp.errors import BudgetError
from flexcomp.target import resolve_target

# label → strategy, and whether reads go through the page cache
VARIANTS = {
    "flexcomp": ("best", False),
    "without preloading": ("without_preloading", False),
    "without pinning": ("without_pinning", False),
    "without static planning": ("without_static_planning", False),
    "without direct I/O": ("best", True),
    "on demand": ("on_demand", False),
}


def measure(name: str, storage: str, folder: Path, threads: int, repeat: int) -> dict[str, list[Point]]:
    """The rungs of every variant; a variant that cannot be planned has none."""
    network, where = models.load(name), medium(storage, folder)
    profile = default_profile(resolve_target("native").vector_width)
    found: dict[str, list[Point]] = {}
    compute = None
    for label, (strategy, buffered) in VARIANTS.items():
        found[label] = []
        try:
            for point in rungs(network, where, strategy, profile, threads, repeat, compute, buffered):
                compute = point.compute_ms
                found[label].append(point)
                show(point)
        except BudgetError as error:
            print(f"{label}: {error}")
    return found


def draw(found: dict[str, list[Point]], path: Path) -> None:
    """Latency over budget, one line for each variant."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    for label, points in found.items():
        axes.plot([p.budget_bytes / 2**20 for p in points], [p.measured_ms for p in points], marker="o", label=label)
    axes.set(xscale="log", xlabel="budget in MiB", ylabel="latency in ms")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150, bbox_inches="tight")
    pyplot.close(figure)


def main() -> None:
    """Measure one network, print the table and draw it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", default="mobilenet_v2", metavar="NETWORK", choices=models.NAMES)
    parser.add_argument("--storage", default="718e6", help="as for benchmarks.ladder")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--dir", type=Path, default=Path(), help="a folder on the disk to measure")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--png", type=Path, help="draw latency over budget")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        found = measure(args.name, args.storage, Path(folder), args.threads, args.repeat)
    if args.json:
        args.json.write_text(json.dumps({k: [asdict(p) for p in v] for k, v in found.items()}, indent=1))
    if args.png:
        draw(found, args.png)


if __name__ == "__main__":
    main()
