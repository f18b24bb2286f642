"""Everything that a board needs to run a compiled network, in one folder: runner, libraries, weights.

`device_files.py` compiles or fetches what the network does not bring itself.
"""
