"""Devices that targets can be named after, with their cores and storage.

Sources: FlexNN (Li et al., MobiCom 2024), table 1 (cores, clocks) and section 5.2 (257 MB/s of a Raspberry Pi 4B,
718 MB/s of a Mi Mix 2S); SwapNet (Wang et al., 2024), section 8.1 (Jetson NX: 1.9 GHz). For the rest,
figures are the vendors' peaks for caches, a cautious part of the peak for memory, and common media for storage.

All cores together get two thirds of their memory's peak: STREAM gets 67 to 71 % from LPDDR4 on Texas Instruments' AM64x
(SPRACV1B). Peaks are transfers per second times the width: 17.1 GB/s of a Raspberry Pi 5 (LPDDR4X-4267, 32 bits), 29.9 of a Mi
Mix 2S (LPDDR4X-3733, 64 bits), 51.2 of a Pixel 6 Pro (LPDDR5-6400, 64 bits) and of a Jetson NX (LPDDR4x-3200, 128 bits, data
sheet DA-09366). One core of a Raspberry Pi 4B gets 5.5 GB/s in STREAM's copies (sci-pi.org.uk), here 4.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_KIB = 1024
_TRIPLE = "aarch64-linux-gnu"


@dataclass(frozen=True)
class Core:
    """A CPU core that runs kernels."""

    mcpu: str  # LLVM's name
    fmas: float  # of 128-bit registers, started per cycle
    latency: int  # cycles until the result of one can be used
    l1_nbytes: int
    l2_nbytes: int  # per core; of a shared cache the whole
    l3_nbytes: int = 0  # shared by cores; 0: none

    @property
    def independent_fmas(self) -> int:
        """Independent sums that keep the unit busy."""
        return max(1, round(self.fmas * self.latency))


CORES = {
    core.mcpu: core
    for core in (
        Core("cortex-a53", 0.5, 8, 32 * _KIB, 512 * _KIB),
        Core("cortex-a55", 1, 4, 32 * _KIB, 128 * _KIB, 1024 * _KIB),
        Core("cortex-a72", 1, 7, 32 * _KIB, 1024 * _KIB),
        Core("cortex-a75", 1, 7, 64 * _KIB, 256 * _KIB, 2048 * _KIB),
        Core("cortex-a76", 2, 4, 64 * _KIB, 512 * _KIB, 2048 * _KIB),
        Core("cortex-x1", 4, 4, 64 * _KIB, 1024 * _KIB, 4096 * _KIB),
        Core("carmel", 2, 5, 64 * _KIB, 2048 * _KIB, 4096 * _KIB),
    )
}


@dataclass(frozen=True)
class Preset:
    """A device: its big cores compute, and the others may load."""

    options: dict[str, object] = field(hash=False)  # of the TVM target
    ghz: float = 0.0  # of the big cores; 0 where the name says nothing of a device
    others: int = 0  # middle and little cores
    memory_bytes_per_s: float = 0.0
    all_memory_bytes_per_s: float = 0.0  # of all big cores, where one does not reach it; 0: one does
    storage_bytes_per_s: float = 0.0
    load_latency_s: float = 60e-6
    # Where code is for a GPU, the following fields and the memory above describe the GPU.
    gpu: str | None = None  # its compute capability
    gpu_ghz: float = 0.0
    copy_bytes_per_s: float = 0.0  # from host memory to the GPU's, if separate

    @property
    def core(self) -> Core | None:
        """The big core."""
        return CORES.get(self.options.get("mcpu"))


def _device(mcpu: str, cores: int, **facts) -> Preset:
    return Preset({"mtriple": _TRIPLE, "mcpu": mcpu, "num-cores": cores}, **facts)


PRESETS: dict[str, Preset] = {
    # A card on a bus of 50 MHz and four bits.
    "raspberry-pi-3b": _device("cortex-a53", 4, ghz=1.2, memory_bytes_per_s=2.0e9, storage_bytes_per_s=22e6,
                               load_latency_s=500e-6),
    "raspberry-pi-4b": _device("cortex-a72", 4, ghz=1.8, memory_bytes_per_s=4.0e9, storage_bytes_per_s=257e6,
                               load_latency_s=200e-6),
    # A card; an SSD on one lane of PCI Express reads five times as fast: measure yours.
    "raspberry-pi-5": _device("cortex-a76", 4, ghz=2.4, memory_bytes_per_s=9.0e9, all_memory_bytes_per_s=11e9,
                              storage_bytes_per_s=90e6, load_latency_s=300e-6),
    "mi-mix-2s": _device("cortex-a75", 4, ghz=2.8, others=4, memory_bytes_per_s=12e9, all_memory_bytes_per_s=20e9,
                         storage_bytes_per_s=718e6, load_latency_s=100e-6),
    # FlexNN gives no reading rate: taken for no slower than the older telephone.
    "pixel-6-pro": _device("cortex-x1", 2, ghz=2.8, others=6, memory_bytes_per_s=20e9, all_memory_bytes_per_s=34e9,
                           storage_bytes_per_s=718e6, load_latency_s=100e-6),
    # The CPU only. SwapNet gives no reading rate.
    "jetson-nx": _device("carmel", 6, ghz=1.9, memory_bytes_per_s=20e9, all_memory_bytes_per_s=34e9,
                         storage_bytes_per_s=500e6, load_latency_s=100e-6),
    "aarch64": Preset({"mtriple": _TRIPLE}),
}  # fmt: skip


# Devices whose GPU computes: the CPU is described as far as host code needs.
GPU_PRESETS: dict[str, Preset] = {
    "jetson-xavier-nx": _device("carmel", 6, gpu="sm_72", gpu_ghz=1.1, memory_bytes_per_s=45e9, storage_bytes_per_s=500e6,
                                load_latency_s=100e-6),
    # The developer kit with 64 GB; an SSD.
    "jetson-orin": _device("cortex-a78ae", 12, gpu="sm_87", gpu_ghz=1.3, memory_bytes_per_s=160e9, storage_bytes_per_s=2.0e9,
                           load_latency_s=100e-6),
    # Sixteen lanes of PCI Express 5, and an SSD on four.
    "h200": Preset({"mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3"}, gpu="sm_90", gpu_ghz=1.7, memory_bytes_per_s=3.8e12,
                   storage_bytes_per_s=6.0e9, copy_bytes_per_s=50e9),
}  # fmt: skip
