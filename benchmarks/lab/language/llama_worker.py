"""Runs in an environment with llama-cpp-python: prints the seconds of a prompt and of each token after it, as JSON.

    PYTHON llama_worker.py MODEL.gguf THREADS PROMPT TOKENS CAPACITY MMAP

With MMAP 1 the file is mapped; with 0 weights are read and repacked.
"""

import ctypes
import json
import sys
import time

import llama_cpp as llama

path, threads, prompt, tokens, capacity, mmap = sys.argv[1], *map(int, sys.argv[2:])
silent = llama.llama_log_callback(lambda level, text, data: None)  # kept: ctypes frees what nobody names
llama.llama_log_set(silent, ctypes.c_void_p())
llama.llama_backend_init()
of_model = llama.llama_model_default_params()
of_model.load_mode = llama.LLAMA_LOAD_MODE_MMAP if mmap else llama.LLAMA_LOAD_MODE_NONE
of_model.use_extra_bufts = not mmap  # repacked weights are a copy, which a control group of a part of the file has no room for
model = llama.llama_model_load_from_file(path.encode(), of_model)
if not model:
    sys.exit(f"llama.cpp cannot load {path}")
of_context = llama.llama_context_default_params()
of_context.n_ctx, of_context.n_batch, of_context.n_ubatch = capacity, max(prompt, 32), min(max(prompt, 32), 512)
of_context.n_threads = of_context.n_threads_batch = threads
context = llama.llama_init_from_model(model, of_context)
vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))


def seconds(given: list[int]) -> float:
    """Of an inference of these tokens."""
    begin = time.perf_counter()
    array = (llama.llama_token * len(given))(*given)
    if llama.llama_decode(context, llama.llama_batch_get_one(array, len(given))):
        sys.exit("llama.cpp cannot decode")
    llama.llama_get_logits_ith(context, -1)
    return time.perf_counter() - begin


first_s = seconds([(7 * i + 1) % vocabulary for i in range(prompt)])
later_s = [seconds([(11 * i + 3) % vocabulary]) for i in range(tokens)]
print(json.dumps({"first_s": first_s, "later_s": later_s}))
