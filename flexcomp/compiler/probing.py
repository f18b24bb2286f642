"""Whether a build measures storage before it plans, and which."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from flexcomp.arguments import checked_path
from flexcomp.device import DeviceProfile, resolve_target
from flexcomp.errors import InputError
from flexcomp.profiling import probed_profile

_log = logging.getLogger(__name__)
_VARIABLE = "FLEXCOMP_PROBE"
_NO = {"0", "false", "f", "no", "n", "off"}  # as on the command line


def usually() -> bool:
    """Whether storage is measured where nobody says: FLEXCOMP_PROBE=0 turns that off."""
    return os.environ.get(_VARIABLE, "").lower() not in _NO


def probed(target: object, probe: bool | str | Path | None, say: Callable[[str], None]) -> DeviceProfile | None:
    """The profile of this machine with the storage of a folder, by default the current one; None if nothing is to be measured.

    `probe` is as in `build`. Raises InputError if storage that was asked for cannot be measured.
    """
    if probe is None:
        if target != "native" or not usually():
            return None
    elif probe is False:
        return None
    folder = Path() if probe is None or probe is True else checked_path(probe, "probe")
    if target != "native":
        raise InputError('probe measures the storage of this machine: it is for target="native"')
    try:
        profile, note = probed_profile(folder, resolve_target(target))
    except InputError as error:
        if probe is not None:
            raise
        _log.warning("%s; planned for guessed rates", error)
        return None
    say(note)
    return profile
