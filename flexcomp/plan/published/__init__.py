"""Published strategies, and the plainest one, to measure `best` against.

Each has a file of its own, which names the paper and its sections.
"""
