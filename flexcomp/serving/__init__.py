"""The Open Inference Protocol, which KServe, Triton and their clients speak: requests as arrays, arrays as responses."""
