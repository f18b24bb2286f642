"""Special measurements, each for one question."""
