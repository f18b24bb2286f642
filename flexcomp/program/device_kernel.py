"""The byte format of a kernel for a GPU, of which this module is the authority.

In a library for CPUs the symbol of a kernel is a function; for a GPU the symbol is constant data: machine code and launches.
The reader on the device is `runtime_ext/src/cuda/device_kernel.cc`. Everything is little-endian:

    kernel   = 0x55435846:u32 version:u32=1 nbytes:u64 launches:u32 images:u32 launch* integers:u64 image*
               nbytes counts all bytes of the kernel; bit i of `integers`: parameter i is a number, int64, and no tensor
    launch   = (fixed:u32 per_count:u32)[3] threads:u32[3] arguments:u32 position:u8* function:str
               a device function on blocks of threads: along each axis of the grid fixed + per_count · count blocks, where count
               is the last number among the kernel's parameters, 0 without any; its arguments are the parameters at these
               positions, tensors as device pointers
    image    = architecture:u32 kind:u32 nbytes:u64 padding bytes
               kind 0: a cubin, architecture 87 for sm_87; kind 1: PTX, which ends in a zero byte, of that virtual architecture;
               zeros before the bytes let them begin at a multiple of 8, counted from the beginning of the kernel
    str      = nbytes:u32 ASCII

Launches follow each other: each begins when the previous one has ended.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from flexcomp.errors import ArtifactError

MAGIC = 0x55435846  # "FXCU"
VERSION = 1
MOST_PARAMETERS = 64
# Host memory, outside of the budget, through which the runtime copies weights to a GPU with memory of its own, and the
# largest copy.
PINNED_NBYTES = 2**22
COPIED_NBYTES = 2**20
# Metadata of a program: bytes of machine code for its architecture, which a driver keeps in the GPU's memory, not in the budget.
CODE_NBYTES = "code_bytes"
# In what a GPU with memory of its own gives it.
MEMORY_UNIT = 2**21

_HEADER = struct.Struct("<IIQII")
_ALIGN = 8


class Kind(IntEnum):
    """Of machine code."""

    CUBIN = 0
    PTX = 1


@dataclass(frozen=True)
class Extent:
    """A number of blocks: `fixed` + `per_count` · count, for the number of weight blocks of a step."""

    fixed: int
    per_count: int = 0

    def of(self, count: int) -> int:
        return self.fixed + self.per_count * count


@dataclass(frozen=True)
class Launch:
    """One device function on a grid of blocks of threads."""

    function: str
    arguments: tuple[int, ...]  # positions of the kernel's parameters
    blocks: tuple[Extent, Extent, Extent]
    threads: tuple[int, int, int]


@dataclass(frozen=True)
class Image:
    """Machine code of all device functions of a kernel."""

    architecture: int  # 87 for sm_87, or for PTX of compute_87
    kind: Kind
    code: bytes


@dataclass(frozen=True)
class DeviceKernel:
    """The data at the symbol of a kernel."""

    launches: tuple[Launch, ...]
    integers: frozenset[int]  # positions of parameters that are numbers
    images: tuple[Image, ...]


def encode(kernel: DeviceKernel) -> bytes:
    """The bytes that the runtime reads."""
    positions = [*kernel.integers, *(at for launch in kernel.launches for at in launch.arguments)]
    assert all(0 <= at < MOST_PARAMETERS for at in positions), f"a kernel takes more than {MOST_PARAMETERS} parameters"
    body = b"".join(map(_encoded_launch, kernel.launches))
    body += struct.pack("<Q", sum(1 << at for at in kernel.integers))
    for image in kernel.images:
        body += struct.pack("<IIQ", image.architecture, image.kind, len(image.code))
        body += bytes(-(_HEADER.size + len(body)) % _ALIGN) + image.code
    nbytes = _HEADER.size + len(body)
    return _HEADER.pack(MAGIC, VERSION, nbytes, len(kernel.launches), len(kernel.images)) + body


def _encoded_launch(launch: Launch) -> bytes:
    blocks = [number for extent in launch.blocks for number in (extent.fixed, extent.per_count)]
    name = launch.function.encode("ascii")
    head = struct.pack("<10I", *blocks, *launch.threads, len(launch.arguments))
    return head + bytes(launch.arguments) + struct.pack("<I", len(name)) + name


def decode(data: bytes) -> DeviceKernel:
    """The kernel of these bytes. Raises ArtifactError for anything else."""
    try:
        magic, version, nbytes, launches, images = _HEADER.unpack_from(data)
        if magic != MAGIC or version != VERSION or nbytes != len(data):
            raise ArtifactError("not a kernel for a GPU, or one of another version")
        reader = _Reader(data)
        found = tuple(reader.launch() for _ in range(launches))
        (bits,) = reader.get("Q")
        integers = frozenset(at for at in range(MOST_PARAMETERS) if bits >> at & 1)
        kernel = DeviceKernel(found, integers, tuple(reader.image() for _ in range(images)))
    except (struct.error, ValueError) as error:
        raise ArtifactError(f"a kernel for a GPU is malformed: {error}") from None
    if reader.at != len(data):
        raise ArtifactError(f"a kernel for a GPU is malformed: {len(data) - reader.at} bytes too many")
    return kernel


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, _HEADER.size

    def get(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from(f"<{layout}", self.data, self.at)
        self.at += struct.calcsize(f"<{layout}")
        return values

    def bytes(self, nbytes: int) -> bytes:
        if nbytes > len(self.data) - self.at:
            raise ArtifactError("a kernel for a GPU is cut short")
        self.at += nbytes
        return self.data[self.at - nbytes : self.at]

    def launch(self) -> Launch:
        *sizes, arguments = self.get("10I")
        blocks: Sequence[Extent] = [Extent(*sizes[axis : axis + 2]) for axis in (0, 2, 4)]
        taken = tuple(self.bytes(arguments))
        return Launch(self.bytes(*self.get("I")).decode("ascii"), taken, tuple(blocks), tuple(sizes[6:]))

    def image(self) -> Image:
        architecture, kind, nbytes = self.get("IIQ")
        self.bytes(-self.at % _ALIGN)
        return Image(architecture, Kind(kind), self.bytes(nbytes))
