"""The strategy `best`: a search over which weights to pin, how finely to slice and when to load, for one budget.

`ablation.py` takes one part away at a time.
"""
