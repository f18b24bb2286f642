"""Networks on a GPU, resident and streamed."""
