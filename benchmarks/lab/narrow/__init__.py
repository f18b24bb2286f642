"""What weights in fewer bits cost and gain."""
