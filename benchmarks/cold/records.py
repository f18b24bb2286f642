"""Every start that was measured, a line of JSON each, written at once: a run that was cut off goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

Record = dict  # the key of a start, and its measurements
KEY = ("network", "threads", "contender", "round")


class Records:
    """Those in a file, which need not exist; a line that was cut off is dropped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        text = path.read_text() if path.exists() else ""
        whole, _, torn = text.rpartition("\n")
        self._found: dict[tuple, Record] = {}
        for line in whole.splitlines():
            self._keep(json.loads(line))
        if torn:
            path.write_text(whole + "\n" * bool(whole))

    def add(self, record: Record) -> None:
        """Write one more."""
        self._keep(record)
        with self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def get(self, key: tuple) -> Record | None:
        """That of (network, threads, contender, round)."""
        return self._found.get(key)

    def __contains__(self, key: tuple) -> bool:
        """Whether there is one of (network, threads, contender, round)."""
        return key in self._found

    def __iter__(self) -> Iterator[Record]:
        return iter(self._found.values())

    def of(self, **wanted: object) -> list[Record]:
        """Those with these entries, in the order of their rounds."""
        found = [record for record in self if all(record.get(key) == value for key, value in wanted.items())]
        return sorted(found, key=lambda record: record["round"])

    def _keep(self, record: Record) -> None:
        self._found[tuple(record[key] for key in KEY)] = record
