"""ONNX's node tests through flexcomp and ONNX Runtime: `python -m benchmarks.conformance`."""
