"""The libraries that a server may load, by name, and which of them its pool has."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexcomp.errors import ArtifactError, FlexcompError, InputError
from flexcomp.runtime import Pool, TensorInfo, read_info

from .answers import UNKNOWN, Refusal
from .protocol import most_nbytes

VERSION = "1"  # of every model: a library is what it is


@dataclass(frozen=True)
class Model:
    """What the server has to know of a model that is loaded."""

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    most_nbytes: int  # of the body of a request


@dataclass(frozen=True)
class _File:
    """Which file a library was, when it was loaded."""

    path: Path
    device: int
    inode: int
    changed_ns: int

    @classmethod
    def at(cls, path: Path) -> _File:
        try:
            status = path.stat()
        except OSError as error:
            raise ArtifactError(f"cannot open {path}: {error.strerror}") from None
        return cls(path, status.st_dev, status.st_ino, status.st_mtime_ns)


class Models:
    """Loads and unloads by name. Only names of `libraries`, and of files in `folder`, are known: no request says a path.

    `options` are what `Pool.add` takes for a name. Reading is for any thread, and sees a model while requests may be given to
    the pool; loading waits for the pool, one at a time.
    """

    def __init__(
        self,
        pool: Pool,
        libraries: Mapping[str, Path],
        folder: Path | None = None,
        options: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._pool = pool
        self._named = dict(libraries)
        self._folder = folder
        self._options = options or {}
        self._changing = threading.Lock()
        self._loaded: dict[str, Model] = {}
        self._files: dict[str, _File] = {}
        self._reasons: dict[str, str] = {}  # why a model is not there

    def __contains__(self, name: str) -> bool:
        return name in self._loaded

    @property
    def names(self) -> tuple[str, ...]:
        """Of the models that are loaded."""
        return tuple(self._loaded)

    def get(self, name: str) -> Model:
        """A model that is loaded. Raises Refusal."""
        if (model := self._loaded.get(name)) is not None:
            return model
        if name in self._libraries():
            raise Refusal(UNKNOWN, f"the model {_shown(name)} is not loaded: {self._reason(name)}")
        raise unknown(name)

    def index(self) -> list[dict[str, str]]:
        """What there is, loaded or not, as the protocol lists it."""
        listed = []
        for name in sorted({*self._libraries(), *self._loaded}):
            entry = {"name": name, "version": VERSION, "state": "READY", "reason": ""}
            if name not in self._loaded:
                entry |= {"state": "UNAVAILABLE", "reason": self._reason(name)}
            listed.append(entry)
        return listed

    def load(self, name: str) -> None:
        """Load a model, anew if its library has been replaced. Raises Refusal, FlexcompError; all others go on."""
        with self._changing:
            path = self._libraries().get(name)
            if path is None:
                raise unknown(name)
            try:
                file = _File.at(path)
                if name in self._loaded:
                    if self._files[name] == file:
                        return
                    self._remove(name)
                self._add(name, file)
            except FlexcompError as error:
                self._reasons[name] = str(error)
                raise

    def unload(self, name: str) -> None:
        """Take a model out of the pool; what waits in its queue fails. Raises Refusal where there is no such model."""
        with self._changing:
            if name in self._loaded:
                self._remove(name)
                self._reasons[name] = "unloaded"
            elif name not in self._libraries():
                raise unknown(name)

    def _add(self, name: str, file: _File) -> None:
        if states := read_info(file.path).get("states"):
            listed = ", ".join(f'"{state["name"]}"' for state in states)
            raise InputError(f"{file.path} keeps {listed} from one inference to the next, which clients of a server would share")
        self._pool.add(name, file.path, **self._options.get(name, {}))
        inputs, outputs = tuple(self._pool.inputs(name)), tuple(self._pool.outputs(name))
        self._files[name] = file
        self._reasons.pop(name, None)
        self._loaded[name] = Model(name, inputs, outputs, most_nbytes(inputs))

    def _remove(self, name: str) -> None:
        """From here on requests are refused; those that the pool has come to an end first."""
        del self._loaded[name]
        self._pool.remove(name)

    def _libraries(self) -> Mapping[str, Path]:
        if self._folder is None:
            return self._named
        try:
            found = {path.stem: path for path in sorted(self._folder.glob("*.so"))}
        except OSError:
            found = {}
        return found | self._named

    def _reason(self, name: str) -> str:
        return self._reasons.get(name, "not loaded yet")


def unknown(name: str) -> Refusal:
    """There is no such model."""
    return Refusal(UNKNOWN, f"there is no model {_shown(name)}")


def _shown(name: str) -> str:
    return f'"{name if len(name) <= 80 else name[:80] + "…"}"'
