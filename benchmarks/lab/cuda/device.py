"""The GPU of this machine through its driver: its name, its free memory, and the rate of copies to it."""

from __future__ import annotations

import ctypes
import statistics
import time

_MAJOR, _MINOR = 75, 76  # attributes: compute capability
_COPIED = 64 << 20  # bytes of a copy
_ROUNDS = 9


class NoGpu(Exception):
    """There is none, or no driver for it."""


class Gpu:
    """The first GPU, with a context of its own."""

    def __init__(self) -> None:
        try:
            self._driver = ctypes.CDLL("libcuda.so.1")
        except OSError:
            raise NoGpu("there is no libcuda.so.1: NVIDIA's driver is not installed") from None
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._device = device.value
        # The one that others in this process use, too.
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)

    @property
    def name(self) -> str:
        """The driver's name of the GPU."""
        text = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", text, len(text), self._device)
        return text.value.decode()

    @property
    def architecture(self) -> str:
        """ "sm_90"."""
        numbers = [ctypes.c_int(), ctypes.c_int()]
        for number, attribute in zip(numbers, (_MAJOR, _MINOR), strict=True):
            self._call("cuDeviceGetAttribute", ctypes.byref(number), attribute, self._device)
        return f"sm_{numbers[0].value}{numbers[1].value}"

    def used_nbytes(self) -> int:
        """Of the memory of the GPU, by everybody."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return total.value - free.value

    def copy_bandwidth(self) -> float:
        """Bytes per second from pinned memory of the host: the median of some copies."""
        host, place = ctypes.c_void_p(), ctypes.c_uint64()
        self._call("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(_COPIED), 0)
        self._call("cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(_COPIED))
        try:
            seconds = []
            for _ in range(_ROUNDS):
                start = time.perf_counter()
                self._call("cuMemcpyHtoD_v2", place, host, ctypes.c_size_t(_COPIED))
                self._call("cuCtxSynchronize")
                seconds.append(time.perf_counter() - start)
            return _COPIED / statistics.median(seconds)
        finally:
            self._call("cuMemFree_v2", place)
            self._call("cuMemFreeHost", host)

    def _call(self, name: str, *args: object) -> None:
        code = getattr(self._driver, name)(*args)
        if code:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorName(code, ctypes.byref(text))
            raise NoGpu(f"{name}: {(text.value or b'error').decode()} ({code})")
