"""Targets whose GPU computes: the GPU, and the CPU that host code is made for."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

import tvm

from flexcomp.device.presets import GPU_PRESETS
from flexcomp.errors import TargetError
from flexcomp.schedules.cuda import ARCHITECTURES, Architecture

KIND = "cuda"


def split(target: object) -> tuple[Architecture, object] | None:
    """The GPU of a target and the user's choice of a CPU, None without one.

    Understood are "cuda -arch=sm_87 -mtriple=aarch64-linux-gnu", where options after the architecture are those of LLVM for the
    CPU, a dict of them, TVM's own form with a "host", a tvm.target.Target, and the names of devices. Other targets give None.

    Raises TargetError for a GPU that is not known, or not said.
    """
    if isinstance(target, tvm.target.Target):
        if target.kind.name != KIND:
            return None
        return _architecture(target.export().get("arch"), str(target)), target.host
    if isinstance(target, Mapping):
        return _of_dict(target, repr(target)) if target.get("kind") == KIND else None
    if not isinstance(target, str):
        return None
    if target in GPU_PRESETS:
        preset = GPU_PRESETS[target]
        return _architecture(preset.gpu, repr(target)), dict(preset.options)
    try:
        kind, *words = shlex.split(target) or [""]
    except ValueError:
        return None
    if kind != KIND:
        return None
    options = [word.removeprefix("-").removeprefix("-") for word in words]
    given = [option.partition("=")[2] for option in options if option.partition("=")[0] == "arch"]
    rest = [word for word, option in zip(words, options, strict=True) if option.partition("=")[0] != "arch"]
    cpu = shlex.join(["llvm", *rest]) if rest else None
    return _architecture(given[-1] if given else None, repr(target)), cpu


def _of_dict(target: Mapping, where: str) -> tuple[Architecture, object]:
    options = {key: value for key, value in target.items() if key not in ("kind", "arch", "host")}
    host = target.get("host")
    if host is not None and options:
        raise TargetError(f"target {where} describes the CPU twice: by its host, and by {', '.join(sorted(options))}")
    return _architecture(target.get("arch"), where), options or host


def _architecture(name: object, where: str) -> Architecture:
    known = ", ".join(ARCHITECTURES)
    if name is None:
        devices = ", ".join(GPU_PRESETS)
        raise TargetError(f"target {where} does not say for which GPU: add -arch= one of {known}, or name a device: {devices}")
    if name not in ARCHITECTURES:
        raise TargetError(f"unknown GPU architecture {str(name)!r} in target {where}; known are {known}")
    return ARCHITECTURES[name]

