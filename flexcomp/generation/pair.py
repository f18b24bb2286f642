"""An encoder-decoder's two libraries under one budget: the encoder runs once for each reply, the decoder once for each token.

Where the budget has room for all of the decoder and for the encoder's smallest plan, both stay open. Otherwise one of them is
open at a time, with all of the budget but the arrays that go from one to the other: the encoder's memory has been given back
before the decoder opens, and the decoder's before the encoder does.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flexcomp.arguments import checked_path
from flexcomp.errors import InputError
from flexcomp.generation.names import FEATURES, IDS, MASK_OF_ENCODED, MASKS
from flexcomp.runtime import Budget, Session, TensorInfo, load, read_summary, resolve_in
from flexcomp.runtime.fitting import Fitting

_BOTH = ("min_budget_bytes", "default_budget_bytes", "resident_bytes")

Source = Sequence[int] | np.ndarray  # the tokens of a text, or features


def encoder_library(decoder: Path) -> Path:
    """The encoder's library next to a decoder's: NAME.encoder.so."""
    return decoder.with_name(f"{decoder.stem}.encoder{decoder.suffix}")


class Pair:
    """Both libraries; `session` is the decoder's, open when it is asked for."""

    def __init__(
        self, library: str | os.PathLike[str], budget: int | float | str | Budget | None = None, threads: int | None = None
    ) -> None:
        """`library` is the decoder's. Raises BudgetError, and the errors of `flexcomp.load`."""
        path = checked_path(library, "the library").resolve()
        self._paths, self._threads = {"decoder": path, "encoder": encoder_library(path)}, threads
        infos = {name: read_summary(one) for name, one in self._paths.items()}
        decoder, encoder = infos["decoder"], infos["encoder"]
        ports = Fitting(encoder)
        self.inputs = {port.name: port for port in ports.inputs}  # -1: as many as there are tokens, up to `most`
        largest = {port.name: port for port in ports.shapes[0].inputs}
        self._made = {port.name: port for port in ports.shapes[0].outputs}
        self._most = math.prod(next(iter(largest.values())).shape)
        self.carried_nbytes = sum(map(_nbytes, (*largest.values(), *self._made.values())))
        self.budget = resolve_in(budget, self._both(decoder, encoder))
        room = self.budget - self.carried_nbytes
        self.stay_open = room >= decoder["resident_bytes"] + encoder["min_budget_bytes"]
        parts = {"decoder": decoder["resident_bytes"], "encoder": room - decoder["resident_bytes"]}
        self._budgets = parts if self.stay_open else dict.fromkeys(parts, room)
        self._open: dict[str, Session] = {}
        self._closed = False
        self._read, self._most_nbytes = 0, 0  # bytes read by sessions that are closed, and the largest arenas at a time

    def _both(self, decoder: Mapping[str, Any], encoder: Mapping[str, Any]) -> dict[str, Any]:
        """What a library of both would say of its budgets."""
        least, usual, most = (max(one[key] for one in (decoder, encoder)) for key in _BOTH)
        room = decoder["resident_bytes"] + encoder["resident_bytes"]
        found = dict(zip(_BOTH, (least, usual, max(most, room)), strict=True))
        return {key: nbytes + self.carried_nbytes for key, nbytes in found.items()}

    @property
    def session(self) -> Session:
        """The decoder's. Its state is as `set_state` left it, unless the encoder ran meanwhile and not both stay open."""
        return self._opened("decoder")

    @property
    def takes_features(self) -> bool:
        """Whether the encoder takes features of sound, and not tokens."""
        return FEATURES in self.inputs

    def require_source(self, source: Source) -> None:
        """Raise InputError unless this is a text's tokens, or the features, that the encoder takes."""
        if self.takes_features:
            wanted = self.inputs[FEATURES].shape
            if not isinstance(source, np.ndarray) or source.shape not in (wanted, wanted[1:]) or source.dtype.kind != "f":
                found = source.shape if isinstance(source, np.ndarray) else type(source).__name__
                raise InputError(f"the encoder takes features, an array of floats {list(wanted)}, not {found}")
            return
        if isinstance(source, np.ndarray) and (source.ndim != 1 or source.dtype.kind not in "iu"):
            raise InputError(f"the encoder takes the tokens of a text, not an array of {source.dtype} {list(source.shape)}")
        if not 0 < len(source) <= self._most:
            raise InputError(f"the encoder takes 1 to {self._most} tokens, not {len(source)}: shorten the text")

    def encode(self, source: Source) -> dict[str, np.ndarray]:
        """What the decoder needs of the encoder's result, by names of its states and inputs."""
        self.require_source(source)
        session = self._opened("encoder")
        try:
            if self.takes_features:
                port = self.inputs[FEATURES]
                return session.run({FEATURES: np.ascontiguousarray(source, port.array_dtype).reshape(port.shape)})
            tokens = np.asarray(source)
            made = session.run({name: self._input(port, tokens) for name, port in self.inputs.items()})
        finally:
            if not self.stay_open:
                self._close("encoder")
        places = np.arange(self._most) < len(tokens)
        return {name: self._padded(name, made.pop(name)) for name in list(made)} | {MASK_OF_ENCODED: places}

    def _input(self, port: TensorInfo, tokens: np.ndarray) -> np.ndarray:
        given = tokens if port.name in IDS else np.full(len(tokens), port.name in MASKS)
        return given.astype(port.array_dtype)[None]

    def _padded(self, name: str, array: np.ndarray) -> np.ndarray:
        """Zeros after the rows of a text's tokens, which the decoder's mask hides."""
        wide = np.zeros(self._made[name].shape, array.dtype)
        wide[tuple(map(slice, array.shape))] = array
        return wide

    def stats(self) -> dict[str, int]:
        """Bytes that both read so far, and of the arenas that were open together at most."""
        read = self._read + sum(one.stats()["total_bytes_read"] for one in self._open.values())
        return {"total_bytes_read": read, "arena_bytes": self._most_nbytes + self.carried_nbytes}

    def cancel(self) -> None:
        """End the inference in progress, from any thread."""
        for session in list(self._open.values()):
            session.cancel()

    def close(self) -> None:
        """Give memory, threads and files back."""
        self._closed = True
        for name in list(self._open):
            self._close(name)

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self, name: str) -> Session:
        if self._closed:
            raise InputError("the libraries of this encoder-decoder are closed")
        if name not in self._open:
            if not self.stay_open:
                for other in list(self._open):
                    self._close(other)
            self._open[name] = load(self._paths[name], budget=self._budgets[name], threads=self._threads)
            nbytes = sum(one.stats()["arena_bytes"] for one in self._open.values())
            self._most_nbytes = max(self._most_nbytes, nbytes)
        return self._open[name]

    def _close(self, name: str) -> None:
        session = self._open.pop(name)
        self._read += session.stats()["total_bytes_read"]
        session.close()


def _nbytes(port: TensorInfo) -> int:
    return math.prod(port.shape) * port.array_dtype.itemsize
