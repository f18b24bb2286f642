"""The driver of `driver.cc` and `fake.cc`, which sessions of this process find as libcuda.so.1."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np

from tests.kept import compiler, made

_SOURCES = tuple(str(Path(__file__).with_name(name)) for name in ("driver.cc", "fake.cc"))
_FLAGS = ("-std=c++20", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-fPIC", "-shared", "-pthread")


class Settings(ctypes.Structure):
    """As in `model.h`."""

    _fields_ = (
        ("architecture", ctypes.c_int), ("integrated", ctypes.c_int),
        ("granularity", ctypes.c_uint64), ("nbytes", ctypes.c_uint64), ("seed", ctypes.c_uint),
        ("compute_delay_us", ctypes.c_int), ("copy_delay_us", ctypes.c_int),
        ("least_delay_us", ctypes.c_int),
        ("fail_at", ctypes.c_int64), ("fail_with", ctypes.c_int), ("skip_at", ctypes.c_int64), ("skip_kind", ctypes.c_int),
        ("version", ctypes.c_int), ("refuses_cubins", ctypes.c_int),
    )  # fmt: skip


REFUSED, USELESS = 2, 999  # out of memory; an error after which a context gives nothing else
_USUAL = {"architecture": 80, "granularity": 64 << 10, "nbytes": 1 << 30, "fail_with": USELESS, "version": 12080}


def build(folder: Path) -> Path:
    """The library."""

    def make(library: Path) -> None:
        subprocess.run(["g++", *_FLAGS, "-Wl,-soname,libcuda.so.1", *_SOURCES, "-o", str(library), "-ldl"], check=True)

    headers = sorted(Path(__file__).parent.glob("*.h"))
    kept = made("libcuda.so.1", (*_FLAGS, *map(Path, _SOURCES), *headers, compiler()), make)
    return Path(shutil.copy(kept, folder))


class Fake:
    """The one GPU of this process."""

    def __init__(self, library: Path) -> None:
        # Whoever opens a library of that name from now on gets this one.
        self._library = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        for name in ("FakeCalls", "FakeWaits", "FakeCalled"):
            getattr(self._library, name).restype = ctypes.c_int64
        for name in ("FakeUsed", "FakePeak", "FakeAllocate"):
            getattr(self._library, name).restype = ctypes.c_uint64
        for name in ("FakeLive", "FakeFault", "FakeFailed"):
            getattr(self._library, name).restype = ctypes.c_char_p

    def set(self, **settings: int) -> None:
        """From now on; other settings are as usual. Calls, waits and the peak of memory are counted anew."""
        self._settings = _USUAL | settings
        self._library.FakeSet(ctypes.byref(Settings(**self._settings)))

    def revive(self) -> None:
        """The context works again."""
        self._library.FakeRevive()

    def lose(self) -> None:
        """A kernel makes the context useless."""
        self._library.FakeLose()

    @property
    def calls(self) -> int:
        return self._library.FakeCalls()

    def waits(self, kind: int) -> int:
        """For events: of the compute stream (0), of the copy stream (1), of the process (2)."""
        return self._library.FakeWaits(kind)

    @property
    def used(self) -> int:
        """Bytes of device memory, of mapped host memory on an integrated GPU."""
        return self._library.FakeUsed()

    @property
    def peak(self) -> int:
        return self._library.FakePeak()

    @property
    def live(self) -> str:
        """Objects that were made and not given back; empty: none."""
        return self._library.FakeLive().decode()

    @property
    def fault(self) -> str:
        """Faults of kernels and copies; empty: none."""
        return self._library.FakeFault().decode()

    @property
    def fails_for_good(self) -> bool:
        """Whether failures make the context useless."""
        return self._settings["fail_with"] == USELESS

    @property
    def failed(self) -> str:
        """The call that was told to fail and did; empty: none."""
        return self._library.FakeFailed().decode()

    def allocate(self, nbytes: int) -> int:
        """The address of memory for a tensor of a caller's, that no budget counts."""
        return self._library.FakeAllocate(ctypes.c_size_t(nbytes))

    def free(self, address: int) -> None:
        self._library.FakeFree(ctypes.c_uint64(address))

    def exchange(self, address: int, array: np.ndarray, *, read: bool) -> None:
        """Copy between an array and memory of the device, at once."""
        self._library.FakeExchange(ctypes.c_uint64(address), _data(array), ctypes.c_size_t(array.nbytes), read)

    def write_late(self, address: int, array: np.ndarray, delay_us: int) -> None:
        """As work of a caller's on the default stream does that is over after a while."""
        self._library.FakeWriteLate(ctypes.c_uint64(address), _data(array), ctypes.c_size_t(array.nbytes), delay_us)

    def called(self, name: str) -> int:
        """How often a call was made; also "pageable copies", from or to memory of arrays, and "PTX" that was loaded."""
        return self._library.FakeCalled(name.encode())


def _data(array: np.ndarray) -> ctypes.c_void_p:
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)
