"""Observations of a device: traces of inferences, rates of processors, measured kernels, and the profile fitted to them.

`observing.py` measures, `fitting.py` makes the profile, `kernel_records.py` is the database of tuned kernels.
"""

from flexcomp.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    observing="Library Observations observe",
    fitting="fit",
    kernel_records="Database Record",
    kernel_lookup="Measurements",
    kernel_speeds="kernel_report",
    load_rates="load_table",
    rates="aligned",
    storage_rates="StorageRates cannot_measure measure_storage",
)
