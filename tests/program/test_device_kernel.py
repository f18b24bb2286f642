"""Kernels for GPUs as bytes: what the runtime reads, byte by byte, and what is no such kernel."""

import pytest

from flexcomp.errors import ArtifactError
from flexcomp.program import DeviceKernel, Extent, Image, Kind, Launch
from flexcomp.program.device_kernel import decode, encode

FIRST = Launch("kernel_kernel", (1, 0, 4, 3, 2), (Extent(48), Extent(0, 1), Extent(1)), (64, 1, 1))
SECOND = Launch("kernel_kernel_1", (4,), (Extent(7, 2), Extent(1), Extent(1)), (32, 4, 1))
KERNEL = DeviceKernel((FIRST, SECOND), frozenset({2, 3}), (Image(87, Kind.CUBIN, b"\x7fELF."), Image(87, Kind.PTX, b".ptx\0")))


def numbers(*values, nbytes=4):
    return b"".join(value.to_bytes(nbytes, "little") for value in values)


def test_bytes():
    launches = numbers(48, 0, 0, 1, 1, 0, 64, 1, 1, 5) + bytes([1, 0, 4, 3, 2]) + numbers(13) + b"kernel_kernel"
    launches += numbers(7, 2, 1, 0, 1, 0, 32, 4, 1, 1) + bytes([4]) + numbers(15) + b"kernel_kernel_1"
    body = launches + numbers(0b1100, nbytes=8)
    for kind, code in ((0, b"\x7fELF."), (1, b".ptx\0")):
        body += numbers(87, kind) + numbers(len(code), nbytes=8)
        body += bytes(-(24 + len(body)) % 8) + code
    expected = b"FXCU" + numbers(1) + numbers(24 + len(body), nbytes=8) + numbers(2, 2) + body
    assert encode(KERNEL) == expected.replace(b"FXCU", numbers(0x55435846))
    assert encode(KERNEL)[:4] == b"FXCU"


def test_round_trip():
    assert decode(encode(KERNEL)) == KERNEL
    assert KERNEL.launches[1].blocks[0].of(5) == 17


def test_images_are_aligned():
    data = encode(KERNEL)
    assert all(data.index(image.code) % 8 == 0 for image in KERNEL.images)


@pytest.mark.parametrize("change", ["cut", "longer", "magic", "version", "kind"])
def test_what_is_no_kernel(change):
    data = bytearray(encode(KERNEL))
    if change == "cut":
        del data[-1]
    elif change == "longer":
        data += b"\0"
    elif change == "kind":
        data[data.index(b"\x7fELF") - 16 : data.index(b"\x7fELF")] = b"\xff" * 16
    else:
        data[{"magic": 0, "version": 4}[change]] ^= 0xFF
    with pytest.raises(ArtifactError):
        decode(bytes(data))


def test_every_cut_is_refused():
    data = encode(KERNEL)
    for end in range(24, len(data)):
        cut = data[:8] + numbers(end, nbytes=8) + data[16:end]
        with pytest.raises(ArtifactError):
            decode(cut)
