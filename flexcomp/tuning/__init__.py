"""Measured choice of kernels: which candidate computes a layer fastest on a given device.

    tuner.py        the order of events
    tasks.py        the layers of a network, each shape once
    search.py       which layer gets the next trials, and which candidates to try
    cost_model.py   a model of the device, learnt from the trials so far, that ranks candidates
    trial.py        a library of one layer, compiled in a worker process
    clock.py        its time on this machine; rpc.py: on devices of a tracker
    report.py       progress, and results

Measurements are kept, and looked up by builds, in flexcomp/profiling; schedules/decide.py chooses by them.
"""

from flexcomp.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, tuner="tune")
