"""Strategies that others published, and the plainest one, to measure `best` against.

Each stands in a file of its own, which names the paper and its sections.
"""
