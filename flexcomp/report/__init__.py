"""Compiled networks and their plans for people: facts, tables, pictures, timelines, traces.

`facts.py` is plain data, from which the others draw.
"""

from flexcomp.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    facts="describe notes select_rung summary",
    shapes="pad_facts pad_lines select_shape shape_facts shape_table",
    tables="choice_table ladder_table layer_table named new_table stdout_console timeline_table",
    showing="Progress shown",
    usage="budget_rows median_row",
    ending="closing_lines",
    picture="draw_plan draw_weights picture_format",
    chrome_trace="write_trace",
    one_plan="plan_facts plan_table",
    sharing="shared_processor waiting",
)
