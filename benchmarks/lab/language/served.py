"""Servers of both engines in a control group each, asked by one client: seconds to the first token, and tokens per second."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
from tokenizers import Tokenizer, models

from benchmarks.cgroup import memory_group
from benchmarks.peers.machine import forget_files
from benchmarks.results import Table
from flexcomp.generation.tokenizer import TOKENIZER
from flexcomp.runtime import pool_bytes

from .decoder import Sizes, vocabulary

COLUMNS = {"server": "", "threads": "", "memory, MB": ".1f", "first token, s": ".2f", "tokens/s": ".2f", "anonymous, MB": ".1f"}
_LETTERS = "abcdefghijklmnopqrs"  # each is a token of the GGUF file
_BEGIN_S = 120.0
# Repacked weights would be a copy in anonymous memory, and its server has no option that says so.
_LLAMA = """
import runpy, llama_cpp.llama_cpp as llama
default = llama.llama_model_default_params
def mapped():
    params = default()
    params.use_extra_bufts = False
    return params
llama.llama_model_default_params = mapped
runpy.run_module("llama_cpp.server", run_name="__main__")
"""
Asked = tuple[float, float, int]  # seconds to the first token, tokens per second after it, anonymous bytes of the group


def ask(command: Sequence[object], prompt: object, file: Path, limit: int, count: int) -> Asked:
    """Start a server in a group of `limit` bytes, its `file` not in the page cache, for one reply of `count` tokens."""
    forget_files([file])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ExitStack() as held:
        group = held.enter_context(memory_group(limit))
        said = held.enter_context(tempfile.TemporaryFile("w+"))
        given = [*group.prefix, *map(str, command), "--port", str(port)]
        server = subprocess.Popen(given, stdout=said, stderr=subprocess.STDOUT)
        held.callback(server.wait)
        held.callback(server.terminate)
        client = held.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=600))
        try:
            until = time.monotonic() + _BEGIN_S
            while not (name := _model(client)):
                if server.poll() is not None or time.monotonic() > until:
                    raise RuntimeError("the server does not answer")
                time.sleep(0.1)
            body = {"model": name, "prompt": prompt, "max_tokens": count, "temperature": 0, "stream": True}
            began, times = time.perf_counter(), []
            with client.stream("POST", "/v1/completions", json=body) as answer:
                for line in answer.iter_lines():
                    if line.startswith("data: {") and (choice := json.loads(line[6:])["choices"][0]):
                        times.append(time.perf_counter())
            if answer.status_code != 200 or choice["finish_reason"] != "length":
                raise RuntimeError(f"status {answer.status_code}: no reply of {count} tokens")
        except (RuntimeError, httpx.HTTPError) as error:
            said.seek(0)
            raise RuntimeError(f"{command[:3]}: {error}; {group.facts()}; {said.read()[-600:]}") from None
        return times[0] - began, (count - 1) / (times[-1] - times[0]), group.anonymous_nbytes()


def _model(client: httpx.Client) -> str | None:
    try:
        return client.get("/v1/models").json()["data"][0]["id"]
    except httpx.TransportError:
        return None


def compare_servers(given: Namespace, sizes: Sizes, library: Path, gguf: Path, threads: int, table: Table) -> None:
    """Both in turns, with medians of all rounds in the table."""
    words = models.WordLevel({text: i for i, text in enumerate(vocabulary(sizes))}, "<unk>")
    Tokenizer(words).save(str(library.with_name(TOKENIZER)))
    files = {"flexcomp": library.with_suffix(".weights"), "llama.cpp": gguf}
    limits = {name: int(file.stat().st_size * given.served / 100) for name, file in files.items()}
    budget = limits["flexcomp"] - pool_bytes(given.worker)
    ours = [sys.executable, "-m", "flexcomp", "serve", library, "--budget", budget, "--threads", threads]
    theirs = [given.llama, "-c", _LLAMA, "--model", gguf, "--n_ctx", sizes.capacity, "--n_threads", threads]
    theirs += ["--n_threads_batch", threads, "--use_mlock", False]  # by default all of the file has to be in memory
    theirs += ["--n_batch", given.prompt, "--n_ubatch", given.prompt]  # more takes more memory
    rng = np.random.default_rng(2)
    runs: dict[str, Callable[[], tuple[list, object]]] = {
        "flexcomp": lambda: ([*ours, "--request-memory", "1MB"], rng.integers(259, sizes.vocabulary, given.prompt).tolist()),
        "llama.cpp": lambda: (theirs, "".join(rng.choice([*_LETTERS], given.prompt - 1))),
    }  # the text has one token more, which begins each
    found: dict[str, list[Asked]] = {name: [] for name in runs}
    for _ in range(given.rounds):
        for name, run in runs.items():
            found[name].append(ask(*run(), files[name], limits[name], given.tokens))
    for name, times in found.items():
        first_s, rate, nbytes = np.median(np.array(times), axis=0)
        table.add(name, threads, limits[name] / 1e6, first_s, rate, nbytes / 1e6)
