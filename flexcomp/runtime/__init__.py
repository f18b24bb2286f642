"""Running a compiled network, in this process (`session.py`) or in one of its own (`runner.py`).

Nothing here imports TVM or anything of the compiler.
"""

from flexcomp.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    session="STARTS RungInfo Session checked_threads load",
    load_options="LoadOptions options_of",
    library="read_info read_program read_summary",
    ports="ShapeInfo TensorInfo checked_states given_inputs made_inputs named_outputs ports_of",
    fitting="Fitted Fitting",
    padding="PAD Axes Derived Padding padding_of",
    budget="MINIMUM Budget note_minimum parse_budget resolve resolve_in set_by too_small",
    display="ladder_html",
    pool="Pool pool_bytes",
    pool_plan="PooledModel PoolPlan",
    pool_requests="PoolFuture",
    sharing="SHARING ShareRung Shares ladder_of least_bytes shares",
    trace="DeviceRates Trace Traces parse_trace",
    runner="output_file",
)
