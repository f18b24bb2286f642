"""Cold starts: from the start of a process to the first output, with the model's files out of the page cache."""
