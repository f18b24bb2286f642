"""The planner's assumptions about a device: rates of computing and of reading storage."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType

from flexcomp import plan
from flexcomp.errors import InputError
from flexcomp.files import replacing
from flexcomp.json_text import parse
from flexcomp.plan import SLICE_S, Storage
from flexcomp.program import COPIED_NBYTES, CountArg, FirstArg, Layer, ValidArg, ValueArg, WeightArg, Weights
from flexcomp.schedules import registry

from .presets import Preset

FORMAT = "flexcomp.device.1"


@dataclass(frozen=True)
class KernelTime:
    """Measured seconds of one kernel: of the whole layer in one call, and of each further call for a slice of it."""

    seconds: float
    slice_s: float = SLICE_S


@dataclass(frozen=True)
class FamilyRate:
    """Costs of kernels of one family that were not measured themselves; the two add up."""

    seconds_per_flop: float  # of all threads together; operations as in `Layer.flops`
    seconds_per_byte: float  # of operands and results


@dataclass(frozen=True)
class DelayModel:
    """SwapNet's delays of a block of s bytes, d tensors and f operations (section 6.1).

    t_in = alpha·s + beta·d,  t_ex = gamma·f,  t_out = eta·d
    """

    alpha: float  # seconds per byte
    beta: float  # seconds per tensor
    gamma: float  # seconds per operation
    eta: float  # seconds per tensor


@dataclass(frozen=True)
class DeviceProfile:
    """Rates of a device. The defaults are a middling edge device's; measured ones give better plans."""

    flops_per_s: float  # of one thread, for kernels with operands in registers
    memory_bytes_per_s: float  # read and written by memory-bound kernels, of one thread if the next field is known
    all_memory_bytes_per_s: float = 0.0  # the same of all cores together; 0: not known
    last_level_bytes_per_s: float = 0.0  # read by one thread's kernels from the last-level cache; 0: not known
    all_last_level_bytes_per_s: float = 0.0  # the same of all cores together; 0: not known
    second_level_bytes: float = 0.0  # of the cache that a core has for itself; 0: not known
    last_level_bytes: float = 0.0  # that stay in the last-level cache while others use it, too; 0: not known
    storage_bytes_per_s: float = 1.0e9  # sequential reads past the page cache
    copy_bytes_per_s: float = 0.0  # from host memory to a GPU's; 0: nothing is copied, or included in the rate of storage
    load_overhead_s: float = 60e-6  # of one read, whatever its size
    load_latency_s: float = 0.0  # of one read where none is in flight; others are served without a pause
    load_disturbance: float = 0.0  # during loads of B bytes per second computing takes 1 + load_disturbance * B times as long
    load_cache_bytes: float = 0.0  # loads that go round in so many bytes disturb little: copies in memory that stay in caches
    load_together: float = 1.0  # how many times as fast loads are while computing waits for them, and its core copies too
    load_cached: float = 1.0  # how many times as fast loads are that stay in caches
    load_small_pages: float = 1.0  # how many times as long bytes take that are read into memory that is not in huge pages
    prepare_bytes_per_s: float = 0.0  # of prepared weights, that a core makes; 0: not measured
    step_overhead_s: float = 1e-6  # of one kernel call
    wake_s: float = 0.0  # until a step that waited for a load, or a load that waited for a step, begins
    threads: int = 0  # compute threads that kernels and families were measured with; 0: not measured
    cores: int = 0  # that compute; 0: not known
    kernels: Mapping[str, KernelTime] = field(default_factory=lambda: MappingProxyType({}))  # by `kernel_key`
    families: Mapping[str, FamilyRate] = field(default_factory=lambda: MappingProxyType({}))  # by `family`
    delays: DelayModel | None = None
    # By family, of kernels that were measured: how many times as long their work takes as that of direct kernels.
    slowness: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def prepare_s(self) -> float:
        """Seconds that a core takes for a byte of prepared weights."""
        if self.prepare_bytes_per_s:
            return 1 / self.prepare_bytes_per_s
        return _PREPARING_BYTES / self.memory_bytes_per_s

    @property
    def fresh_s(self) -> float:
        """Seconds that a core takes to make a byte of memory exist."""
        return _FRESH_BYTES / self.memory_bytes_per_s

    def memory_rate(self, threads: int) -> float:
        """Bytes per second that so many threads together read from memory."""
        return max(self.memory_bytes_per_s, min(threads * self.memory_bytes_per_s, self.all_memory_bytes_per_s))

    def last_level_rate(self, threads: int) -> float:
        """The same of the last-level cache; 0: not known."""
        each = threads * self.last_level_bytes_per_s
        return min(each, self.all_last_level_bytes_per_s) if threads > 1 and self.all_last_level_bytes_per_s else each

    def core_contention(self, threads: int) -> float:
        """`Storage.core_contention` for a number of compute threads, which share the cores with the thread that prepares."""
        return 1 / threads if 0 < self.cores <= threads else 0.0

    def prepared_late(self, weights: Weights) -> bool:
        """Whether reading and preparing weights takes longer than reading prepared weights."""
        read = weights.stored_nbytes / weights.nbytes
        return self.storage.load_cost(plan.Weights(0, 1, weights.nbytes, read, self.prepare_s)) > 1

    @property
    def storage(self) -> Storage:
        """The planner's model of loading.

        Reads and copies to a GPU overlap: the slower one sets the pace, and the last piece of a load
        is copied when all is read.
        """
        copied = self.copy_bytes_per_s > 0
        return Storage(
            min(self.storage_bytes_per_s, self.copy_bytes_per_s) if copied else self.storage_bytes_per_s,
            self.load_overhead_s,
            self.wake_s,
            self.load_disturbance,
            int(self.load_cache_bytes),
            self.load_together,
            self.load_latency_s + (COPIED_NBYTES / self.copy_bytes_per_s if copied else 0.0),
            self.load_cached,
            small_pages=self.load_small_pages,
        )

    def seconds(self, flops: float, nbytes: int, threads: int, weights: int | None = None) -> float:
        """Predicted time of a kernel that does `flops` operations on `nbytes` bytes of operands.

        Of these, `weights` come from memory, and others from the caches, where they fit; by default all come from memory.
        """
        values = 0 if weights is None else nbytes - weights
        memory, last_level = self.memory_rate(threads), self.last_level_rate(threads)
        cached = 0 < values <= self.last_level_bytes and last_level > 0
        moved_s = (nbytes - values) / memory + values / (last_level if cached else memory)
        return self.step_overhead_s + max(flops / (self.flops_per_s * threads), moved_s)

    def layer_seconds(self, layer: Layer, work: float, nbytes: int, threads: int) -> float:
        """Predicted time of a layer in one call: its kernel's if measured, else by the rates of its family."""
        weights = sum(arg.type.nbytes for arg in layer.args if isinstance(arg, WeightArg))
        if threads != self.threads:
            return self.seconds(work, nbytes, threads, weights)
        if known := self.kernels.get(kernel_key(layer)):
            return known.seconds
        if rate := self.families.get(family(layer)):
            return self.step_overhead_s + layer.flops * rate.seconds_per_flop + nbytes * rate.seconds_per_byte
        return self.seconds(work, nbytes, threads, weights)

    def slice_seconds(self, layer: Layer, threads: int) -> float:
        """Seconds that each further slice adds to a layer: a call, and the kernel's preparation of its input."""
        if threads == self.threads and (known := self.kernels.get(kernel_key(layer))):
            return known.slice_s
        known = registry.family(family(layer))
        if known is None or not known.preparing_flops:
            return SLICE_S
        read = next(arg for arg in layer.args if isinstance(arg, ValueArg) and not arg.written)
        return SLICE_S + known.preparing_flops * read.touched_nbytes / (self.flops_per_s * threads)

    def save(self, path: str | Path) -> None:
        """Write the profile as JSON."""
        tables = {
            "kernels": {key: asdict(time) for key, time in self.kernels.items()},
            "families": {key: asdict(rate) for key, rate in self.families.items()},
            "delays": asdict(self.delays) if self.delays else None,
            "slowness": dict(self.slowness),
        }
        document = {"format": FORMAT, **{f.name: tables.get(f.name, getattr(self, f.name)) for f in fields(self)}}
        with replacing(path) as partial:
            partial.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


# Cost of preparing a byte of weights if not measured, in bytes read from memory: transforms of 3×3 weights and
# sums of quarters made 10 to 13 GB/s on one Zen 4 core.
_PREPARING_BYTES = 2.2
# And the system's cost of a byte of untouched memory: the system zeroes 3 to 6 GB/s in huge pages, 2 to 3 in small
# ones.
_FRESH_BYTES = 4.0
# A loaded byte delays computing by this part of its time in memory, if not measured. Copies from
# tmpfs took 0.14 from ResNet-152 on a quiet machine, and up to 0.8 where others used the memory too.
_DELAY = 0.25


# The last-level cache's rate over that of memory, if not measured; and the part of the cache that others leave to weights.
_LAST_LEVEL = 2.0
PART_OF_LAST_LEVEL = 0.5
# Cost of a load in a queue with others, as a part of the latency, if not measured: with eight
# in flight, reads of 8 KiB took a seventh of the latency each.
QUEUED = 1 / 16
# A further cost on any device: two threads hand over to each other. On cores of their own that takes a few microseconds;
# where others have them half of the time, 200 to 1,000 for each load of MobileNetV2.
HANDOVER_S = 16e-6


def guessed_overhead_s(latency_s: float) -> float:
    """Seconds that each load costs a device of that latency, if not measured."""
    return QUEUED * latency_s + HANDOVER_S


def default_profile(vector_width: int, preset: Preset | None = None) -> DeviceProfile:
    """The profile of a preset's device, or a guess from the vector unit: a multiply-add each cycle at 3 GHz."""
    if preset is None or preset.core is None or not preset.ghz:
        flops = 2.0 * vector_width * 3.0e9
        # Machines with wide vectors have memory to match: one with AVX-512 read a byte in the time of 3.6 operations.
        return rates_profile(flops, max(15e9, flops / 3.6), DeviceProfile.storage_bytes_per_s, Preset.load_latency_s)
    core, flops = preset.core, 2.0 * vector_width * preset.core.fmas * preset.ghz * 1e9
    profile = rates_profile(flops, preset.memory_bytes_per_s, preset.storage_bytes_per_s, preset.load_latency_s)
    return replace(
        profile,
        all_memory_bytes_per_s=preset.all_memory_bytes_per_s,
        last_level_bytes_per_s=_LAST_LEVEL * preset.memory_bytes_per_s,
        second_level_bytes=float(core.l2_nbytes),
        last_level_bytes=PART_OF_LAST_LEVEL * (core.l3_nbytes or core.l2_nbytes),
    )


def rates_profile(
    flops_per_s: float, memory_bytes_per_s: float, storage_bytes_per_s: float, load_latency_s: float
) -> DeviceProfile:
    """The profile of a device of which no more is known."""
    return DeviceProfile(
        flops_per_s=flops_per_s,
        memory_bytes_per_s=memory_bytes_per_s,
        storage_bytes_per_s=storage_bytes_per_s,
        load_overhead_s=guessed_overhead_s(load_latency_s),
        load_latency_s=load_latency_s,
        load_disturbance=_DELAY / memory_bytes_per_s,
    )


def family(layer: Layer) -> str:
    """The first word of the implementation, and for kernels made from TVM's legalisation the operator."""
    word = layer.implementation.partition(" ")[0]
    return f"{word} {layer.op}" if word == "generic" else word


def kernel_key(layer: Layer) -> str:
    """The facts that decide a kernel's time in any network and budget: its code and its shapes."""
    shapes = " ".join(str(arg.type) for arg in layer.args if not isinstance(arg, FirstArg | CountArg | ValidArg))
    return f"{layer.op} | {layer.implementation} | {layer.description} | {shapes}"


def load_profile(path: str | Path) -> DeviceProfile:
    """Read a profile written by `flexcomp profile`. Raises InputError, with the reason, for anything else."""
    try:
        document = parse(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the device profile {path}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"the device profile {path} is not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(f'the device profile {path} does not say "format": "{FORMAT}": measure the device again')
    document.pop("format")
    try:
        return _profile(document)
    except ValueError as error:
        raise InputError(f"the device profile {path} is wrong: {error}") from None


def _profile(document: dict) -> DeviceProfile:
    counts, delays = {name: document.pop(name, 0) for name in ("threads", "cores")}, document.pop("delays", None)
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ValueError(f"{name} is {count!r}")
    kernels = {key: _record(KernelTime, value, f'kernel "{key}"') for key, value in _table(document, "kernels")}
    families = {key: _record(FamilyRate, value, f'family "{key}"') for key, value in _table(document, "families")}
    slowness = dict(_table(document, "slowness"))
    for name, times in slowness.items():
        if not isinstance(times, int | float) or isinstance(times, bool) or not 0 < times < math.inf:
            raise ValueError(f"slowness of {name!r} is {times!r}")
    profile = _record(
        DeviceProfile,
        document,
        "the profile",
        **counts,
        kernels=MappingProxyType(kernels),
        families=MappingProxyType(families),
        delays=None if delays is None else _record(DelayModel, delays, "delays"),
        slowness=MappingProxyType(slowness),
    )
    for name in ("load_together", "load_cached", "load_small_pages"):
        if (value := getattr(profile, name)) < 1:
            raise ValueError(f"the profile has {name} = {value!r}, less than 1")
    return profile


def _table(document: dict, name: str) -> list[tuple[str, object]]:
    table = document.pop(name, {})
    if not isinstance(table, dict):
        raise ValueError(f"{name} is not a table")
    return list(table.items())


_MAY_BE_ZERO = (
    "slice_s", "copy_bytes_per_s", "load_overhead_s", "load_latency_s", "load_disturbance", "load_cache_bytes", "wake_s",
    "prepare_bytes_per_s", "last_level_bytes_per_s", "second_level_bytes", "last_level_bytes",
    "all_memory_bytes_per_s", "all_last_level_bytes_per_s",
    "step_overhead_s", "seconds_per_flop", "seconds_per_byte",
    "alpha", "beta", "gamma", "eta",
)  # fmt: skip


def _record(kind: type, values: object, what: str, **ready: object):
    """A dataclass of numbers, all finite and not negative; rates are not zero either."""
    known = {f.name for f in fields(kind)} - set(ready)
    if not isinstance(values, dict):
        raise ValueError(f"{what} is not a table")
    if unknown := set(values) - known:
        raise ValueError(f"{what} has a field {sorted(unknown)[0]!r} that is not known")
    for name, value in values.items():
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not number or value < 0 or (value == 0 and name not in _MAY_BE_ZERO):
            raise ValueError(f"{what} has {name} = {value!r}")
    try:
        return kind(**values, **ready)
    except TypeError as error:
        raise ValueError(f"{what} lacks a field: {error}") from None
