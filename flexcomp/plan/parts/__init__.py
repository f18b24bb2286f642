"""The parts from which strategies assemble plans.

Layers are cut into slices (`slicing.py`), buffers laid out (`layout.py`), weights loaded in pieces (`pieces.py`) to pages
(`pages.py`), ahead of time (`preload.py`); `assemble.py` makes the plan.
"""
