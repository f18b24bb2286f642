"""Prompts and tokens of a decoder in 4 bits, next to ONNX Runtime (MatMulNBits) and llama.cpp (Q4_0), over budgets.

    python -m benchmarks.lab.language [--threads 1 2] [--budgets all 25 10] [--state-type int8] [--llama VENV/bin/python]
    python -m benchmarks.lab.language --layers 2 --width 128 --inner 256 --heads 4 --shared 2 --vocabulary 512 --prompt 64

All engines have the same numbers: random ones, of which every matrix has its own. Budgets in percent are the caches and that part
of the weights file. Engines take turns, a prompt and its tokens each, and medians over all tokens of all rounds are printed.
`--llama` is Python of an environment in which llama-cpp-python was built from its sdist; in a budget it maps the file, in a
control group of the budget and `--worker` bytes for Python itself. ONNX Runtime runs with everything in memory. The exit status
is 1 if any budget gives other tokens than ONNX Runtime at accuracy level 0; `--arithmetic int8` and narrow caches may.

    python -m benchmarks.lab.language --served 25 --llama VENV/bin/python --layers 22 --width 2048 --inner 5632 --heads 32 \
        --capacity 256 --prompt 128 --threads 2 --folder DIR --json FILE

`--served` compares `flexcomp serve` and `llama_cpp.server`, in control groups of so many percent of their files, by one client.
Each is started for each reply, its file out of the page cache; of flexcomp's group `--worker` bytes are for its process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import onnxruntime

import flexcomp
from benchmarks.cgroup import memory_group
from benchmarks.peers.machine import forget_files
from benchmarks.results import Results, Table, json_option
from flexcomp.runtime import Session, pool_bytes

from .decoder import Sizes, Weights, write_gguf, write_onnx
from .served import COLUMNS as SERVED
from .served import compare_servers

WORKER = Path(__file__).with_name("llama_worker.py")
COLUMNS = {
    "engine": "", "threads": "", "memory, MB": ".1f", "prompt, tokens/s": ".1f", "tokens/s": ".2f", "MB read per token": ".1f",
    "same tokens": "",
}  # fmt: skip
Timed = tuple[float, list[float], list[int]]  # seconds of the prompt, of each later token, and all tokens


class OnnxRuntime:
    """A session whose caches are written in place."""

    def __init__(self, path: Path, sizes: Sizes, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session, self.sizes = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]), sizes

    def run(self, prompt: np.ndarray, count: int) -> Timed:
        """A prompt, and `count` tokens after it."""
        s = self.sizes
        shape = (1, s.shared, s.capacity, s.depth)
        caches = {name: onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32)) for name in s.state.values()}

        def logits(ids: np.ndarray, end: int) -> np.ndarray:
            binding = self.session.io_binding()
            binding.bind_cpu_input("input_ids", ids)
            binding.bind_cpu_input("attention_mask", np.int64(np.arange(s.capacity) < end)[None])
            binding.bind_output("logits")
            for after, before in s.state.items():
                binding.bind_ortvalue_input(before, caches[before])
                binding.bind_ortvalue_output(after, caches[before])
            self.session.run_with_iobinding(binding)
            return binding.get_outputs()[0].numpy()

        return _timed(logits, [prompt], count)


def by_us(session: Session, sizes: Sizes, prompt: np.ndarray, count: int, chunk: int) -> Timed:
    """As ONNX Runtime, the prompt in chunks."""
    session.reset_state()

    def logits(ids: np.ndarray, end: int) -> np.ndarray:
        mask = np.int64(np.arange(sizes.capacity) < end)[None]
        (found,) = session.run({"input_ids": ids, "attention_mask": mask}).values()
        return found

    return _timed(logits, [prompt[:, at : at + chunk] for at in range(0, prompt.shape[1], chunk)], count)


def _timed(logits: Callable[[np.ndarray, int], np.ndarray], chunks: Sequence[np.ndarray], count: int) -> Timed:
    begin, end = time.perf_counter(), 0
    for chunk in chunks:
        end += chunk.shape[1]
        tokens = [int(logits(chunk, end)[0, -1].argmax())]
    first_s, later_s = time.perf_counter() - begin, []
    for _ in range(count):
        begin, end = time.perf_counter(), end + 1
        tokens.append(int(logits(np.int64([tokens[-1:]]), end)[0, -1].argmax()))
        later_s.append(time.perf_counter() - begin)
    return first_s, later_s, tokens


def by_llama(python: Path, model: Path, threads: int, sizes: Sizes, prompt: int, count: int, limit: int | None) -> Timed:
    """In a process of its own; `limit` is that of its control group, in which it maps the file and to which its pages count."""
    if limit is not None:
        forget_files([model])  # pages that are in memory already count to the group that read them
    given = [python, WORKER, model, threads, prompt, count, sizes.capacity, int(limit is not None)]
    with nullcontext() if limit is None else memory_group(limit) as group:
        done = subprocess.run([*(group.prefix if group else []), *map(str, given)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"llama.cpp, status {done.returncode}: {done.stderr.strip()[-300:]}")
    found = json.loads(done.stdout)
    return found["first_s"], found["later_s"], []


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 if a token is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in vars(Sizes()).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--prompt", type=int, default=512, help="tokens, whole chunks of them")
    parser.add_argument("--chunk", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--budgets", nargs="+", default=["all", "25", "10"], help="all, or percent of the file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--levels", type=int, nargs="*", default=[0, 4], help="accuracy levels of ONNX Runtime")
    parser.add_argument("--state-type", choices=("float32", "float16", "int8"), default="float32")
    parser.add_argument("--arithmetic", choices=("float32", "int8"), default="float32")
    parser.add_argument("--read-bandwidth", type=float, help="imitate storage of so many bytes per second")
    parser.add_argument("--llama", type=Path, help="Python with llama-cpp-python")
    parser.add_argument("--worker", default="64MB", help="memory of a process, besides the budget")
    parser.add_argument("--served", type=float, metavar="PERCENT", help="compare servers, in this part of a file")
    parser.add_argument("--folder", type=Path, help="keep models there, and take those that are there")
    json_option(parser, "language")
    given = parser.parse_args(arguments)
    sizes = Sizes(**{name: getattr(given, name) for name in vars(Sizes())})
    if given.served and given.llama is None:
        parser.error("--served needs --llama")
    if given.prompt % given.chunk or given.prompt + given.tokens > sizes.capacity:
        parser.error("a prompt is whole chunks, and has room in the caches with the tokens after it")
    weights, prompt = Weights(sizes), np.random.default_rng(1).integers(0, sizes.vocabulary, (1, given.prompt))
    written, wrong = Results.begin("benchmarks.lab.language"), False
    table = Table(SERVED if given.served else COLUMNS)
    own = tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="language-") if given.folder is None else nullcontext(given.folder)
    with own as name:
        folder = Path(name)
        models = {level: folder / f"level{level}.onnx" for level in dict.fromkeys([0, *([] if given.served else given.levels)])}
        for level, path in models.items():
            if not path.exists():
                write_onnx(weights, path, level)
        if given.llama is not None and not (gguf := folder / "decoder.gguf").exists():
            write_gguf(weights, gguf)
        for threads in given.threads:
            library = folder / f"decoder{threads}.so"
            if not library.exists():
                flexcomp.build(
                    models[0], input_shapes={"input_ids": (1, "s")}, shapes={"s": [1, given.chunk]}, state=sizes.state,
                    state_type=given.state_type, arithmetic=given.arithmetic, threads=threads, probe=folder,
                ).export_library(library)  # fmt: skip
            if given.served:
                compare_servers(given, sizes, library, gguf, threads, table)
            else:
                wrong |= _compared(given, sizes, models, library, prompt, threads, table)
    written.write(given.json, [table])
    return int(wrong and given.arithmetic == given.state_type == "float32")


def _compared(
    given: argparse.Namespace, sizes: Sizes, models: dict[int, Path], library: Path, prompt: np.ndarray, threads: int,
    table: Table,
) -> bool:
    """All engines with so many threads, in turns; whether a token was wrong."""
    options = {} if given.read_bandwidth is None else {"read_bandwidth": given.read_bandwidth}
    file_nbytes, sessions = library.with_suffix(".weights").stat().st_size, {}
    runs: dict[str, Callable[[], Timed]] = {}
    limits: dict[str, int | None] = {}
    peers = {level: OnnxRuntime(path, sizes, threads) for level, path in models.items()}
    for level in given.levels:
        runs[f"ONNX Runtime, level {level}"] = lambda one=peers[level]: one.run(prompt, given.tokens)
    right = peers[0].run(prompt, given.tokens)[2]
    for budget in given.budgets:
        with flexcomp.load(library, threads=threads) as opened:
            caches = sum(int(np.prod(port.shape)) * port.array_dtype.itemsize for port in opened.states)
            least, most = opened.ladder[0].budget_bytes, opened.ladder[-1].budget_bytes
        nbytes = most if budget == "all" else max(least, caches + int(file_nbytes * float(budget) / 100))
        said = f"flexcomp, {budget}" if budget == "all" else f"flexcomp, caches + {budget} %"
        session = sessions[said] = flexcomp.load(library, nbytes, threads=threads, **options)
        runs[said] = lambda session=session: by_us(session, sizes, prompt, given.tokens, given.chunk)
        limits[said] = nbytes
        if given.llama is not None:
            said, limit = said.replace("flexcomp", "llama.cpp"), None if budget == "all" else nbytes + pool_bytes(given.worker)
            runs[said] = lambda limit=limit: by_llama(
                given.llama, library.with_name("decoder.gguf"), threads, sizes, given.prompt, given.tokens, limit
            )
            limits[said] = limit
    found: dict[str, list[Timed]] = {said: [] for said in runs}
    for _ in range(given.rounds):
        for said, run in runs.items():
            found[said].append(run())
    wrong = False
    for said, times in found.items():
        later_s = np.median([second for _, later, _ in times for second in later])
        same = "" if "llama" in said or "level 4" in said else "yes" if all(one[2] == right for one in times) else "NO"
        wrong |= said in sessions and same == "NO"
        read = sessions[said].stats()["bytes_read"] / 1e6 if said in sessions else None
        memory = None if limits.get(said) is None else limits[said] / 1e6
        table.add(said, threads, memory, given.prompt / np.median([one[0] for one in times]), 1 / later_s, read, same)
    for session in sessions.values():
        session.close()
    return wrong


if __name__ == "__main__":
    sys.exit(main())
