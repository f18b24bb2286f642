"""How small every placement method gets recorded networks, and whether hard instances fit.

python -m benchmarks.placement              # tables
python -m benchmarks.placement --markdown   # as in docs/planning.md
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable
from pathlib import Path

from flexcomp.plan import placement as p

DATA = Path(__file__).parent.parent / "tests" / "plan" / "data"
NETWORKS = ("mobilenet_v1", "mobilenet_v2", "deeplab_v3", "posenet")
CAPACITY = 1 << 20
NODES = 1_000_000  # of the exact search
OFFSETS: dict[str, Callable] = {
    "greedy in order": p.greedy_in_order,
    "greedy by breadth": p.greedy_by_breadth,
    "greedy by size": p.greedy_by_size,
    "strip packing": p.strip_packing,
    "exact": lambda records: p.smallest(records, NODES).placement,
}
OBJECTS: dict[str, Callable] = {
    "greedy in order": p.objects_in_order,
    "min-cost flow": p.min_cost_flow,
    "greedy by breadth": p.objects_by_breadth,
    "greedy by size": p.objects_by_size,
    "greedy by size improved": p.objects_by_size_improved,
    "search": lambda records: p.search_objects(records, 1000),
}

Row = list[str]


def usage(network: str) -> list[p.Record]:
    """Tensors of a network; the files' last operator is inclusive."""
    with open(DATA / "tensor-usage" / f"{network}.csv") as file:
        return [
            p.Record(int(row["first_op"]), int(row["last_op"]) + 1, int(row["size"])) for row in csv.DictReader(file)
        ]


def hard(name: str) -> list[p.Record]:
    """An instance of minimalloc, of which everything fits into CAPACITY."""
    with open(DATA / "minimalloc" / f"{name}.{CAPACITY}.csv") as file:
        return [p.Record(int(row["lower"]), int(row["upper"]), int(row["size"]), 1) for row in csv.DictReader(file)]


def networks(methods: dict[str, Callable], check: Callable, bound: Callable) -> list[Row]:
    """MiB of every method on every recorded network."""
    records = {network: usage(network) for network in NETWORKS}
    rows = []
    for name, method in methods.items():
        cells = []
        for network in NETWORKS:
            made = method(records[network])
            if wrong := check(records[network], made):
                raise SystemExit(f"error: {name} on {network}: {wrong}")
            cells.append(f"{made.nbytes / 2**20:.3f}")
        rows.append([name, *cells])
    for name, of in (("lower bound", bound), ("naive", p.naive)):
        rows.append([name, *(f"{of(records[network]) / 2**20:.3f}" for network in NETWORKS)])
    return rows


def instances() -> list[Row]:
    """Greedy's bytes, and the exact search's nodes and seconds, on every hard instance."""
    rows = []
    for name in "ABCDEF":
        records = hard(name)
        began = time.perf_counter()
        found, nodes = p.fit(records, CAPACITY, NODES)
        seconds = time.perf_counter() - began
        if found is not None and (wrong := p.check_placement(records, found)):
            raise SystemExit(f"error: the exact search on {name}: {wrong}")
        greedy = f"{p.greedy_by_size(records).nbytes:,}"
        rows.append(
            [name, str(len(records)), greedy, f"{found.nbytes:,}" if found else "none", str(nodes), f"{seconds:.1f}"]
        )
    return rows


def show(title: str, header: Row, rows: list[Row], markdown: bool) -> None:
    """Print a table."""
    print(f"\n{title}\n" if markdown else f"\n{title}")
    if markdown:
        print("\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rows]))
        return
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        print(
            "  ".join(
                cell.rjust(width) if i else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
        )


def main() -> None:
    """Print three tables; ends with code 1 if a hard instance is not solved."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--markdown", action="store_true")
    markdown = parser.parse_args().markdown
    header = ["MiB", *NETWORKS]
    show("Offsets", header, networks(OFFSETS, p.check_placement, p.lower_bound), markdown)
    show("Shared objects", header, networks(OBJECTS, p.check_assignment, p.object_bound), markdown)
    rows = instances()
    show(
        f"minimalloc's instances, capacity {CAPACITY:,}",
        ["instance", "records", "greedy by size", "exact search", "nodes", "seconds"],
        rows,
        markdown,
    )
    if any(row[3] == "none" for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
