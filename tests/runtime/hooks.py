"""Sessions with faults: options of the runtime that are for tests."""

from __future__ import annotations

from typing import Any

import flexcomp
from flexcomp.runtime.load_options import hooked

HOOKS = ("fail_read_at", "sysfs_cpus")  # the read that fails, from 1; another folder than /sys/devices/system/cpu


def load(*args: Any, **options: Any) -> flexcomp.Session:
    """`flexcomp.load`, with HOOKS as options."""
    with hooked(**{name: options.pop(name) for name in HOOKS if name in options}):
        return flexcomp.load(*args, **options)
