from dataclasses import replace

import pytest
import tvm

from flexcomp.device.guessed import guessed_profile
from flexcomp.device.presets import GPU_PRESETS, PRESETS
from flexcomp.device.profile import default_profile
from flexcomp.device.target import CompileTarget, require_supported, resolve_target
from flexcomp.errors import TargetError
from flexcomp.schedules.cuda import ARCHITECTURES


@pytest.mark.parametrize("spelling", [None, "native", "host", "llvm"])
def test_this_machine(spelling):
    target = resolve_target(spelling)
    assert target.tvm_target.attrs["mcpu"] == tvm.target.codegen.llvm_get_system_cpu()
    assert target.num_cores >= 1
    with open("/proc/cpuinfo") as info:
        present = set(info.read().split())
    assert set(target.features) <= present


@pytest.mark.skipif(not tvm.target.codegen.llvm_get_system_triple().startswith("x86_64"), reason="of x86-64")
def test_a_hidden_model_hides_no_features(monkeypatch):
    """A virtual machine may say x86-64, and have what the processor has."""
    known = resolve_target("native")
    monkeypatch.setattr(tvm.target.codegen, "llvm_get_system_cpu", lambda: "x86-64")
    unknown = resolve_target("native")
    assert unknown.tvm_target.attrs["mcpu"] == "x86-64"
    assert (unknown.features, unknown.vector_width) == (known.features, known.vector_width)


@pytest.mark.parametrize(
    ("spelling", "level"), [("native", 1), ("llvm -opt-level=3", 3), ("llvm -mtriple=aarch64 -mcpu=cortex-a72", 2)]
)
def test_this_machine_has_the_level_of_the_environment(monkeypatch, spelling, level):
    monkeypatch.setenv("FLEXCOMP_OPT_LEVEL", "1")
    assert int(resolve_target(spelling).tvm_target.attrs.get("opt-level", 2)) == level


def test_the_environment_has_a_wrong_level(monkeypatch):
    monkeypatch.setenv("FLEXCOMP_OPT_LEVEL", "fast")
    with pytest.raises(TargetError, match="option 'opt-level' in target FLEXCOMP_OPT_LEVEL has the wrong value 'fast'"):
        resolve_target("native")


def test_classic_string():
    target = resolve_target("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72 -num-cores=4")
    assert (target.arch, target.triple) == ("aarch64", "aarch64-linux-gnu")
    assert (target.vector_width, target.vector_registers, target.num_cores) == (4, 32, 4)
    assert "asimd" in target.features
    assert "asimddp" not in target.features


@pytest.mark.parametrize(
    ("text", "width", "registers", "needed"),
    [
        ("llvm -mtriple=x86_64-linux-gnu", 4, 16, set()),
        ("llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3", 8, 16, {"avx2", "fma"}),
        ("llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v4", 16, 32, {"avx2", "fma", "avx512f"}),
        ("llvm -mtriple=x86_64-linux-gnu -mattr=+avx2,+fma", 8, 16, {"avx2", "fma"}),
        ("llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v4 -mattr=-avx512f", 8, 16, {"avx2", "fma"}),
        ("llvm -mtriple=armv7l-linux-gnueabihf -mcpu=cortex-a7", 4, 16, {"neon"}),
    ],
)
def test_vector_unit(text, width, registers, needed):
    target = resolve_target(text)
    assert (target.vector_width, target.vector_registers) == (width, registers)
    assert needed <= set(target.features)
    assert ("avx512f" in target.features) == (width == 16)


@pytest.mark.parametrize(("cpu", "cost"), [("znver4", 1), ("znver5", 1), ("cooperlake", 4), ("sapphirerapids", 4)])
def test_products_of_bfloat16_take_longer_on_one_maker_s_cores(cpu, cost):
    """Whether or not they have tiles: Sapphire Rapids in a virtual machine that hides these is called Cooper Lake."""
    assert resolve_target(f"llvm -mcpu={cpu}").vector_unit.pair_cost == cost


def test_triple_without_system():
    assert resolve_target("llvm -mtriple=aarch64").triple == "aarch64-linux-gnu"


def test_same_target_from_every_spelling():
    spellings = [
        "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76 -mattr=+dotprod -num-cores=2",
        {
            "kind": "llvm",
            "mtriple": "aarch64-linux-gnu",
            "mcpu": "cortex-a76",
            "mattr": ["+dotprod"],
            "num-cores": 2,
        },
    ]
    spellings.append(tvm.target.Target(spellings[1]))
    resolved = [resolve_target(s) for s in spellings]
    assert len({str(r) for r in resolved}) == 1
    assert str(resolve_target(str(resolved[0]))) == str(resolved[0])
    assert resolve_target(resolved[0]) is resolved[0]


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets(name):
    target = resolve_target(name)
    assert isinstance(target, CompileTarget)
    assert target.preset is PRESETS[name]
    assert str(resolve_target(str(target))) == str(target)


def test_the_big_cores_of_a_preset_are_the_threads_of_a_build():
    """As many as the runtime finds big cores on such a device (tests/runtime/test_cores.py)."""
    assert resolve_target("pixel-6-pro").num_cores == 2
    assert resolve_target("mi-mix-2s").num_cores == 4


def test_presets_feed_the_default_profile():
    pi = default_profile(4, PRESETS["raspberry-pi-4b"])
    assert pi.storage_bytes_per_s == 257e6
    assert pi.flops_per_s == pytest.approx(2 * 4 * 1.8e9)
    phone = default_profile(4, PRESETS["pixel-6-pro"])
    assert phone.flops_per_s == pytest.approx(2 * 4 * 4 * 2.8e9)
    assert phone.storage_bytes_per_s > pi.storage_bytes_per_s
    assert default_profile(4, PRESETS["aarch64"]) == default_profile(4)


def test_tiles_know_the_core():
    small, large = (resolve_target(name).vector_unit for name in ("raspberry-pi-4b", "pixel-6-pro"))
    assert small.by_lane and large.by_lane and not resolve_target("llvm -mtriple=x86_64-linux-gnu").vector_unit.by_lane
    assert small.independent_fmas == 7
    assert resolve_target("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a55").vector_unit.independent_fmas == 4
    assert large.independent_fmas == resolve_target("aarch64").vector_unit.independent_fmas == 16


def test_a_core_that_halves_vectors_has_spare_loads():
    zen, intel = (resolve_target(f"llvm -mtriple=x86_64-linux-gnu -mcpu={name}") for name in ("znver4", "sapphirerapids"))
    assert zen.vector_unit.spare_loads and not intel.vector_unit.spare_loads


def test_32_bit_arm_is_refused_by_build():
    with pytest.raises(TargetError, match=r"32-bit ARM .* libtvm_ffi"):
        require_supported(resolve_target("llvm -mtriple=armv7l-linux-gnueabihf -mcpu=cortex-a7"))


def test_same_gpu_from_every_spelling():
    cpu = {"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a78ae", "num-cores": 12}
    spellings = [
        "jetson-orin",
        "cuda -arch=sm_87 -mtriple=aarch64-linux-gnu -mcpu=cortex-a78ae -num-cores=12",
        {"kind": "cuda", "arch": "sm_87", **cpu},
        {"kind": "cuda", "arch": "sm_87", "host": {"kind": "llvm", **cpu}},
        tvm.target.Target({"kind": "cuda", "arch": "sm_87", "host": {"kind": "llvm", **cpu}}),
    ]
    resolved = [resolve_target(spelling) for spelling in spellings]
    assert {str(target) for target in resolved} == {str(resolve_target(str(resolved[0])))}
    assert {target.gpu for target in resolved} == {ARCHITECTURES["sm_87"]}
    assert resolved[0].arch == "aarch64" and resolved[0].preset is GPU_PRESETS["jetson-orin"]


@pytest.mark.parametrize("name", GPU_PRESETS)
def test_presets_with_a_gpu(name):
    target = resolve_target(name)
    assert target.gpu.name == GPU_PRESETS[name].gpu
    assert str(resolve_target(str(target))) == str(target)


def test_the_cpu_beside_a_gpu_is_this_machine_unless_said():
    assert resolve_target("cuda -arch=sm_80").triple == resolve_target("native").triple
    assert resolve_target(tvm.target.Target({"kind": "cuda", "arch": "sm_80"})).triple == resolve_target("native").triple


def test_gpus_widen_every_narrow_type_whatever_the_cpu_does():
    assert resolve_target("cuda -arch=sm_80 -mtriple=x86_64-linux-gnu").converts_float16


def test_what_is_guessed_of_a_gpu():
    orin, h200, unknown = map(guessed_profile, map(resolve_target, ("jetson-orin", "h200", "cuda -arch=sm_80")))
    assert orin.flops_per_s < unknown.flops_per_s < h200.flops_per_s
    # One memory: nothing is copied. Elsewhere the slower of storage and bus counts.
    assert orin.storage.bandwidth == orin.storage_bytes_per_s and orin.storage.latency_s == orin.load_latency_s
    slow = replace(h200, copy_bytes_per_s=1e9)
    assert h200.storage.bandwidth == 6e9 and slow.storage.bandwidth == 1e9
    assert slow.storage.latency_s == pytest.approx(slow.load_latency_s + 2**20 / 1e9)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("raspberry", "accepted are"),
        ("rocm", "of kind 'rocm'"),
        ("cuda", "does not say for which GPU: add -arch= one of sm_72"),
        ("cuda -arch=sm_78", "unknown GPU architecture 'sm_78'.*known are sm_72"),
        ("cuda -arch=sm_87 -mtriple=toaster-linux-gnu", "unknown architecture 'toaster'"),
        ("cuda -arch=sm_87 -max_num_threads=512", "unknown option 'max_num_threads'"),
        ({"kind": "cuda", "arch": "sm_87", "mcpu": "carmel", "host": {"kind": "llvm"}}, "describes the CPU twice.* mcpu"),
        ("llvm -mcpu='cortex-a72", "no closing quotation"),
        ("llvm -mtriple=x86_64-linux-gnu -mcpu=abacus", "unknown CPU 'abacus' for x86_64; LLVM knows"),
        ("llvm mcpu", "options are -name=value"),
        ("llvm -mcpuu=cortex-a72", "unknown option 'mcpuu'"),
        ("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a7x", "did you mean cortex-a7"),
        ("llvm -mtriple=toaster-linux-gnu", "unknown architecture 'toaster'"),
        ("llvm -mtriple=x86_64-linux-gnu -mattr=+avx3", "unknown CPU feature '+avx3'"),
        ("llvm -mtriple=x86_64-linux-gnu -mattr=avx2", "unknown CPU feature 'avx2'"),
        ("llvm -num-cores=many", "option 'num-cores'"),
        ("llvm -num-cores=0", "at least 1"),
        ({"kind": "llvm", "cores": 3}, "unknown option 'cores'"),
        (7, "cannot read 7 as a target"),
    ],
)
def test_refusals(target, message):
    with pytest.raises(TargetError, match="(?s)" + message.replace("+", r"\+")):
        resolve_target(target)
