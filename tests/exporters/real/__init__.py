"""Decoders that the exporters themselves write, from configurations with random weights."""
