"""The demonstration: networks that need no download, run in several budgets and compared with ONNX Runtime.

The networks have the architecture of published ones, with weights made here.
"""
