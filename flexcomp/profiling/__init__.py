"""What a device was seen to do: traces of inferences, rates of processors, measured kernels, and the profile fitted to them.

`observing.py` measures, `fit.py` makes the profile, `kernel_records.py` is the database of tuned kernels.
"""
