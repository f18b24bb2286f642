"""Networks in 8 bits, from ONNX Runtime's quantiser, through flexcomp."""
