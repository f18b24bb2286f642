"""Running a compiled network, in this process (`session.py`) or in one of its own (`runner.py`).

Nothing here imports TVM or anything of the compiler.
"""

from flexcomp.doors import door

__getattr__, __dir__, __all__ = door(
    __name__,
    session="RungInfo Session TensorInfo check_options checked_inputs checked_threads load named_outputs read_program",
    budget="Budget parse_budget resolve",
    trace="Trace Traces parse_trace",
    runner="output_file",
)
