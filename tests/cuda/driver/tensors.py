"""Tensors in the memory of the GPU of tests, as other libraries hand them over by DLPack."""

from __future__ import annotations

import ctypes

import numpy as np

from tests.cuda.driver.fake import Fake

CUDA, ROCM, CUDA_MANAGED = 2, 10, 13
_CODES = {"i": 0, "u": 1, "f": 2}


class _Tensor(ctypes.Structure):
    """DLTensor of dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int), ("device_id", ctypes.c_int), ("ndim", ctypes.c_int),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class _Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class DeviceTensor:
    """A tensor with the values of an array; `offset_nbytes` lie before its first element, whose memory is poison.

    The tensor may claim other strides, of elements.
    """

    def __init__(
        self,
        fake: Fake,
        array: np.ndarray,
        *,
        kind: int = CUDA,
        device: int = 0,
        offset_nbytes: int = 0,
        strides: list[int] | None = None,
    ) -> None:
        self._fake, self._like, self._place = fake, array, (kind, device)
        self._allocated = fake.allocate(offset_nbytes + array.nbytes)
        self.address = self._allocated + offset_nbytes
        self._offset = offset_nbytes
        self.fill(array)
        strides = strides or [stride // array.itemsize for stride in array.strides]
        self._shape, self._strides = ((ctypes.c_int64 * array.ndim)(*numbers) for numbers in (array.shape, strides))

    def fill(self, array: np.ndarray) -> None:
        self._fake.exchange(self.address, np.ascontiguousarray(array), read=False)

    def numpy(self) -> np.ndarray:
        """A copy on the CPU."""
        array = np.empty_like(self._like)
        self._fake.exchange(self.address, array, read=True)
        return array

    def free(self) -> None:
        self._fake.free(self._allocated)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._place

    def __dlpack__(self, **_: object) -> object:
        dtype = self._like.dtype
        tensor = _Tensor(
            self._allocated, *self._place, self._like.ndim, _CODES[dtype.kind], 8 * dtype.itemsize, 1,
            self._shape, self._strides, self._offset,
        )  # fmt: skip
        self._managed = _Managed(tensor, None, None)  # its memory is this object's, which outlives the call
        return _new_capsule(ctypes.addressof(self._managed), b"dltensor", None)
