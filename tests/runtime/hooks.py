"""Sessions with faults: options of the runtime that are for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import flexcomp
from flexcomp.runtime import LoadOptions

HOOKS = ("fail_read_at", "sysfs_cpus")  # the read that fails, from 1; another folder than /sys/devices/system/cpu


@contextmanager
def hooked(**hooks: Any) -> Iterator[None]:
    """Sessions and models that are opened meanwhile have these options, too."""
    with patch.object(LoadOptions, "hooks", hooks):
        yield


def load(*args: Any, **options: Any) -> flexcomp.Session:
    """`flexcomp.load`, with HOOKS as options."""
    with hooked(**{name: options.pop(name) for name in HOOKS if name in options}):
        return flexcomp.load(*args, **options)
