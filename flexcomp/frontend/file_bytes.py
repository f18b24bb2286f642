"""Bytes of a model's files, which are read when they are needed: a build holds no file in memory."""

from __future__ import annotations

import os
import weakref

import numpy as np

from flexcomp.deferred import Deferred
from flexcomp.errors import ModelError


class FileBytes:
    """An open file, which stays as it is while it is read, whatever becomes of its name."""

    def __init__(self, file: int, name: str) -> None:
        """Take over the descriptor `file`."""
        self._file, self._name = file, name
        self._close = weakref.finalize(self, os.close, file)
        self._seen = self._look()

    @property
    def size(self) -> int:
        return self._seen[0]

    def close(self) -> None:
        """Close the file: nothing is read any more."""
        self._close()

    def read(self, begin: int, nbytes: int) -> np.ndarray:
        """uint8[nbytes]. Raises ModelError where the file has changed since it was opened, or cannot be read."""
        data, done = np.empty(nbytes, np.uint8), 0
        try:
            while done < nbytes and (count := os.preadv(self._file, [memoryview(data)[done:]], begin + done)):
                done += count
            if done < nbytes or self._look() != self._seen:
                raise ModelError(f"{self._name} has changed since the build began to read it: build again")
        except OSError as error:
            raise ModelError(f"cannot read {self._name}: {error.strerror}") from None
        return data

    def bytes(self, begin: int, nbytes: int) -> Deferred:
        """uint8[nbytes], read on request."""
        return Deferred((nbytes,), np.dtype(np.uint8), nbytes, lambda: lambda first, end: self.read(begin + first, end - first))

    def _look(self) -> tuple[int, int]:
        found = os.fstat(self._file)
        return found.st_size, found.st_mtime_ns
