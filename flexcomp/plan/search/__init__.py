"""The strategy `best`: a search over what to pin, how finely to slice and when to load, for one budget.

`ablation.py` takes one part out of it at a time.
"""
