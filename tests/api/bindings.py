"""flexcomp.h through ctypes."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache

import numpy as np
import tvm_ffi  # noqa: F401 - its library comes first

from flexcomp import runtime_ext

OK, CANCELLED, INPUT, ARTIFACT, BUDGET, TARGET, STORAGE, EXECUTION, OUT_OF_MEMORY, UNSUPPORTED, CLOSED, REFUSED = range(12)
DEFAULT, SMALLEST, ALL = 0, 1, 2**64 - 1  # budgets
INPUTS, OUTPUTS, STATES = range(3)
FLOAT32, INT64 = 1, 12
VERIFY, PAGE_CACHE, NO_AFFINITY, NO_WORK_STEALING, TRACE = 1, 2, 4, 8, 16
TEXT_NETWORK, TEXT_STATS, TEXT_TRACE, TEXT_DEVICE_RATES, TEXT_PLAN = range(5)
DESCRIPTOR, MEMORY, READER = 1, 2, 3  # kinds of sources
LATE = 1
CONTROL_GROUP, PRESSURE = 0, 1


class Sized(ctypes.Structure):
    """A structure that begins with its size."""

    def __init__(self, **members):
        super().__init__(size=members.pop("size", ctypes.sizeof(self)), **members)


Reader = ctypes.CFUNCTYPE(c_int64, c_void_p, c_uint64, c_void_p, c_uint64)


class Source(Sized):
    _fields_ = [
        ("size", c_size_t), ("kind", c_int32), ("descriptor", c_int32), ("offset", c_uint64), ("nbytes", c_uint64),
        ("data", c_void_p), ("read", Reader), ("context", c_void_p),
    ]  # fmt: skip


class Network(Sized):
    """As an object of a network has it (runtime_ext/src/kernels/linked_network.h)."""

    _fields_ = [
        ("size", c_size_t), ("kind", c_char_p), ("program", c_void_p), ("program_nbytes", c_uint64), ("symbols", c_void_p),
        ("symbol_count", c_uint64),
    ]  # fmt: skip


class Options(Sized):
    _fields_ = [
        ("size", c_size_t), ("weights", c_char_p), ("budget", c_uint64), ("flags", c_uint32), ("threads", c_int32),
        ("compute_cpus", c_char_p), ("loader_cpus", c_char_p), ("read_bandwidth", c_double),
        ("source", POINTER(Source)),
    ]  # fmt: skip


class TensorInfo(Sized):
    _fields_ = [
        ("size", c_size_t), ("name", c_char_p), ("shape", POINTER(c_int64)), ("rank", c_int32), ("dtype", c_int32),
        ("nbytes", c_uint64), ("open_axes", c_uint32), ("reserved", c_uint32), ("axis_names", POINTER(c_char_p)),
    ]  # fmt: skip


class Tensor(Sized):
    _fields_ = [
        ("size", c_size_t), ("data", c_void_p), ("nbytes", c_uint64), ("shape", POINTER(c_int64)), ("rank", c_int32),
        ("dtype", c_int32),
    ]  # fmt: skip


class SessionInfo(Sized):
    _fields_ = [
        ("size", c_size_t), *((name, c_uint64) for name in ("smallest", "usual", "all")),
        *((name, c_char_p) for name in ("layer", "needs", "compute_cpus", "loader_cpus")),
        ("threads", c_int32), ("reserved", c_int32),
    ]  # fmt: skip


class BudgetInfo(Sized):
    _fields_ = [
        ("size", c_size_t), *((name, c_uint64) for name in ("budget", "arena", "working", "pinned", "streamed")),
        ("predicted_s", c_double),
    ]  # fmt: skip


class Stats(Sized):
    _fields_ = [
        ("size", c_size_t), *((name, c_uint64) for name in ("runs", "restarts", "total_bytes_read", "resident")),
        ("threads", c_int32), ("direct", c_int32), ("bytes_read", c_uint64), ("reads", c_uint64),
        ("latency_s", c_double), ("stall_s", c_double), ("read_s", c_double), ("prepared_bytes", c_uint64),
        ("prepare_s", c_double), ("help_s", c_double),
    ]  # fmt: skip


class DecoderInfo(Sized):
    _fields_ = [("size", c_size_t), *((name, c_uint64) for name in ("vocabulary", "capacity", "longest"))]


class PoolOptions(Sized):
    _fields_ = [
        ("size", c_size_t), ("budget", c_uint64), ("lanes", c_uint32), ("threads", c_int32), ("queue", c_uint32),
        ("flags", c_uint32),
    ]  # fmt: skip


class MemberOptions(Sized):
    _fields_ = [
        ("size", c_size_t), ("session", POINTER(Options)), *((name, c_double) for name in ("urgency", "rate", "deadline_s")),
        ("keep", c_uint64),
    ]  # fmt: skip


class PoolStats(Sized):
    _fields_ = [
        ("size", c_size_t),
        *((name, c_uint64) for name in ("budget", "planned", "claimed", "resident", "shared", "least", "most")),
        ("members", c_uint32), ("lanes", c_uint32),
    ]  # fmt: skip


class MemberStats(Sized):
    _COUNTS = (
        "requests", "completed", "failed", "cancelled", "refused", "dropped", "waiting", "running", "missed", "kept",
    )  # fmt: skip
    _fields_ = [("size", c_size_t), *((name, c_uint64) for name in _COUNTS), ("wait_s", c_double)]


class RequestOptions(Sized):
    _fields_ = [("size", c_size_t), ("deadline_s", c_double), ("flags", c_uint32), ("reserved", c_uint32)]


Changed = ctypes.CFUNCTYPE(None, c_void_p, c_int32, c_uint64)


class FollowOptions(Sized):
    _fields_ = [
        ("size", c_size_t), ("path", c_char_p), ("interval_s", c_double), ("patience_s", c_double), ("most", c_uint64),
        ("changed", Changed), ("context", c_void_p), ("kind", c_int32), ("reserved", c_uint32),
    ]  # fmt: skip


OnText = ctypes.CFUNCTYPE(None, c_void_p, c_char_p)
Callback = ctypes.CFUNCTYPE(c_int32, c_void_p, POINTER(Tensor), c_uint32)
_SESSION = _POOL = _REQUEST = _FOLLOWER = c_void_p
_PARAMETERS = {
    "open": (c_char_p, POINTER(Options), POINTER(_SESSION)),
    "open_linked": (POINTER(Network), POINTER(Options), POINTER(_SESSION)),
    "close": (_SESSION,),
    "shape_count": (_SESSION, POINTER(c_uint32)),
    "tensor_count": (_SESSION, c_int32, POINTER(c_uint32)),
    "describe_tensor": (_SESSION, c_int32, c_uint32, c_uint32, POINTER(TensorInfo)),
    "find_tensor": (_SESSION, c_int32, c_char_p, POINTER(c_uint32)),
    "run": (_SESSION, POINTER(Tensor), c_uint32, POINTER(Tensor), c_uint32),
    "output_shape": (_SESSION, POINTER(Tensor), c_uint32, c_uint32, POINTER(c_int64), c_int32),
    "find_shape": (_SESSION, POINTER(Tensor), c_uint32, POINTER(c_uint32)),
    "describe_session": (_SESSION, POINTER(SessionInfo)),
    "get_text": (_SESSION, c_int32, OnText, c_void_p),
    "pool_get_text": (_POOL, c_int32, OnText, c_void_p),
    "measure_storage": (_SESSION, c_uint64, c_uint64, POINTER(c_double)),
    "use_shape": (_SESSION, c_uint32),
    "run_in_place": (_SESSION, Callback, Callback, c_void_p),
    "cancel": (_SESSION,),
    "warm": (_SESSION,),
    "budget_count": (_SESSION, c_uint32, POINTER(c_uint32)),
    "describe_budget": (_SESSION, c_uint32, c_uint32, POINTER(BudgetInfo)),
    "set_budget": (_SESSION, c_uint64),
    "current_budget": (_SESSION, POINTER(c_uint32)),
    "get_state": (_SESSION, c_uint32, POINTER(Tensor)),
    "set_state": (_SESSION, c_uint32, POINTER(Tensor)),
    "reset_states": (_SESSION,),
    "get_stats": (_SESSION, POINTER(Stats)),
    "describe_decoder": (_SESSION, POINTER(DecoderInfo)),
    "decode": (_SESSION, c_uint64, POINTER(c_int64), c_uint32, POINTER(c_float), POINTER(c_int64)),
    "pool_open": (POINTER(PoolOptions), POINTER(_POOL)),
    "pool_close": (_POOL,),
    "pool_add": (_POOL, c_char_p, c_char_p, POINTER(MemberOptions), POINTER(_SESSION)),
    "pool_set_budget": (_POOL, c_uint64),
    "pool_get_stats": (_POOL, POINTER(PoolStats)),
    "member_get_stats": (_SESSION, POINTER(MemberStats)),
    "submit": (_SESSION, POINTER(Tensor), c_uint32, POINTER(Tensor), c_uint32, POINTER(RequestOptions), POINTER(_REQUEST)),
    "follow": (_SESSION, POINTER(FollowOptions), POINTER(_FOLLOWER)),
    "pool_follow": (_POOL, POINTER(FollowOptions), POINTER(_FOLLOWER)),
    "unfollow": (_FOLLOWER,),
    "wait": (_REQUEST,),
    "cancel_request": (_REQUEST,),
}


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(runtime_ext.runtime_library()))
    for name, parameters in _PARAMETERS.items():
        getattr(library, f"flexcomp_{name}").argtypes = parameters
    for name in ("message", "version", "status_name"):
        getattr(library, f"flexcomp_{name}").restype = c_char_p
    return library


def call(name: str, *arguments) -> int:
    """The status of `flexcomp_NAME`."""
    return getattr(_library(), f"flexcomp_{name}")(*arguments)


def message() -> str:
    return _library().flexcomp_message().decode()


def done(name: str, *arguments) -> None:
    """Call `flexcomp_NAME`, which must not fail."""
    status = call(name, *arguments)
    assert status == OK, (name, status, message())


def given(name: str, kind: type, *arguments):
    """The last argument of `flexcomp_NAME`, which gives a number or a structure."""
    result = kind()
    done(name, *arguments, byref(result))
    return result if isinstance(result, ctypes.Structure) else result.value


def tensor(array: np.ndarray, **members) -> Tensor:
    return Tensor(**{"data": array.ctypes.data, "nbytes": array.nbytes, **members})


def tensors(*arrays: np.ndarray | Tensor) -> ctypes.Array:
    return (Tensor * len(arrays))(*(one if isinstance(one, Tensor) else tensor(one) for one in arrays))


def shape(*extents: int) -> ctypes.Array:
    return (c_int64 * len(extents))(*extents)


def opened(library, **options) -> c_void_p:
    """A session; `source` is a Source."""
    session = c_void_p()
    if "source" in options:
        options["source"] = ctypes.pointer(options["source"])
    done("open", str(library).encode(), byref(Options(**options)), byref(session))
    return session


def run(session, inputs, outputs) -> int:
    return call("run", session, tensors(*inputs), len(inputs), tensors(*outputs), len(outputs))


def refused(status, name, *arguments, says=""):
    """The call fails so, with a message of its own."""
    assert call("close", c_void_p(2**40)) == CLOSED
    before = message()
    assert call(name, *arguments) == status, message()
    assert says in message() and (message() != before or status == CLOSED), message()
