"""What each idea of the planner and the runtime is worth: the ladder with one of them taken away at a time.

    python -m benchmarks.ablation build DIR [NETWORK] [--storage 718e6]
    python -m benchmarks.ablation measure DIR [NETWORK] [--storage 718e6] [--png ablation.png]
    python -m benchmarks.ablation all DIR

Columns: all of it; without preloading; without pinning; without static planning; without direct I/O; without
everything but slicing (`on_demand`). After FlexNN, section 5.5, and SwapNet, section 8.3. `measure` wants a quiet machine.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks import models
from benchmarks.ladder import build, latencies
from benchmarks.storage import media
from flexcomp.compiler import probed_profile
from flexcomp.device.profile import load_profile
from flexcomp.device.target import resolve_target

# label → strategy, and whether reads go through the page cache
VARIANTS = {
    "flexcomp": ("best", False),
    "without preloading": ("without_preloading", False),
    "without pinning": ("without_pinning", False),
    "without static planning": ("without_static_planning", False),
    "without direct I/O": ("best", True),
    "on demand": ("on_demand", False),
}

Found = dict[str, dict[int, float]]  # label → budget in bytes → milliseconds


def measure(name: str, folder: Path, storage: str, threads: int, seconds: float) -> Found:
    """Median latencies; a variant has no entry for budgets in which it cannot be planned."""
    return {
        label: latencies(name, folder, storage, strategy, threads, seconds, buffered)
        for label, (strategy, buffered) in VARIANTS.items()
    }


def show(found: Found) -> None:
    """The table, in Markdown."""
    print("| MiB | " + " | ".join(found) + " |")
    print("| --- |" + " --- |" * len(found))
    for budget in sorted({budget for points in found.values() for budget in points}):
        cells = (f"{points[budget]:.1f}" if budget in points else "" for points in found.values())
        print(f"| {budget / 2**20:.2f} | " + " | ".join(cells) + " |")


def draw(found: Found, path: Path) -> None:
    """Latency over budget, one line for each variant."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    for label, points in found.items():
        axes.plot([budget / 2**20 for budget in points], list(points.values()), marker="o", label=label)
    axes.set(xscale="log", xlabel="budget in MiB", ylabel="latency in ms")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150, bbox_inches="tight")
    pyplot.close(figure)


def main() -> None:
    """Build, measure, or both; print the table and draw it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("build", "measure", "all"))
    parser.add_argument("dir", type=Path, help="a folder on the disk to measure")
    parser.add_argument("name", nargs="?", default="mobilenet_v2", metavar="NETWORK", choices=models.NAMES)
    parser.add_argument("--storage", default="718e6", help="as for benchmarks.ladder, but tmpfs")
    parser.add_argument("--rates", default="", help="as for benchmarks.ladder")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", type=Path, help="a profile by `flexcomp profile`")
    parser.add_argument("--seconds", type=float, default=0.5, help="for which a rung is measured")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--png", type=Path, help="draw latency over budget")
    args = parser.parse_args()
    if args.storage == "tmpfs":
        parser.error("the page cache is what tmpfs is made of: take disk or a number")
    args.dir.mkdir(parents=True, exist_ok=True)
    if args.action != "measure":
        profile = load_profile(args.device) if args.device else probed_profile(args.dir, resolve_target("native"))[0]
        strategies = list(dict.fromkeys(strategy for strategy, _ in VARIANTS.values()))
        storages = media([args.storage], args.dir, args.rates)
        build(models.load(args.name), args.dir, storages, strategies, profile, args.threads)
    if args.action == "build":
        return
    found = measure(args.name, args.dir, args.storage, args.threads, args.seconds)
    show(found)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))
    if args.png:
        draw(found, args.png)


if __name__ == "__main__":
    main()
