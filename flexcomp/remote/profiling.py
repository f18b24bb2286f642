"""The profile of a remote device, measured there as `flexcomp profile` measures this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from flexcomp.device import DeviceProfile
from flexcomp.profiling import Observations, fit, observe
from flexcomp.remote.device import Device


def observe_device(
    device: Device,
    libraries: Sequence[str | os.PathLike[str]],
    threads: int | None = None,
    repeat: int = 8,
    report: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> Observations:
    """Upload every library to a device and run each there in its shapes and several budgets. Errors as of `Device.upload`."""
    networks = [device.upload(library, progress=report) for library in libraries]
    return observe([one for network in networks for one in network.in_shapes()], threads, repeat, report)


def profile(
    device: Device, libraries: Sequence[str | os.PathLike[str]], threads: int | None = None, repeat: int = 8
) -> DeviceProfile:
    """Kernels, storage and delays of a device, for `flexcomp.build(profile=…)`, from running compiled networks on it.

    Raises ArtifactError if none of the plans loads anything; errors as of `Device.upload`.
    """
    return fit(observe_device(device, libraries, threads, repeat))
