"""Errors of Winograd's transforms."""

STEM, LINE = "stem", "line"
ACCURACY = {2: 1e-5, 4: 1e-5, 5: 1e-5, 6: 5e-5, STEM: 1e-5, LINE: 1e-5}  # of the largest output
