"""Smallest budgets with narrow weights, and what sets them.

    python -m benchmarks.narrow.budgets                       # six networks, four types
    python -m benchmarks.narrow.budgets mobilenet_v2 vgg19_torch

A budget is set by the step that needs most at once: activations, scratch, and its own weights, which are fewer bytes in a
narrow type. Ends with code 1 if a type needs more than float32, or as much although weights are a part of what sets it.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx
from rich.console import Console
from rich.table import Table

from benchmarks import models
from flexcomp import plan
from flexcomp.compiler.builder import prepare
from flexcomp.units import human_bytes

NETWORKS = ("squeezenet1_1", "mobilenet_v2", "resnet50_v15", "resnet152", "vgg19_torch", "vit_b16")
TYPES = ("float32", "float16", "bfloat16", "int8")
RESULTS = Path(__file__).resolve().parents[1] / "results"


@dataclass(frozen=True)
class Smallest:
    """The smallest budget of a network with weights of one type."""

    network: str
    weights: str
    budget: int
    layer: str  # that sets it
    needs: dict[str, int]  # bytes at once, by what they are


def smallest(name: str, model: onnx.ModelProto, weights: str, threads: int) -> Smallest:
    """The smallest budget of a network: it is planned, and nothing is compiled."""
    planning = prepare(model, kernels="smallest", weights=weights, threads=threads).planning
    least = plan.minimum_budget(planning.forms[0].problem)
    return Smallest(name, weights, least.nbytes, planning.network.titled(least.layer), dict(least.needs))


def problem(found: Smallest, wide: Smallest) -> str:
    """What is wrong with a budget beside that of float32 weights; "" if nothing is."""
    if found.budget > wide.budget:
        return f"{found.budget - wide.budget} bytes more than float32"
    if wide.needs["weights"] > plan.PAGE and found.weights != "float32" and found.budget == wide.budget:
        return "as much as float32, though weights are a part of what sets it"
    return ""


def _table(rows: list[Smallest], wide: dict[str, Smallest]) -> Table:
    table = Table(title="smallest budgets")
    for column in ("network", "weights", "budget", "of float32's", "set by", "which needs", "verdict"):
        table.add_column(column, justify="right" if column in ("budget", "of float32's") else "left")
    for row in rows:
        parts = ", ".join(f"{human_bytes(nbytes)} of {kind}" for kind, nbytes in row.needs.items() if nbytes)
        share = f"{row.budget / wide[row.network].budget:.3f}"
        verdict = problem(row, wide[row.network]) or "ok"
        table.add_row(row.network, row.weights, human_bytes(row.budget), share, row.layer, parts, verdict)
    return table


def main() -> None:
    """Build the chosen networks and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NETWORK", help=f"some of {', '.join(models.NAMES)}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, default=RESULTS / "narrow_budgets.json", help="where the figures go")
    args = parser.parse_args()
    if unknown := set(args.names) - set(models.NAMES):
        parser.error(f"no network {', '.join(sorted(unknown))}; there are {', '.join(models.NAMES)}")
    rows = []
    for name in args.names or NETWORKS:
        model = models.load(name).model
        for weights in TYPES:
            rows.append(smallest(name, model, weights, args.threads))
            print(f"{name}, {weights}: {human_bytes(rows[-1].budget)}", file=sys.stderr, flush=True)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    wide = {row.network: row for row in rows if row.weights == "float32"}
    Console(width=180).print(_table(rows, wide))
    sys.exit(any(problem(row, wide[row.network]) for row in rows))


if __name__ == "__main__":
    main()
