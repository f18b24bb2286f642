"""Compiled networks and their plans for people: facts, tables, pictures, timelines, traces.

`facts.py` is plain data, from which the others draw.
"""
