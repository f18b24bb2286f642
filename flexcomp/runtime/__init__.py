"""Running a compiled network, in this process (`session.py`) or in one of its own (`runner.py`).

Nothing here imports TVM or anything of the compiler.
"""
