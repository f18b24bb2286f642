"""Everything that no family has a kernel for: a schedule for any TIR function, its scratch, its guards.

The loops come from `schedules/nests`.
"""
