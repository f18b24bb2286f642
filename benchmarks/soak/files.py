"""Libraries and weights of a soak: their right outputs, and files that replace each other while in use."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np


def digest(output: np.ndarray) -> str:
    """A key that two outputs share only if every bit is equal."""
    return hashlib.blake2b(output.tobytes(), digest_size=12).hexdigest()


@dataclass(frozen=True)
class Expected:
    """The record of `benchmarks.soak.prepare` about a network."""

    name: str
    inputs: tuple[dict[str, np.ndarray], ...]
    outputs: dict[str, dict[int, list[frozenset[str]]]]  # by version, threads and input: of any rung
    largest_budget: int


def read_expected(folder: Path) -> list[Expected]:
    """All networks of a folder."""
    found = []
    for name, entry in json.loads((folder / "expected.json").read_text()).items():
        inputs: dict[int, dict[str, np.ndarray]] = {}
        for key, value in np.load(folder / entry["inputs"]).items():
            index, port = key.split(":", 1)
            inputs.setdefault(int(index), {})[port] = value
        outputs = {version: _by_input(table) for version, table in entry["outputs"].items()}
        found.append(Expected(name, tuple(inputs[i] for i in sorted(inputs)), outputs, entry["largest_budget"]))
    return found


def _by_input(table: dict[str, list[list[str]]]) -> dict[int, list[frozenset[str]]]:
    return {int(threads): [frozenset(of_rungs) for of_rungs in zip(*rungs, strict=True)] for threads, rungs in table.items()}


def version_files(store: Path, name: str, version: str) -> tuple[Path, Path]:
    """Library and weights file."""
    return store / f"{name}-{version}.so", store / f"{name}-{version}.weights"


class Place:
    """A library and its weights under names whose files change: always by renaming, library first, then weights.

    The files are hard links to those of `store`. A process keeps every library that it loaded, one for each file: new
    copies would make the process grow for good, and rightly so (`forked.py` uses new ones, in processes that end).
    """

    def __init__(self, folder: Path, store: Path, name: str, versions: tuple[str, ...]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.library = folder / f"{name}.so"
        self._store, self._name, self._versions = store, name, versions
        self._lock = threading.Lock()
        self._changes = 0  # odd: in the middle of one
        self._version = versions[0]
        self._install(self._version)

    def state(self) -> tuple[int, str]:
        """How often the files changed, odd during a change, and the version in place otherwise."""
        return self._changes, self._version

    def replace(self, version: str) -> None:
        """Put another version there."""
        with self._lock:
            self._changes += 1
            self._install(version)
            self._version = version
            self._changes += 1

    def _install(self, version: str) -> None:
        for source in version_files(self._store, self._name, version):
            target = self.library.with_suffix(source.suffix)
            fresh = target.with_name(target.name + ".new")
            os.link(source, fresh)
            fresh.rename(target)
            fresh.unlink(missing_ok=True)  # renaming does nothing between two names of one file


def damage(store: Path, name: str, version: str, folder: Path) -> dict[str, Path]:
    """Libraries in `folder` whose weights are cut short, of another version, or have one bit changed, by that name."""
    library, weights = version_files(store, name, version)
    found = {}
    for kind in ("short", "foreign", "flipped"):
        place = folder / kind
        place.mkdir(parents=True, exist_ok=True)
        found[kind] = place / library.name
        os.link(library, found[kind])
        target = found[kind].with_suffix(".weights")
        if kind == "foreign":
            other = next(path for path in sorted(store.glob(f"{name}-*.weights")) if path != weights)
            os.link(other, target)
            continue
        shutil.copyfile(weights, target)
        nbytes = target.stat().st_size
        if kind == "short":
            os.truncate(target, nbytes - 4096)
        else:
            with open(target, "r+b") as file:
                file.seek(_packed_byte(nbytes))
                byte = file.read(1)
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte[0] ^ 0x10]))
    return found


def _packed_byte(nbytes: int) -> int:
    """A place in the middle of a weights file, which is in the weights of some layer."""
    return nbytes // 2
