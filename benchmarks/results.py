"""One form for all results: a table on the terminal, JSON with the conditions of the run, and Markdown made of that JSON.

    python -m benchmarks.results docs/measurements      # renews the tables of all pages there from the JSON files next to them

A page marks the place of a table by two lines: `<!-- results: NAME.json -->` and `<!-- end of results -->`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parent / "results"
QUIET = 0.9  # share of the processors' time that is idle on a quiet machine
_BLOCK = re.compile(r"(<!-- results: (\S+) -->\n).*?(<!-- end of results -->)", re.DOTALL)


@dataclass
class Table:
    """Rows of cells under titles. `columns` maps each title to the format of its numbers, such as ".2f"."""

    columns: Mapping[str, str]
    title: str = ""
    rows: list[list] = field(default_factory=list)

    def add(self, *cells: object) -> None:
        """Add a row, and print it, after the head if this is the first. A cell is a number, text, or None for none."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        self.rows.append([cell.item() if isinstance(cell, np.generic) else cell for cell in cells])
        lines = self.markdown().splitlines()
        print(*(lines[-1:] if len(self.rows) > 1 else lines), sep="\n", flush=True)

    def markdown(self) -> str:
        """The table in Markdown."""
        lines = [f"{self.title}\n"] if self.title else []
        body = [[_cell(cell, form) for cell, form in zip(row, self.columns.values(), strict=True)] for row in self.rows]
        lines += [f"| {' | '.join(cells)} |" for cells in ([*self.columns], ["---"] * len(self.columns), *body)]
        return "\n".join(lines)


def _cell(cell: object, form: str) -> str:
    if cell is None:
        return ""
    return format(cell, form) if isinstance(cell, (int, float)) and not isinstance(cell, bool) else str(cell)


@dataclass(frozen=True)
class Results:
    """The conditions of a run, noted at its beginning."""

    command: str
    date: str
    machine: dict
    idle: float  # share of the processors' time, before the run

    @classmethod
    def begin(cls, module: str) -> Results:
        """Note them for `python -m MODULE`, with a warning on stderr where others use the machine."""
        idle = idle_share()
        if idle < QUIET:
            print(f"warning: others use {1 - idle:.0%} of the processors; times will be off", file=sys.stderr)
        command = shlex.join(["python", "-m", module, *sys.argv[1:]])
        return cls(command, datetime.date.today().isoformat(), machine(), idle)

    def write(self, path: Path | None, tables: Sequence[Table], **figures: object) -> None:
        """Write tables, conditions, and further figures as JSON to `path`; None writes nothing."""
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        found = [{"title": table.title, "columns": dict(table.columns), "rows": table.rows} for table in tables]
        path.write_text(json.dumps(vars(self) | {"tables": found} | figures, indent=1) + "\n")


def json_option(parser: argparse.ArgumentParser, name: str) -> None:
    """Give a benchmark the option --json; without it results go to `benchmarks/results`."""
    parser.add_argument("--json", type=Path, default=FOLDER / f"{name}.json", help="where the results go")


def machine() -> dict:
    """Processor, number of cores, and memory in GiB."""
    with open("/proc/cpuinfo") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {"processor": names[0] if names else platform.machine(), "cores": os.cpu_count(), "memory_gib": round(memory, 1)}


def idle_share(seconds: float = 0.5) -> float:
    """The share of the processors' time that nobody uses now."""

    def ticks() -> np.ndarray:
        with open("/proc/stat") as file:
            return np.array(file.readline().split()[1:9], dtype=np.int64)

    before = ticks()
    time.sleep(seconds)
    spent = ticks() - before
    return float(spent[3:5].sum() / max(spent.sum(), 1))


def markdown(path: Path) -> str:
    """The tables of a JSON file, and a line with machine, date and command."""
    found = json.loads(path.read_text())
    on = "{cores} cores of {processor}".format(**found["machine"])
    tables = [Table(one["columns"], one["title"], one["rows"]).markdown() for one in found["tables"]]
    return "\n\n".join([f"{found['date']}, {on}, `{found['command']}`:", *tables])


def renewed(page: Path) -> str:
    """A page of Markdown with its tables made of the named JSON files."""
    return _BLOCK.sub(lambda block: f"{block[1]}{markdown(page.parent / block[2])}\n{block[3]}", page.read_text())


def main() -> None:
    """Renew the tables of a folder's pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    for page in sorted(parser.parse_args().folder.glob("*.md")):
        page.write_text(renewed(page))


if __name__ == "__main__":
    main()
