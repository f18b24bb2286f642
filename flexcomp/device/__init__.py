"""The machine that a network is built for: instructions, cores, storage, speed of kernels.

`target.py` reads targets as people name them, `presets.py` has the devices known by name, `profile.py` measured rates.
"""

from flexcomp.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    target="CompileTarget checked_threads require_supported resolve_target with_arithmetic with_tf32",
    profile="PART_OF_LAST_LEVEL DelayModel DeviceProfile FamilyRate KernelTime default_profile family guessed_overhead_s "
    "kernel_key load_profile rates_profile",
    guessed="guessed_profile",
    copies="cache_of_copies cache_sizes",
    memory="has_slow_memory machine_of",
)
