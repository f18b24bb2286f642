"""The runtime's trace of one inference: when each step and each load ran."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flexcomp.errors import ArtifactError
from flexcomp.json_text import parse, whole

Span = tuple[int, int]


@dataclass(frozen=True)
class Trace:
    """One inference. Times are nanoseconds of the machine's monotonic clock."""

    rung: int  # index in the ladder
    begin_ns: int
    end_ns: int  # 0: the inference failed
    steps: tuple[Span, ...]  # (begin, end) of each step, without waiting
    loads: tuple[Span, ...]  # of each load's read; (0, 0) where the weights were in the arena already
    prepares: tuple[Span, ...] = ()  # of preparing the load's bytes; (0, 0) where nothing was; (): nowhere
    core_wait_ms: float | None = None  # threads were ready while others had the core, all together; None: not known

    def loaded(self, index: int) -> Span:
        """From the beginning of a load's read to the end of its preparation."""
        begin, end = self.loads[index]
        return begin, max(end, self.prepares[index][1]) if self.prepares else end

    @property
    def latency_s(self) -> float:
        """Seconds from the inputs to the outputs."""
        return (self.end_ns - self.begin_ns) * 1e-9


@dataclass(frozen=True)
class Traces:
    """Several inferences of one plan."""

    rung: int  # index in the ladder
    threads: int
    inferences: tuple[Trace, ...]

    @property
    def median(self) -> Trace:
        """The inference with the median latency."""
        return sorted(self.inferences, key=lambda trace: trace.latency_s)[len(self.inferences) // 2]


@dataclass(frozen=True)
class DeviceRates:
    """Costs of a GPU besides the time of kernels."""

    copy_bytes_per_s: float  # from memory of the process to the GPU's; 0: nothing is copied
    launch_s: float  # of a kernel, as one follows the other
    wait_s: float  # from the launch of a kernel that does nothing until the process knows of its end, as for traced steps
    event_s: float  # until work that waits for an event of another stream begins


def parse_trace(text: str) -> Trace:
    """The trace that the runtime gives as JSON. Raises ArtifactError for anything else."""
    try:
        fields = parse(text)
        steps, loads = (tuple((whole(begin), whole(end)) for begin, end in fields[name]) for name in ("steps", "loads"))
        prepares = tuple((whole(begin), whole(end)) for begin, end in fields.get("prepares", ()))  # new among them
        prepares = prepares if any(end for _, end in prepares) else ()
        return Trace(whole(fields["rung"]), whole(fields["begin_ns"]), whole(fields["end_ns"]), steps, loads, prepares=prepares)
    except (ValueError, TypeError, KeyError) as error:
        raise ArtifactError(f"this is not a trace of the runtime: {error!r}") from None


def read_traces(path: str | Path) -> Iterator[Trace]:
    """The inferences in a file written by `flexcomp-run --trace`, one a line."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            yield parse_trace(line)
