"""The lowered network in all its forms: layers, values, and where weights lie, between the passes and the planner.

`lower.py` makes it, `variants.py` merges the choices of kernels, `forms.py` turns it into problems of the planner.
"""
