"""Measured choice of kernels: which candidate computes a layer fastest on a given device.

    tasks.py        the layers of a network, each shape once
    search.py       which layer gets the next trials, and which candidates they try
    cost_model.py   a model of the device, learnt from the trials so far, that ranks candidates
    trial.py        a library of one layer, compiled in a worker process
    clock.py        its time on this machine; rpc.py: on devices behind a tracker
    records.py      the database: what was measured, one line each
    decide.py       which kernel the measured times speak for; lookup.py: what a build asks
    report.py       progress, and what was achieved
"""
