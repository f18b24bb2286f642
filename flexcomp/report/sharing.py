"""Waits of an inference other than for storage: cores on which other work ran."""

from __future__ import annotations

_NOTICED = 0.1  # of the latency; any system has less than that


def waiting(stall_ms: float, read_ms: float | None) -> str:
    """How long steps waited for weights, and how long storage was busy, if known."""
    busy = "" if read_ms is None else f", storage was busy {read_ms:.2f} ms"
    return f"{stall_ms:.2f} ms{busy}"


def shared_processor(latency_ms: float, core_wait_ms: float | None) -> str | None:
    """A sentence if threads of an inference had no core for a part of it that matters; None if not, or not known."""
    if core_wait_ms is None or core_wait_ms < _NOTICED * latency_ms:
        return None
    return (
        f"the processor was shared: within {latency_ms:.2f} ms threads were ready for {core_wait_ms:.2f} ms while "
        "other threads had the cores"
    )
