"""Measurements of flexcomp and of its peers: `python -m benchmarks.NAME`."""

import os

# Plans that are compared are made for the same storage, whatever that of the current folder does at the moment.
os.environ.setdefault("FLEXCOMP_PROBE", "0")
