"""The libraries that a server may load, by name, and which of them are loaded: networks in its pool, and decoders."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexcomp.errors import ArtifactError, FlexcompError, InputError
from flexcomp.generation.tokenizer import TOKENIZER
from flexcomp.runtime import Fitting, TensorInfo, read_summary

from .answers import OPENAI, UNKNOWN, Refusal
from .language import is_decoder, weights_of
from .memory import give_back_freed_memory
from .protocol import most_nbytes
from .whole import Whole

VERSION = "1"  # of every model: libraries have no versions
_IN_FOLDER = "model.so"  # the library in a folder of its own


@dataclass(frozen=True)
class Model:
    """The server's facts of a network in the pool."""

    name: str
    fitting: Fitting
    inputs: tuple[TensorInfo, ...]  # -1 where requests choose
    outputs: tuple[TensorInfo, ...]
    most_inputs: tuple[TensorInfo, ...]
    most_outputs: tuple[TensorInfo, ...]
    most_nbytes: int  # of the body of a request

    @classmethod
    def of(cls, name: str, fitting: Fitting) -> Model:
        most = fitting.most_inputs
        return cls(name, fitting, fitting.open_inputs, fitting.open_outputs, most, fitting.most_outputs, most_nbytes(most))


class Models:
    """Loads and unloads by name. Only names of `libraries`, and of files in `folder`, are known: no request says a path.

    `options` are arguments of `Pool.add` by name. Reading is for any thread, and sees a network while requests may be given to
    the pool; loading waits for the pool and the decoders, one at a time.
    """

    def __init__(
        self,
        whole: Whole,
        libraries: Mapping[str, Path],
        folder: Path | None = None,
        options: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._whole, self._pool = whole, whole.pool
        self._named = dict(libraries)
        self._folder = folder
        self._options = options or {}
        self._changing = threading.Lock()
        self._loaded: dict[str, Model] = {}  # networks
        self._files: dict[str, tuple] = {}  # as of loading
        self._reasons: dict[str, str] = {}  # why a model is not there
        self._folders: set[str] = set()  # of files that errors may name

    @property
    def names(self) -> tuple[str, ...]:
        """Of the networks that are loaded."""
        return tuple(self._loaded)

    def get(self, name: str) -> Model:
        """A network that is loaded. Raises Refusal."""
        if (model := self._loaded.get(name)) is not None:
            return model
        if name in self._whole:
            raise Refusal(UNKNOWN, f"the model {_shown(name)} is a decoder, which replies at {OPENAI}chat/completions")
        self.require_loaded(name)
        raise unknown(name)

    def require_loaded(self, name: str) -> None:
        """Raise Refusal, with the reason, for a model that could be loaded, and is not."""
        if not self._is_loaded(name) and name in self._libraries():
            raise Refusal(UNKNOWN, f"the model {_shown(name)} is not loaded: {self.without_folders(self._reason(name))}")

    def path(self, name: str) -> Path:
        """Of the library of a network that is loaded. Raises Refusal."""
        self.get(name)
        return self._libraries()[name]

    def require_ready(self, name: str) -> None:
        """Raise Refusal unless a model is loaded and can run."""
        if name in self._whole:
            return
        self.get(name)
        if (reason := self._broken(name)) is not None:
            raise Refusal(UNKNOWN, f"the model {_shown(name)} cannot run: {reason}")

    def without_folders(self, text: str) -> str:
        """As clients may read it: with names of files, but not of the folders above."""
        for folder in sorted(self._folders, key=len, reverse=True):
            text = text.replace(folder, "").replace(folder.rstrip("/"), Path(folder).name)
        return text

    def without_folders_in(self, refusal: Refusal) -> Refusal:
        """The same of an answer."""
        return Refusal(refusal.status, self.without_folders(str(refusal)), headers=refusal.headers, field=refusal.field)

    def all_ready(self) -> bool:
        """Whether all loaded models can run: the protocol's "ready", also for a server without models."""
        return all(self._broken(name) is None for name in self.names)

    def index(self) -> list[dict[str, str]]:
        """All models, loaded or not, in the protocol's form."""
        listed = []
        for name in sorted({*self._libraries(), *self._loaded, *self._whole}):
            entry = {"name": name, "version": VERSION, "state": "READY", "reason": ""}
            reason = self._broken(name) if self._is_loaded(name) else self._reason(name)
            if reason is not None:
                entry |= {"state": "UNAVAILABLE", "reason": self.without_folders(reason)}
            listed.append(entry)
        return listed

    def load(self, name: str) -> None:
        """Load a model, anew if its library has been replaced. Raises Refusal, FlexcompError; all others go on."""
        with self._changing:
            path = self._libraries().get(name)
            if path is None:
                raise unknown(name)
            draft = self._whole.drafts.get(name)
            libraries = [path] if draft is None else [path, draft]
            self._folders |= {folder for one in libraries for file in (one, weights_of(one)) for folder in _folders(file)}
            try:
                files = tuple(map(_files, libraries))
                if self._is_loaded(name):
                    if self._files[name] == files and self._broken(name) is None:
                        return
                    self._remove(name)
                self._add(name, path)
                self._files[name] = files
            except FlexcompError as error:
                self._reasons[name] = str(error)
                raise

    def unload(self, name: str) -> None:
        """Take a model out; its requests that wait, and replies in progress, fail. Raises Refusal if there is no such model."""
        with self._changing:
            if self._is_loaded(name):
                self._remove(name)
            elif name not in self._libraries():
                raise unknown(name)

    def _add(self, name: str, path: Path) -> None:
        try:
            self._open(name, path)
        finally:
            give_back_freed_memory()

    def _open(self, name: str, path: Path) -> None:
        if is_decoder(path):
            self._whole.add(name, path)
            self._reasons.pop(name, None)
            return
        if states := read_summary(path).get("states"):
            listed = ", ".join(f'"{state["name"]}"' for state in states)
            raise InputError(
                f"{path} keeps {listed} from one inference to the next, which all clients would share; decoders need "
                f"{TOKENIZER} next to it"
            )
        self._whole.add_network(name, path, weights=weights_of(path), **self._options.get(name, {}))
        model = Model.of(name, self._pool.fitting(name))
        self._reasons.pop(name, None)
        self._loaded[name] = model

    def _remove(self, name: str) -> None:
        """From here on requests are refused; inferences that run come to an end first."""
        self._reasons[name] = "unloaded"
        if self._loaded.pop(name, None) is None:
            self._whole.remove(name)
        else:
            self._whole.remove_network(name)
        give_back_freed_memory()

    def _libraries(self) -> Mapping[str, Path]:
        return self._named if self._folder is None else libraries_in(self._folder) | self._named

    def _is_loaded(self, name: str) -> bool:
        return name in self._loaded or name in self._whole

    def _broken(self, name: str) -> str | None:
        """Why a model that is loaded cannot run any more."""
        if name in self._whole:  # of which each reply tries anew
            return None
        try:
            return self._pool.broken(name)
        except InputError:  # removed just now
            return None

    def _reason(self, name: str) -> str:
        return self._reasons.get(name, "not loaded yet")


def libraries_in(folder: Path) -> dict[str, Path]:
    """By name, those that lie in a folder now, or that links there lead to: NAME.so, or NAME/model.so."""
    try:
        inside = {path.parent.name: path for path in sorted(folder.glob(f"[!.]*/{_IN_FOLDER}"))}
        return inside | {path.stem: path for path in sorted(folder.glob("*.so"))}
    except OSError:
        return {}


def unknown(name: str) -> Refusal:
    """There is no such model."""
    return Refusal(UNKNOWN, f"there is no model {_shown(name)}")


def _files(path: Path) -> tuple:
    """Identity and time of writing of the files of a library, its weights, and its tokenizer if it has one."""
    found = []
    text = path.resolve().parent / TOKENIZER
    for one in (path, weights_of(path), *([text] if text.exists() else [])):
        try:
            status = one.stat()
        except OSError as error:
            raise ArtifactError(f"cannot open {one}: {error.strerror}") from None
        found += [status.st_dev, status.st_ino, status.st_mtime_ns]
    return tuple(found)


def _folders(path: Path) -> set[str]:
    """The beginnings of all paths by which an error may name a file: as given, in full, and where links lead."""
    paths = path, path.absolute(), Path(os.path.realpath(path))
    return {f"{one.parent}/" for one in paths if one.parent.name}


def _shown(name: str) -> str:
    return f'"{name if len(name) <= 80 else name[:80] + "…"}"'
