"""The GPU of this machine through its driver: its name and its free memory."""

from __future__ import annotations

import ctypes


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

    def used_nbytes(self) -> int:
        """Of the memory of the GPU, by everybody."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return total.value - free.value

    def _call(self, name: str, *args: object) -> None:
        code = getattr(self._driver, name)(*args)
        if code:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorName(code, ctypes.byref(text))
            raise NoGpu(f"{name}: {(text.value or b'error').decode()} ({code})")
