"""Networks on a GPU, resident and streamed, beside PyTorch."""
