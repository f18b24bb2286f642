"""Networks to measure: published architectures with weights made here, and a few with trained ones."""
