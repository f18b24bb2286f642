"""Decoders in 4 bits next to llama.cpp and ONNX Runtime."""
