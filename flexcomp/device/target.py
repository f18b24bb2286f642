"""Targets: the user's text, and the facts of the machine that kernels need."""

from __future__ import annotations

import difflib
import logging
import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import tvm
import tvm_ffi
from tvm.target import codegen

from flexcomp.arguments import checked_number
from flexcomp.device import gpu
from flexcomp.device.cores import compute_cores
from flexcomp.device.presets import CORES, GPU_PRESETS, PRESETS, Preset
from flexcomp.errors import InputError, TargetError
from flexcomp.program import MEMORY_UNIT, PAGE
from flexcomp.schedules.cuda import Architecture
from flexcomp.schedules.cuda.unit import Gpu
from flexcomp.schedules.tiles.tile import VectorUnit

_log = logging.getLogger(__name__)

_ACCEPTED = (
    'accepted are "native", a string such as "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72 -num-cores=4", '
    '"cuda -arch=sm_87" with options of LLVM for the CPU beside the GPU, a dict of the same options, a tvm.target.Target, '
    f"or a preset ({', '.join([*PRESETS, *GPU_PRESETS])})"
)

MOST_THREADS = 1024  # that the runtime computes with
_LEVEL = "FLEXCOMP_OPT_LEVEL"  # LLVM's, for this machine

# LLVM feature -> name in /proc/cpuinfo. Only features that change the instructions LLVM emits for kernels.
_X86_FEATURES = {
    "sse3": "pni", "ssse3": "ssse3", "sse4.1": "sse4_1", "sse4.2": "sse4_2", "popcnt": "popcnt", "movbe": "movbe",
    "lzcnt": "abm", "bmi": "bmi1", "bmi2": "bmi2", "avx": "avx", "f16c": "f16c", "fma": "fma", "avx2": "avx2",
    "avxvnni": "avx_vnni", "gfni": "gfni", "vpclmulqdq": "vpclmulqdq",
    "avx512f": "avx512f", "avx512bw": "avx512bw", "avx512cd": "avx512cd", "avx512dq": "avx512dq",
    "avx512vl": "avx512vl", "avx512ifma": "avx512ifma", "avx512vbmi": "avx512vbmi", "avx512vbmi2": "avx512_vbmi2",
    "avx512vnni": "avx512_vnni", "avx512bitalg": "avx512_bitalg", "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512bf16": "avx512_bf16", "avx512fp16": "avx512_fp16",
    "amx-tile": "amx_tile", "amx-bf16": "amx_bf16",
}  # fmt: skip
_AARCH64_FEATURES = {
    "neon": "asimd", "fp-armv8": "fp", "fullfp16": "asimdhp", "dotprod": "asimddp", "rdm": "asimdrdm",
    "complxnum": "fcma", "jsconv": "jscvt", "lse": "atomics", "crc": "crc32", "i8mm": "i8mm", "bf16": "bf16",
    "fp16fml": "asimdfhm", "sve": "sve", "sve2": "sve2",
}  # fmt: skip
_ARM_FEATURES = {"neon": "neon", "vfp4": "vfpv4", "vfp3": "vfpv3", "hwdiv": "idivt", "hwdiv-arm": "idiva"}

_FEATURE_NAMES = {"x86": _X86_FEATURES, "aarch64": _AARCH64_FEATURES, "arm": _ARM_FEATURES}


# x86 cores that compute 512 bits in two halves: one multiply-add in each cycle, in which two operands can be loaded.
_HALVES = ("znver4",)
# Instructions for dot products of integers, fastest first: architecture, float32 values in a register, instruction, features.
_DOTS = (
    ("x86", 16, "vpdpbusd", {"avx512_vnni", "avx512vl"}),
    ("x86", 8, "vpdpbusd", {"avx_vnni"}),
    ("x86", 8, "vpmaddwd", {"avx2"}),
    ("aarch64", 4, "sdot", {"asimddp"}),
)


@dataclass(frozen=True)
class _Half:
    """A type of 16 bits, and the processors whose kernels compute in it."""

    dtype: str
    arch: str
    feature: str  # as /proc/cpuinfo names it
    machines: str
    needs: str
    cores: str


# The first of an architecture is the one that "auto" takes.
_KINDS_OF_HALF = (
    _Half(
        "float16", "aarch64", "asimdhp", "AArch64", "half precision (+fullfp16)",
        "-mcpu=cortex-a55 or cortex-a76, or -mattr=+fullfp16",
    ),
    _Half(
        "bfloat16", "x86", "avx512_bf16", "x86-64", "AVX512_BF16 (+avx512bf16)",
        "-mcpu=znver4, znver5, cooperlake or sapphirerapids",
    ),
    _Half("bfloat16", "aarch64", "bf16", "AArch64", "BF16 (+bf16)", "-mcpu=cortex-x2 or neoverse-v1, or -mattr=+bf16"),
)  # fmt: skip
# What code needs of a processor only where kernels compute in bfloat16: no other code uses these instructions.
_TILES = frozenset({"amx_tile", "amx_bf16"})
# Intel's cores take as long for a vdpbf16ps as for four multiply-adds (108 and 221 GFLOP/s), also where a virtual machine hides
# the tiles; AMD's as for one.
_PAIR_COST = 4
_AMD = "znver"
# An instruction of AArch64 multiplies words of four in place of pairs.
_MATRIX_COST = 0.5
# A core that loads and multiplies in order: three multiply-adds to two of its sdot (benchmarks/lab/arm/mca.py).
_DOT_COSTS = {"cortex-a55": 1.6}
# Sums in flight where the CPU is not known: as many as the widest of AArch64 wants.
_INDEPENDENT_FMAS = 16
# Multiply-adds a cycle of the slowest cores whose tbl is as fast: that of A72 takes three slots of its two pipes.
_LOOKS_UP_FROM = 2


@dataclass(frozen=True)
class CompileTarget:
    """A resolved target."""

    tvm_target: tvm.target.Target
    triple: str
    arch: str  # "x86", "aarch64", "arm", or LLVM's name of another architecture
    vector_width: int  # float32 values in a SIMD register
    vector_registers: int  # architectural SIMD registers
    features: tuple[str, ...]  # CPU features the code requires, as /proc/cpuinfo names them, sorted
    num_cores: int  # cores of the device; 1 where the target does not say
    preset: Preset | None = None  # of a device given by name
    gpu: Architecture | None = None  # computes, if given; all else describes its host's CPU
    half: str = ""  # the type of 16 bits that kernels may compute in: float16, bfloat16, or none
    computes_bytes: bool = False  # kernels may multiply weights in blocks by activations in 8 bits

    @property
    def known_cores(self) -> int | None:
        """Cores of the device; None where the target does not say."""
        cores = self.tvm_target.attrs.get("num-cores")
        return None if cores is None else int(cores)

    @property
    def converts_float16(self) -> bool:
        """Whether instructions widen float16; a function for each number would take a hundred times as long."""
        return self.gpu is not None or self.arch == "aarch64" or "f16c" in self.features

    @property
    def memory_unit(self) -> int:
        """Bytes of which the memory of an arena is a multiple."""
        return MEMORY_UNIT if self.gpu and not self.gpu.integrated else PAGE

    @property
    def machine(self) -> VectorUnit | Gpu:
        """The GPU, or else the vector unit, that kernels are chosen for."""
        return Gpu(self.gpu) if self.gpu else self.vector_unit

    @property
    def vector_unit(self) -> VectorUnit:
        """The vector unit of the CPU, which decides the tiles of kernels."""
        if self.arch != "aarch64":
            name = str(self.tvm_target.attrs.get("mcpu", ""))
            spare_loads = self.vector_width == 16 and name in _HALVES
            tiles = {*self.features} >= _TILES
            return VectorUnit(
                self.vector_width, self.vector_registers, spare_loads=spare_loads, dots=self._dots,
                looks_up=self.vector_width == 16, half=self.half, tiles=tiles,
                pair_cost=1 if name.startswith(_AMD) else _PAIR_COST,
            )  # fmt: skip
        name = self.tvm_target.attrs.get("mcpu")
        core = CORES.get(name)
        fmas = core.independent_fmas if core else _INDEPENDENT_FMAS
        return VectorUnit(
            self.vector_width, self.vector_registers, by_lane=True, independent_fmas=fmas, dots=self._dots,
            looks_up=core is None or core.fmas >= _LOOKS_UP_FROM, half=self.half, pair_cost=_MATRIX_COST,
            matrix_dots="i8mm" in self.features, dot_cost=_DOT_COSTS.get(name, 1),
        )  # fmt: skip

    @property
    def _dots(self) -> str:
        """The instruction for its widest vectors that adds up products of integers faster than float32 is; none: empty."""
        own = self.arch, self.vector_width
        return next((name for *kind, name, needed in _DOTS if tuple(kind) == own and needed <= {*self.features}), "")

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        text = format_target(self.tvm_target)
        return f"{gpu.KIND} -arch={self.gpu.name}{text.removeprefix('llvm')}" if self.gpu else text


def resolve_target(target: str | Mapping | tvm.target.Target | CompileTarget | None = None) -> CompileTarget:
    """Resolve a target as the user gave it; None, "native", "host" and "llvm" mean this machine.

    Code for this machine is optimised as far as FLEXCOMP_OPT_LEVEL says, where the target has no -opt-level: 0 to 3.
    Raises TargetError for anything that TVM or LLVM does not know.
    """
    if isinstance(target, CompileTarget):
        return target
    with_gpu = gpu.split(target)
    if with_gpu is not None:
        architecture, cpu = with_gpu
        preset = GPU_PRESETS.get(target) if isinstance(target, str) else None
        return replace(resolve_target(cpu), gpu=architecture, preset=preset)
    config = _complete(_as_config(target))
    tvm_target = tvm.target.Target({"kind": "llvm", **config})
    triple = config["mtriple"]
    arch = _architecture(triple)
    llvm_features = codegen.llvm_get_cpu_features(tvm_target)
    width, registers = _vector_unit(arch, llvm_features)
    names = _FEATURE_NAMES.get(arch, {})
    return CompileTarget(
        tvm_target=tvm_target,
        triple=triple,
        arch=arch,
        vector_width=width,
        vector_registers=registers,
        features=tuple(sorted({names[f] for f in llvm_features if f in names} - _TILES)),
        num_cores=config.get("num-cores", 1),
        preset=PRESETS.get(target) if isinstance(target, str) else None,
    )


def with_tf32(target: CompileTarget) -> CompileTarget:
    """A target whose GPU rounds operands of products to tf32. Raises InputError where none can."""
    if target.gpu is None:
        raise InputError(f"tf32 is what a GPU's tensor cores compute with, and a CPU computes ({target})")
    if not target.gpu.tensor_lanes:
        raise InputError(f"tf32 is what GPUs from sm_80 on compute with, and this one is {target.gpu.name} ({target})")
    return replace(target, gpu=replace(target.gpu, tf32=True))


def with_arithmetic(target: CompileTarget, arithmetic: str) -> CompileTarget:
    """A target whose kernels may compute in a type, as `build` takes it. Raises InputError where none can."""
    if arithmetic == "float32":
        return target
    if arithmetic == "int8":
        return _with_bytes(target)
    return _with_half(target, [half for half in _KINDS_OF_HALF if arithmetic in ("auto", half.dtype)])


def _with_half(target: CompileTarget, kinds: Sequence[_Half]) -> CompileTarget:
    """A target whose kernels may compute in the first of these types that its architecture may have."""
    half = next((half for half in kinds if half.arch == target.arch and not target.gpu), None)
    if half is None:
        who = "a GPU computes" if target.gpu else f"{target.arch} computes"
        kind, machines = kinds[0].dtype, " and ".join(half.machines for half in kinds if half.dtype == kinds[0].dtype)
        raise InputError(f"arithmetic={kind!r} is for {machines}, and {who} ({target}): leave arithmetic at 'float32'")
    if half.feature not in target.features:
        raise InputError(
            f"arithmetic={half.dtype!r} needs {half.needs}, which the target lacks ({target}): leave arithmetic at 'float32', or "
            f"name a core that has it, such as {half.cores}"
        )
    return replace(target, half=half.dtype, features=tuple(sorted({*target.features, *_tiles_of(target)})))


def _tiles_of(target: CompileTarget) -> frozenset[str]:
    """The features by which AMX multiplies bfloat16, if the target has all of these."""
    present = {_X86_FEATURES.get(name) for name in codegen.llvm_get_cpu_features(target.tvm_target)}
    return _TILES if target.arch == "x86" and present >= _TILES else frozenset()


def _with_bytes(target: CompileTarget) -> CompileTarget:
    """The target itself, with a warning, where the CPU has no instruction for products of bytes."""
    if target.gpu:
        raise InputError(f"arithmetic='int8' is for CPUs, and a GPU computes ({target}): leave arithmetic at 'float32'")
    if not target.vector_unit.dots:
        _log.warning(
            "arithmetic='int8' needs dot products of integers (AVX2, AVX-512 VNNI, +dotprod), which the target lacks (%s): "
            "all layers are computed in float32", target,
        )  # fmt: skip
        return target
    return replace(target, computes_bytes=True)


def checked_threads(threads: int | None) -> int | None:
    """A number of threads, or None. Raises InputError for one that the runtime cannot compute with."""
    if threads is None:
        return None
    threads = checked_number(threads, "threads", least=1)
    if threads > MOST_THREADS:
        raise InputError(f"threads must be {_limit(threads)}, not {threads}")
    return threads


def _limit(threads: int) -> str:
    return "at least 1" if threads < 1 else f"at most {MOST_THREADS}"


def require_supported(target: CompileTarget) -> None:
    """Raise TargetError if kernels could be compiled, but nothing could run them."""
    if target.arch == "arm":
        raise TargetError(
            f"32-bit ARM ({target.triple}) is not supported: libtvm_ffi, which every library needs, exists for 64-bit "
            'systems only; install one on the board, if its CPU allows, and take the target "aarch64" or a preset'
        )


def format_target(target: tvm.target.Target) -> str:
    """The classic one-line form, which `resolve_target` reads back."""
    parts = [target.kind.name]
    for key, value in _options_of(target).items():
        parts.append(f"-{key}={','.join(value) if isinstance(value, list) else value}")
    return " ".join(parts)


def _as_config(target: str | Mapping | tvm.target.Target | None) -> dict:
    """The user's target as TVM's dict form."""
    if target is None:
        return {}
    if isinstance(target, tvm.target.Target):
        _require_llvm(target.kind.name, str(target))
        return _options_of(target)
    if isinstance(target, Mapping):
        config = dict(target)
        _require_llvm(config.pop("kind", "llvm"), repr(target))
        return {key: _typed(key, value, repr(target)) for key, value in config.items()}
    if not isinstance(target, str):
        raise TargetError(f"cannot read {target!r} as a target; {_ACCEPTED}")
    if target in PRESETS:
        return dict(PRESETS[target].options)
    return _parse(target)


def _parse(text: str) -> dict:
    """TVM's classic string form, which TVM itself no longer reads: "llvm -mcpu=cortex-a72 -num-cores=4"."""
    try:
        kind, *words = shlex.split(text) or [""]
    except ValueError as error:
        raise TargetError(f"cannot read target {text!r}: {str(error).lower()}; {_ACCEPTED}") from None
    if kind in ("native", "host"):
        kind = "llvm"
    _require_llvm(kind, repr(text))
    config = {}
    for word in words:
        key, separator, value = word.removeprefix("-").removeprefix("-").partition("=")
        if not word.startswith("-"):
            raise TargetError(f"cannot read {word!r} in target {text!r}: options are -name=value; {_ACCEPTED}")
        config[key] = _typed(key, value if separator else True, repr(text))
    return config


@cache
def _options() -> dict[str, str]:
    """The options of LLVM targets with their types, from TVM."""
    options = tvm.target.TargetKind.options_from_name("llvm")
    return {k: str(v) for k, v in options.items() if k not in ("kind", "tag", "host", "from_device")}


def _options_of(target: tvm.target.Target) -> dict:
    options, exported = _options(), target.export()
    chosen = {k: exported[k] for k in sorted(options) if k in exported and k != "keys"}
    return {k: _typed(k, v, str(target)) for k, v in chosen.items()}


def _typed(key: str, value: object, where: str) -> object:
    """An option's value in the type that TVM wants."""
    options = _options()
    if key not in options:
        raise TargetError(f"unknown option {key!r} in target {where}; known are {', '.join(sorted(options))}")
    try:
        match options[key]:
            case "int":
                return int(value)
            case "bool":
                return {"true": True, "1": True, "false": False, "0": False}[str(value).lower()]
            case "Array<str>":
                return value.split(",") if isinstance(value, str) else [str(v) for v in value]
            case _:
                return str(value)
    except (KeyError, TypeError, ValueError):
        raise TargetError(f"option {key!r} in target {where} has the wrong value {value!r}") from None


def _require_llvm(kind: str, where: str) -> None:
    if kind != "llvm":
        raise TargetError(f"target {where} is of kind {kind!r}: code is generated by LLVM for CPUs; {_ACCEPTED}")


def _complete(config: dict) -> dict:
    """Fill in this machine where nothing else is meant, and check names with LLVM, which would only warn."""
    if not config.keys() & {"mtriple", "mcpu", "mattr"}:
        config = {**_host(), **config}
    triple = config.get("mtriple") or codegen.llvm_get_system_triple()
    if "-" not in triple:
        triple += "-linux-gnueabihf" if triple.startswith("arm") else "-linux-gnu"
    config = {**config, "mtriple": triple}

    machine = triple.split("-")[0]
    if _architecture(triple) is None:
        known = ", ".join(sorted(codegen.llvm_get_targets()))
        raise TargetError(f"unknown architecture {machine!r} in mtriple {triple!r}; LLVM knows {known}")
    cpu = config.get("mcpu", "generic")
    if cpu != "generic" and not codegen.llvm_is_valid_cpu(cpu, triple):
        names = codegen.llvm_get_cpu_archlist(tvm.target.Target({"kind": "llvm", "mtriple": triple}))
        close = difflib.get_close_matches(cpu, names, n=5)
        hint = f"did you mean {', '.join(close)}?" if close else f"LLVM knows {len(names)}, such as {', '.join(names[-3:])}"
        raise TargetError(f"unknown CPU {cpu!r} for {machine}; {hint}")
    for attr in config.get("mattr", ()):
        name = attr[1:]
        with_feature = {"kind": "llvm", "mtriple": triple, "mattr": [f"+{name}"]}
        known = codegen.llvm_get_cpu_features(tvm.target.Target(with_feature)) if name else ()
        if attr[:1] not in ("+", "-") or name not in known:
            raise TargetError(f"unknown CPU feature {attr!r} in mattr for {machine}; write +name or -name, as LLVM does")
    if not 1 <= config.get("num-cores", 1) <= MOST_THREADS:
        raise TargetError(f"num-cores must be {_limit(config['num-cores'])}, not {config['num-cores']}")
    return config


def _host() -> dict:
    """This machine. A virtual machine may hide features that the CPU's name promises, or the CPU's name and not its features."""
    config = {
        "mtriple": codegen.llvm_get_system_triple(),
        "mcpu": codegen.llvm_get_system_cpu(),
        "num-cores": min(compute_cores(), MOST_THREADS),
    }
    promised = codegen.llvm_get_cpu_features(tvm.target.Target({"kind": "llvm", **config}))
    present = tvm_ffi.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    known = _FEATURE_NAMES.get(_architecture(config["mtriple"]), {})
    hidden = sorted(f"-{name}" for name, there in present.items() if not there and name in promised)
    more = sorted(f"+{name}" for name, there in present.items() if there and name in known and name not in promised)
    level = {"opt-level": _typed("opt-level", given, _LEVEL)} if (given := os.environ.get(_LEVEL)) else {}
    return {**config, **level, **({"mattr": [*more, *hidden]} if more or hidden else {})}


def _architecture(triple: str) -> str | None:
    machine = triple.split("-")[0]
    if machine in ("x86_64", "i386", "i686"):
        return "x86"
    if machine in ("aarch64", "arm64"):
        return "aarch64"
    if machine.startswith(("arm", "thumb")):
        return "arm"
    return machine if machine in codegen.llvm_get_targets() else None


def _vector_unit(arch: str, features: Collection[str]) -> tuple[int, int]:
    """float32 values in a SIMD register, number of registers. Other architectures: as for 128 bits."""
    if arch == "x86":
        if "avx512f" in features:
            return 16, 32
        return (8 if "avx" in features else 4), 16
    return 4, 32 if arch == "aarch64" else 16
