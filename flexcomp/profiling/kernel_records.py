"""The database of a tuner: a file of JSON lines, one for every trial.

    {"format": 1, "layer": "ConvSpec(…)", "target": "llvm …", "threads": 1, "kernel": "direct 14×32",
     "seconds": 0.00031, "device": "AMD EPYC", "flexcomp": "0.1.0", "date": "2026-01-31T12:00:00+00:00"}

A kernel is identified by its computation (`layer`), target, number of threads, and name. A trial that
failed has "error", one line of text, in place of "seconds". Lines are only ever appended, each in one write, so that
nothing is lost when a tuner is interrupted; of several times of one kernel the best counts.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

from flexcomp.errors import TuningError
from flexcomp.json_text import parse as parse_json

FORMAT = 1

Key = tuple[str, str, int]  # layer, target, threads


@dataclass(frozen=True)
class Record:
    """One trial: exactly one of `seconds` and `error` is there."""

    layer: str  # repr of its spec
    target: str
    threads: int
    kernel: str  # str of its candidate
    device: str  # of the measurement, for people
    flexcomp: str  # version; other versions may generate other code under the same name
    date: str  # ISO 8601
    seconds: float | None = None  # of one call, weights not in the caches
    error: str | None = None

    @property
    def key(self) -> Key:
        return self.layer, self.target, self.threads

    def line(self) -> str:
        """The record as a line of the file, without its end."""
        facts = {name: value for name, value in asdict(self).items() if value is not None}
        return json.dumps({"format": FORMAT, **facts}, ensure_ascii=False)


_BEGINNING = '{"format": '  # of every line
_TEXTS = ("layer", "target", "kernel", "device", "flexcomp", "date")


def parse(line: str) -> Record:
    """Read one line. Raises ValueError that names the fault."""
    try:
        facts = parse_json(line)
    except ValueError as error:
        raise ValueError(f"it is no JSON: {error}") from None
    if not isinstance(facts, dict):
        raise ValueError("it is no JSON object")
    if facts.pop("format", None) != FORMAT:
        raise ValueError(f"its format is not {FORMAT}")
    wanted = {*_TEXTS, "threads", "error" if "error" in facts else "seconds"}
    if missing := sorted(wanted - facts.keys()):
        raise ValueError(f"it lacks {', '.join(missing)}")
    if unknown := sorted(facts.keys() - wanted):
        raise ValueError(f"it has unknown entries: {', '.join(unknown)}")
    for name in (*_TEXTS, *(["error"] if "error" in facts else [])):
        if not isinstance(facts[name], str) or not facts[name]:
            raise ValueError(f'"{name}" is no text')
    if type(facts["threads"]) is not int or facts["threads"] < 1:
        raise ValueError('"threads" is no positive integer')
    if "seconds" in facts and not _positive(facts["seconds"]):
        raise ValueError('"seconds" is no positive number')
    try:
        datetime.fromisoformat(facts["date"])
    except ValueError:
        raise ValueError('"date" is no date') from None
    return Record(**facts)


def _positive(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value > 0


@dataclass
class Database:
    """Records by key and kernel, and their file."""

    path: Path | None = None
    records: list[Record] = field(default_factory=list)
    _best: dict[Key, dict[str, Record]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Database:
        """All records of a file. An unfinished last line, left by an interrupted tuner, counts as absent.

        Raises TuningError if the file cannot be read, or naming the first line that is no record.
        """
        path = Path(path)
        try:
            text = path.read_bytes().decode()
        except OSError as error:
            raise TuningError(f"cannot read the tuning database {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise TuningError(f"{path} is no tuning database: it is not text") from error
        result = cls(path)
        *lines, unfinished = text.split("\n")
        if not _BEGINNING.startswith(unfinished[: len(_BEGINNING)]):
            raise TuningError(f"{path} is no tuning database: its last line is no record that was interrupted")
        for number, line in enumerate(lines, 1):
            try:
                result._take(parse(line))
            except ValueError as error:
                raise TuningError(f"{path}, line {number} is no record of a tuner: {error}; remove the line") from None
        return result

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Database:
        """A database to append to; the file need not exist yet. Raises TuningError."""
        path = Path(path)
        result = cls.read(path) if path.exists() else cls(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "ab+") as file:
                _drop_unfinished_line(file)
        except OSError as error:
            raise TuningError(f"cannot write the tuning database {path}: {error.strerror}") from error
        return result

    def append(self, record: Record) -> None:
        """Keep a record, in the file too if there is one. Raises TuningError if that cannot be written."""
        if self.path is not None:
            try:
                with open(self.path, "ab", buffering=0) as file:
                    file.write(record.line().encode() + b"\n")
            except OSError as error:
                raise TuningError(f"cannot write the tuning database {self.path}: {error.strerror}") from error
        self._take(record)

    def trials(self, key: Key) -> dict[str, Record]:
        """The best record of each kernel of a layer, by the kernel's name; one that only ever failed counts too."""
        return self._best.get(key, {})

    def seconds(self, key: Key) -> dict[str, float]:
        """The best time of each kernel of a layer."""
        return {name: r.seconds for name, r in self.trials(key).items() if r.seconds is not None}

    def extend(self, records: Iterable[Record]) -> None:
        """Append several records."""
        for record in records:
            self.append(record)

    def _take(self, record: Record) -> None:
        self.records.append(record)
        known = self._best.setdefault(record.key, {})
        old = known.get(record.kernel)
        if old is None or (record.seconds or math.inf) < (old.seconds or math.inf):
            known[record.kernel] = record


def _drop_unfinished_line(file) -> None:
    file.seek(0)
    content = file.read()
    file.truncate(content.rfind(b"\n") + 1)
