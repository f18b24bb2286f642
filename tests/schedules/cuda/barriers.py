"""Taking the barriers of kernels out, one at a time."""

from collections.abc import Callable, Sequence

import numpy as np

from tests.cuda.on_cpu.emulator import EmulationError, Emulator

# Orders of threads, and inputs, that are tried before a barrier counts as needless.
_ATTEMPTS = 100


def needless(emulator: Emulator, name: str, arguments: Callable[[int], Sequence[np.ndarray | int]]) -> list[int]:
    """The barriers of a kernel without which it computes the same, whatever the order; `arguments` are for a seed."""

    def agrees(barrier: int, seed: int) -> bool:
        given = arguments(seed)
        right = emulator.run(name, given, seed=seed)
        try:
            without = emulator.run(name, given, seed=seed, skipped=barrier)
        except EmulationError:
            return False
        pairs = zip(right, without, strict=True)
        return all(a.tobytes() == b.tobytes() or np.allclose(a, b, 1e-5, 1e-5, equal_nan=True) for a, b in pairs)

    return [b for b in range(emulator.barriers(name)) if all(agrees(b, seed) for seed in range(_ATTEMPTS))]
