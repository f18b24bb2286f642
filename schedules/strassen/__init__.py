"""1×1 convolutions by Strassen's algorithm."""
