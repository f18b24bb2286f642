"""The embedding of a text out of the rows of its tokens, as the files of sentence-transformers in a model's folder say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flexcomp.errors import InputError
from flexcomp.generation.tokenizer import CONFIG, read_json

MODULES = "modules.json"
_MODES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "cls": lambda rows: rows[0],
    "max": lambda rows: rows.max(0),
    "mean": lambda rows: rows.mean(0),
    "mean_sqrt_len_tokens": lambda rows: rows.sum(0) / np.sqrt(len(rows)),
    "lasttoken": lambda rows: rows[-1],
}  # in the order of sentence-transformers
_KEYS = {f"pooling_mode_{mode}": mode for mode in _MODES} | {
    "pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_max_tokens": "max",
}  # fmt: skip


@dataclass(frozen=True)
class Pooling:
    """Modes whose results follow each other in an embedding, which has length 1 if it is normalised."""

    modes: tuple[str, ...] = ("mean",)
    normalised: bool = False

    def of(self, rows: np.ndarray) -> np.ndarray:
        """The embedding of the rows [tokens, width] of a text."""
        rows = rows.astype(np.float32)
        return self.finished(np.concatenate([_MODES[mode](rows) for mode in self.modes]))

    def finished(self, pooled: np.ndarray) -> np.ndarray:
        """The embedding, if the network pools."""
        pooled = pooled.astype(np.float32)
        return pooled / max(float(np.linalg.norm(pooled)), 1e-12) if self.normalised else pooled


def read_pooling(folder: Path) -> Pooling:
    """That of a model's folder; the mean without any. Raises InputError for modules that are something else."""
    modes, normalised = ("mean",), False
    for kind, path in _modules(folder):
        if kind == "Pooling":
            modes = _modes(folder / path / CONFIG)
        elif kind == "Normalize":
            normalised = True
        elif kind != "Transformer":
            raise InputError(f"{folder / MODULES} has a module {kind!r}, which is not known: export a model without it")
    return Pooling(modes, normalised)


def pooling_files(folder: Path) -> tuple[str, ...]:
    """The files that `read_pooling` reads, below the folder."""
    listed = [MODULES, *(f"{path}/{CONFIG}" for kind, path in _modules(folder) if kind == "Pooling")]
    return tuple(name for name in listed if (folder / name).exists())


def _modules(folder: Path) -> Iterator[tuple[str, str]]:
    found = read_json(folder / MODULES, list)
    for module in found:
        kind, path = (module.get(key) if isinstance(module, dict) else None for key in ("type", "path"))
        if not isinstance(kind, str) or not isinstance(path, str) or Path(path).is_absolute() or ".." in Path(path).parts:
            raise InputError(f"{folder / MODULES} lists a module without a type and a folder below its own")
        yield kind.rpartition(".")[2], path


def _modes(path: Path) -> tuple[str, ...]:
    settings: Mapping[str, Any] = read_json(path, dict)
    asked = [key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True]
    if isinstance(settings.get("pooling_mode"), str):  # newer versions' form
        asked = [f"pooling_mode_{settings['pooling_mode']}"]
    if unknown := [key for key in asked if key not in _KEYS]:
        raise InputError(f"{path} asks for {unknown[0]}, which is not known; there are {', '.join(_KEYS)}")
    return tuple(mode for mode in _MODES if mode in {_KEYS[key] for key in asked}) or ("mean",)
