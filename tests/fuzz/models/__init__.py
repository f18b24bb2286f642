"""A fuzzer of models: ONNX graphs that are drawn or mutated, built and compared with ONNX Runtime, or refused by name.

`python -m tests.fuzz.models.run` runs it. Every graph has a number, and is the same whenever it is drawn again.
"""
