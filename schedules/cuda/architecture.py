"""The target GPUs, whose sizes decide the tiles.

Sources: CUDA C++ Programming Guide, "Compute Capabilities"; multiprocessors are those of the boards that presets name; tensor
cores: NVIDIA's white papers of the architectures, dense.
"""

from __future__ import annotations

from dataclasses import dataclass

WARP = 32
_KIB = 1024


@dataclass(frozen=True)
class Architecture:
    """A compute capability."""

    name: str  # "sm_87"
    registers: int  # of 32 bits, of a multiprocessor
    shared_nbytes: int  # of a multiprocessor
    threads: int  # that a multiprocessor holds at most
    lanes: int  # multiply-adds of float32 that a multiprocessor does in a cycle
    multiprocessors: int  # of a usual board: grids are cut so that all have something to do
    tensor_lanes: int = 0  # multiply-adds of tf32 that its tensor cores do in a cycle
    integrated: bool = False  # shares the memory of the CPU
    tf32: bool = False  # products of operands rounded to tf32 are requested

    @property
    def fetches(self) -> bool:
        """Whether copies to shared memory run while threads compute (cp.async)."""
        return int(self.name.removeprefix("sm_")) >= 80

    @property
    def block_shared_nbytes(self) -> int:
        """Shared memory of a block without a request for more at launch: 48 KiB everywhere."""
        return 48 * _KIB

    def blocks(self, threads: int, registers: int, shared_nbytes: int) -> int:
        """Blocks that a multiprocessor holds, of so many threads, registers for each thread, and bytes of shared memory."""
        held = [self.threads // threads, self.registers // (threads * registers)]
        return min([*held, self.shared_nbytes // shared_nbytes] if shared_nbytes else held)


ARCHITECTURES: dict[str, Architecture] = {
    architecture.name: architecture
    for architecture in (
        Architecture("sm_72", 65_536, 96 * _KIB, 2048, 64, 6, integrated=True),  # nvcc supports this one up to CUDA 12
        Architecture("sm_75", 65_536, 64 * _KIB, 1024, 64, 40),
        Architecture("sm_80", 65_536, 164 * _KIB, 2048, 64, 108, 512),
        Architecture("sm_86", 65_536, 100 * _KIB, 1536, 128, 82, 128),
        Architecture("sm_87", 65_536, 164 * _KIB, 1536, 128, 16, 512, integrated=True),
        Architecture("sm_89", 65_536, 100 * _KIB, 1536, 128, 128, 128),
        Architecture("sm_90", 65_536, 228 * _KIB, 2048, 128, 132, 1024),
    )
}
